//! Goes over a request before the codec does, without allocating.
//!
//! What [`walk`] accepts the codec decodes, and the memory that this takes is bounded by
//! [`Limits::codec_bytes`] whatever the request says about itself.

use super::schema::{Field, Kind, shape};

/// The longest text that Kafka takes, in bytes.
const LONGEST_TEXT: usize = i16::MAX as usize;

/// How much one request may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Elements of all arrays together.
    pub elements: usize,
    /// Tagged fields that nobody here knows, in all structures together. Clients of today send
    /// none; each costs the codec a node of a map.
    pub unknown_tags: usize,
}

impl Limits {
    /// The most memory, in bytes, that the codec takes for one element of an array.
    pub const BYTES_PER_ELEMENT: usize = 128;
    /// The most memory, in bytes, that the codec takes for an unknown tagged field.
    pub const BYTES_PER_UNKNOWN_TAG: usize = 512;
    /// What the codec takes for any request, in bytes.
    pub const BYTES_PER_REQUEST: usize = 1024;
    /// The codec takes at most this many times the bytes of a request, above
    /// [`Limits::BYTES_PER_REQUEST`]: an unknown tagged field has two bytes at least.
    pub const MULTIPLE: usize = Self::BYTES_PER_UNKNOWN_TAG / 2;

    /// The most memory, in bytes, that the codec takes for a request that passed these limits,
    /// beside the request itself, which its texts and bytes refer to.
    pub const fn codec_bytes(&self) -> usize {
        Self::BYTES_PER_REQUEST
            + self.elements * Self::BYTES_PER_ELEMENT
            + self.unknown_tags * Self::BYTES_PER_UNKNOWN_TAG
    }
}

impl Default for Limits {
    /// 100,000 elements and 1,000 unknown tagged fields: 13 MB.
    fn default() -> Self {
        Self {
            elements: 100_000,
            unknown_tags: 1_000,
        }
    }
}

/// Why a request is not given to the codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// The API is not understood.
    #[error("api key {0} is not served here")]
    UnknownApi(i16),
    /// The version of the API is not understood.
    #[error("version {version} of api key {api_key} is not served here")]
    UnknownVersion {
        /// The API.
        api_key: i16,
        /// The version.
        version: i16,
    },
    /// The request ends within a field, or the field's length says so.
    #[error("{field} needs {needed} bytes at byte {at}, {left} are left")]
    TooShort {
        /// The field.
        field: &'static str,
        /// Where in the request, in bytes.
        at: usize,
        /// The least number of bytes that it needs.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A length or number of elements is none.
    #[error("{field} has the length {length} at byte {at}, which is none")]
    BadLength {
        /// The field.
        field: &'static str,
        /// Where in the request, in bytes.
        at: usize,
        /// The length found.
        length: i64,
    },
    /// A field that must not be null is.
    #[error("{field} is null at byte {at} and must not be")]
    Null {
        /// The field.
        field: &'static str,
        /// Where in the request, in bytes.
        at: usize,
    },
    /// A text is not UTF-8.
    #[error("{field} is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The field.
        field: &'static str,
        /// Where in the request, in bytes.
        at: usize,
    },
    /// A number of variable length does not end within five bytes or 32 bits.
    #[error("{field} holds a number at byte {at} that does not end within 32 bits")]
    BadNumber {
        /// The field.
        field: &'static str,
        /// Where in the request, in bytes.
        at: usize,
    },
    /// A tagged field is not as long as it says, or not of this version.
    #[error("{field}: tagged field {tag} at byte {at} is not what it says it is")]
    BadTag {
        /// The structure or field.
        field: &'static str,
        /// The tag.
        tag: u32,
        /// Where in the request, in bytes.
        at: usize,
    },
    /// There are too many elements or unknown tagged fields in all.
    #[error("{field} brings the request to {count} {what}, at most {limit} are taken")]
    TooMany {
        /// The field.
        field: &'static str,
        /// What there are too many of.
        what: &'static str,
        /// How many, with this field.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

/// Checks that `body`, what follows the header of a request, is a request of this API and version
/// that the codec can decode within `limits`. Bytes behind it are left alone, as Kafka does.
///
/// # Errors
/// The first thing that is wrong.
pub fn walk(api_key: i16, version: i16, body: &[u8], limits: &Limits) -> Result<(), WalkError> {
    let shape = shape(api_key).ok_or(WalkError::UnknownApi(api_key))?;
    if !shape.has(version) {
        return Err(WalkError::UnknownVersion { api_key, version });
    }
    let mut walker = Walker::new(body, version, shape.is_flexible(version), limits);
    walker.fields(shape.name, shape.fields)
}

struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    version: i16,
    flexible: bool,
    elements: usize,
    unknown_tags: usize,
    limits: Limits,
}

