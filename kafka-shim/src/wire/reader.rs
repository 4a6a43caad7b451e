//! A reader of the protocol's primitive types that borrows everything and checks every count
//! against the bytes that remain.

use std::ops::Range;

use uuid::Uuid;

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// They end too early.
    #[error("the request ends within a field")]
    Truncated,
    /// A length or a count is negative where it may not be.
    #[error("a length is negative")]
    Negative,
    /// A count says more elements than bytes remain, or than a request may have.
    #[error("a count of {0} is more than the bytes that remain hold, or than a request may have")]
    TooMany(u64),
    /// A variable-length number is longer than five bytes.
    #[error("a variable-length number is too long")]
    LongVarint,
    /// Text that is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8,
    /// A field that must be there is null.
    #[error("a field is null that may not be")]
    Null,
}

type Out<T> = Result<T, ReadError>;

/// Elements that all arrays of one request may have together: what they become in memory is larger
/// than they are on the wire.
pub const MAX_ELEMENTS: usize = 200_000;

/// Reads one field after the other.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    flexible: bool,
    /// Elements of the arrays so far.
    elements: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`; `flexible` says whether lengths are compact and structures
    /// end with tagged fields.
    pub fn new(bytes: &'a [u8], flexible: bool) -> Self {
        Self {
            bytes,
            at: 0,
            flexible,
            elements: 0,
        }
    }

    /// Where the next field begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize) -> Out<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or(ReadError::Truncated)?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Out<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| ReadError::Truncated)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`ReadError::Truncated`], as with all numbers.
    pub fn i8(&mut self) -> Out<i8> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`ReadError::Truncated`].
    pub fn i16(&mut self) -> Out<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`ReadError::Truncated`].
    pub fn i32(&mut self) -> Out<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`ReadError::Truncated`].
    pub fn i64(&mut self) -> Out<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// [`ReadError::Truncated`].
    pub fn uuid(&mut self) -> Out<Uuid> {
        Ok(Uuid::from_bytes(self.array()?))
    }

    /// A variable-length number without sign.
    ///
    /// # Errors
    /// [`ReadError::LongVarint`] beyond 32 bits.
    pub fn uvarint(&mut self) -> Out<u32> {
        let mut value = 0_u32;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array()?;
            if shift == 28 && byte > 0x0f {
                return Err(ReadError::LongVarint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ReadError::LongVarint)
    }

    fn string_length(&mut self) -> Out<Option<usize>> {
        if self.flexible {
            return Ok((self.uvarint()? as usize).checked_sub(1));
        }
        match self.i16()? {
            -1 => Ok(None),
            length => usize::try_from(length)
                .map(Some)
                .map_err(|_| ReadError::Negative),
        }
    }

    /// Text, or null.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn nullable_string(&mut self) -> Out<Option<&'a str>> {
        let Some(length) = self.string_length()? else {
            return Ok(None);
        };
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes)
            .map(Some)
            .map_err(|_| ReadError::NotUtf8)
    }

    /// Text.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn string(&mut self) -> Out<&'a str> {
        self.nullable_string()?.ok_or(ReadError::Null)
    }

    fn long_length(&mut self) -> Out<Option<usize>> {
        if self.flexible {
            return Ok((self.uvarint()? as usize).checked_sub(1));
        }
        match self.i32()? {
            -1 => Ok(None),
            length => usize::try_from(length)
                .map(Some)
                .map_err(|_| ReadError::Negative),
        }
    }

    /// Where bytes lie, or null.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn nullable_bytes(&mut self) -> Out<Option<Range<usize>>> {
        let Some(length) = self.long_length()? else {
            return Ok(None);
        };
        let start = self.at;
        self.take(length)?;
        Ok(Some(start..self.at))
    }

    /// The count of an array whose elements take at least `element` bytes; null counts as none.
    ///
    /// # Errors
    /// [`ReadError::TooMany`] if so many cannot be there, or if all arrays so far have more than
    /// [`MAX_ELEMENTS`].
    pub fn count(&mut self, element: usize) -> Out<usize> {
        let count = self.long_length()?.unwrap_or(0);
        self.elements = self.elements.saturating_add(count);
        let fits = count.saturating_mul(element.max(1)) <= self.remaining();
        if !fits || self.elements > MAX_ELEMENTS {
            return Err(ReadError::TooMany(count as u64));
        }
        Ok(count)
    }

    /// Passes over the tagged fields that end a structure in flexible versions.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn tagged_fields(&mut self) -> Out<()> {
        if !self.flexible {
            return Ok(());
        }
        for _ in 0..self.uvarint()? {
            self.uvarint()?;
            let length = self.uvarint()? as usize;
            self.take(length)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_held_against_what_remains() {
        let mut reader = Reader::new(&[0x7f, 0xff, 0xff, 0xff, 1, 2], false);
        assert_eq!(reader.count(1), Err(ReadError::TooMany(0x7fff_ffff)));
        let mut reader = Reader::new(&[4, 1, 2, 3], true);
        assert_eq!(reader.count(1), Ok(3));
        let mut reader = Reader::new(&[4, 1, 2, 3], true);
        assert_eq!(reader.count(2), Err(ReadError::TooMany(3)));
    }

    #[test]
    fn all_arrays_together_are_bounded() {
        let bytes = vec![1; 4 * MAX_ELEMENTS];
        let mut reader = Reader::new(&bytes, true);
        let mut arrays = 0;
        // Each array of this flexible text has no element, but for what a count of 1 - 1 says.
        while reader.count(1).is_ok_and(|count| count == 0) && arrays < 10 {
            arrays += 1;
        }
        assert_eq!(arrays, 10);
        let long = (MAX_ELEMENTS as i32 + 1).to_be_bytes();
        let bytes = [&long[..], &bytes].concat();
        let refused = Reader::new(&bytes, false).count(1);
        assert_eq!(refused, Err(ReadError::TooMany(MAX_ELEMENTS as u64 + 1)));
    }

    #[test]
    fn varints_end() {
        assert_eq!(
            Reader::new(&[0xff; 9], true).uvarint(),
            Err(ReadError::LongVarint)
        );
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f], true).uvarint(),
            Ok(u32::MAX)
        );
        assert_eq!(
            Reader::new(&[0x80], true).uvarint(),
            Err(ReadError::Truncated)
        );
    }

    #[test]
    fn strings_are_checked() {
        assert_eq!(
            Reader::new(&[0xff, 0xff], false).nullable_string(),
            Ok(None)
        );
        assert_eq!(
            Reader::new(&[0xff, 0xfe], false).string(),
            Err(ReadError::Negative)
        );
        assert_eq!(
            Reader::new(&[0, 1, 0xff], false).string(),
            Err(ReadError::NotUtf8)
        );
        assert_eq!(
            Reader::new(&[0, 2, b'a'], false).string(),
            Err(ReadError::Truncated)
        );
        assert_eq!(Reader::new(&[0], true).string(), Err(ReadError::Null));
        assert_eq!(Reader::new(&[3, b'a', b'b'], true).string(), Ok("ab"));
    }
}
