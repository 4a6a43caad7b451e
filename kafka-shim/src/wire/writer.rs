//! A writer of the protocol's primitive types, for the replies that are made by hand.

use bytes::{BufMut, BytesMut};
use uuid::Uuid;

/// Writes one field after the other.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
    flexible: bool,
}

impl<'a> Writer<'a> {
    /// Writes behind what `out` holds; `flexible` as for [`super::reader::Reader`].
    pub fn new(out: &'a mut BytesMut, flexible: bool) -> Self {
        Self { out, flexible }
    }

    /// Bytes in the buffer.
    pub fn at(&self) -> usize {
        self.out.len()
    }

    /// Two bytes.
    pub fn i16(&mut self, value: i16) {
        self.out.put_i16(value);
    }

    /// Four bytes.
    pub fn i32(&mut self, value: i32) {
        self.out.put_i32(value);
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.out.put_i64(value);
    }

    /// Sixteen bytes.
    pub fn uuid(&mut self, value: Uuid) {
        self.out.put_slice(value.as_bytes());
    }

    /// A variable-length number without sign.
    pub fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.put_u8(value as u8);
    }

    /// Text; cut at 32,767 bytes, the most that old versions can say.
    pub fn nullable_string(&mut self, text: Option<&str>) {
        let Some(text) = text else {
            if self.flexible {
                self.uvarint(0);
            } else {
                self.i16(-1);
            }
            return;
        };
        let bytes = &text.as_bytes()[..text.floor_char_boundary(i16::MAX as usize)];
        if self.flexible {
            self.uvarint(bytes.len() as u32 + 1);
        } else {
            self.i16(bytes.len() as i16);
        }
        self.out.put_slice(bytes);
    }

    /// The length of an array, or of bytes that follow.
    pub fn length(&mut self, count: usize) {
        if self.flexible {
            self.uvarint(u32::try_from(count).unwrap_or(u32::MAX - 1) + 1);
        } else {
            self.i32(i32::try_from(count).unwrap_or(i32::MAX));
        }
    }

    /// No tagged fields.
    pub fn no_tags(&mut self) {
        if self.flexible {
            self.uvarint(0);
        }
    }
}