impl<'a> Walker<'a> {
    fn new(bytes: &'a [u8], version: i16, flexible: bool, limits: &Limits) -> Self {
        Self {
            bytes,
            at: 0,
            version,
            flexible,
            elements: 0,
            unknown_tags: 0,
            limits: *limits,
        }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], WalkError> {
        if count > self.left() {
            return Err(WalkError::TooShort {
                field,
                at: self.at,
                needed: count,
                left: self.left(),
            });
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WalkError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    /// A number of variable length, of 32 bits.
    fn varint(&mut self, field: &'static str) -> Result<u32, WalkError> {
        let at = self.at;
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array(field)?;
            if shift == 28 && byte > 0x0f {
                return Err(WalkError::BadNumber { field, at });
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// A length of two bytes, or one of variable length; `None` is null.
    fn text_length(&mut self, field: &'static str) -> Result<Option<usize>, WalkError> {
        if self.flexible {
            self.compact_length(field)
        } else {
            self.length16(field)
        }
    }

    fn length16(&mut self, field: &'static str) -> Result<Option<usize>, WalkError> {
        let at = self.at;
        let length = i16::from_be_bytes(self.array(field)?);
        signed(field, at, i64::from(length))
    }

    /// A length of four bytes, or one of variable length; `None` is null.
    fn length(&mut self, field: &'static str) -> Result<Option<usize>, WalkError> {
        if self.flexible {
            return self.compact_length(field);
        }
        let at = self.at;
        let length = i32::from_be_bytes(self.array(field)?);
        signed(field, at, i64::from(length))
    }

    fn compact_length(&mut self, field: &'static str) -> Result<Option<usize>, WalkError> {
        let length = self.varint(field)?;
        Ok(length.checked_sub(1).map(|length| length as usize))
    }

    fn text(&mut self, field: &'static str, length: usize) -> Result<&'a str, WalkError> {
        let at = self.at;
        if length > LONGEST_TEXT {
            let length = length as i64;
            return Err(WalkError::BadLength { field, at, length });
        }
        let bytes = self.take(field, length)?;
        std::str::from_utf8(bytes).map_err(|_| WalkError::NotUtf8 { field, at })
    }

    fn fields(&mut self, name: &'static str, fields: &'static [Field]) -> Result<(), WalkError> {
        for field in fields {
            if field.tag.is_none() && field.is_in(self.version) {
                self.value(field.name, &field.kind)?;
            }
        }
        self.tagged_fields(name, fields)
    }

    fn value(&mut self, field: &'static str, kind: &Kind) -> Result<(), WalkError> {
        let at = self.at;
        let length = match *kind {
            Kind::Fixed(bytes) => return self.take(field, bytes).map(drop),
            Kind::Struct(fields) => return self.fields(field, fields),
            Kind::OptionalStruct(fields) => {
                return match i8::from_be_bytes(self.array(field)?) {
                    1 => self.fields(field, fields),
                    -1 => Ok(()),
                    other => Err(WalkError::BadLength {
                        field,
                        at,
                        length: i64::from(other),
                    }),
                };
            }
            Kind::Text { .. } => self.text_length(field)?,
            Kind::Bytes { .. } | Kind::Array { .. } => self.length(field)?,
        };
        match (*kind, length) {
            (Kind::Text { .. }, Some(length)) => self.text(field, length).map(drop),
            (Kind::Bytes { .. }, Some(length)) => self.take(field, length).map(drop),
            (Kind::Array { of, .. }, Some(count)) => self.elements(field, of, count),
            (
                Kind::Text { nullable: true }
                | Kind::Bytes { nullable: true }
                | Kind::Array { nullable: true, .. },
                None,
            ) => Ok(()),
            _ => Err(WalkError::Null { field, at }),
        }
    }

    fn elements(
        &mut self,
        field: &'static str,
        kind: &Kind,
        count: usize,
    ) -> Result<(), WalkError> {
        let least = count.saturating_mul(self.least_bytes(kind));
        if least > self.left() {
            return Err(WalkError::TooShort {
                field,
                at: self.at,
                needed: least,
                left: self.left(),
            });
        }
        self.elements = self.elements.saturating_add(count);
        if self.elements > self.limits.elements {
            return Err(WalkError::TooMany {
                field,
                what: "elements",
                count: self.elements,
                limit: self.limits.elements,
            });
        }
        if let Kind::Fixed(_) = kind {
            return self.take(field, least).map(drop);
        }
        for _ in 0..count {
            self.value(field, kind)?;
        }
        Ok(())
    }

    /// The fewest bytes that a value of this kind has on the wire; never 0 within an array.
    fn least_bytes(&self, kind: &Kind) -> usize {
        let length = if self.flexible { 1 } else { 4 };
        match *kind {
            Kind::Fixed(bytes) => bytes,
            Kind::Text { .. } => length.min(2),
            Kind::Bytes { .. } | Kind::Array { .. } => length,
            Kind::OptionalStruct(_) => 1,
            Kind::Struct(fields) => {
                let present = fields
                    .iter()
                    .filter(|field| field.tag.is_none() && field.is_in(self.version));
                let own: usize = present.map(|field| self.least_bytes(&field.kind)).sum();
                own + usize::from(self.flexible)
            }
        }
    }

    /// What ends a structure of a flexible version.
    fn tagged_fields(
        &mut self,
        name: &'static str,
        fields: &'static [Field],
    ) -> Result<(), WalkError> {
        if !self.flexible {
            return Ok(());
        }
        let count = self.varint(name)? as usize;
        let least = count.saturating_mul(2);
        if least > self.left() {
            return Err(WalkError::TooShort {
                field: name,
                at: self.at,
                needed: least,
                left: self.left(),
            });
        }
        for _ in 0..count {
            let at = self.at;
            let tag = self.varint(name)?;
            let length = self.varint(name)? as usize;
            match fields.iter().find(|field| field.tag == Some(tag)) {
                Some(field) if !field.is_in(self.version) => {
                    return Err(WalkError::BadTag {
                        field: name,
                        tag,
                        at,
                    });
                }
                Some(field) => {
                    // The codec reads the value and does not look at its length.
                    let end = self.at.saturating_add(length);
                    self.value(field.name, &field.kind)?;
                    if self.at != end {
                        let field = field.name;
                        return Err(WalkError::BadTag { field, tag, at });
                    }
                }
                None => {
                    self.take(name, length)?;
                    self.unknown_tags += 1;
                    if self.unknown_tags > self.limits.unknown_tags {
                        return Err(WalkError::TooMany {
                            field: name,
                            what: "unknown tagged fields",
                            count: self.unknown_tags,
                            limit: self.limits.unknown_tags,
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// A signed length as it was read; `None` is null.
fn signed(field: &'static str, at: usize, length: i64) -> Result<Option<usize>, WalkError> {
    match usize::try_from(length) {
        Ok(length) => Ok(Some(length)),
        Err(_) if length == -1 => Ok(None),
        Err(_) => Err(WalkError::BadLength { field, at, length }),
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
