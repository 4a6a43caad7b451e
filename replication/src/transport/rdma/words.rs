//! What is said while a connection is made. Numbers are little-endian; the network may pad what it
//! carries, so everything tells its own length.
//!
//! ```text
//! primary:  "KERARDMA" | version u16 | zero u16 | primary u32 | process u64      24 bytes
//! backup:   "KERARDMA" | version u16 | cause u16 | text length u16 | text        14 bytes + text
//! ```
//! The backup's words come with a rejection. An acceptance carries none.

use crate::transport::hello::Protocol;

const MAGIC: [u8; 8] = *b"KERARDMA";
const VERSION: u16 = 1;
/// What is spoken here. The network allows 56 bytes of a hello.
pub(super) const PROTOCOL: Protocol = Protocol {
    magic: MAGIC,
    version: VERSION,
};
const REFUSAL_HEAD: usize = 14;
/// Longest text of a refusal; the network allows 148 bytes in all.
const MAX_TEXT: usize = 120;

/// Why a backup refuses a connection; the number travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Cause {
    /// It is not the process that the hello names.
    OtherProcess = 1,
    /// The hello makes no sense to it.
    Malformed = 2,
    /// It cannot serve another connection now.
    Unable = 3,
}

/// A backup's no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) cause: Cause,
    pub(super) text: String,
}

impl Words {
    pub(super) fn new(cause: Cause, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { cause, text }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = &self.text[..self.text.floor_char_boundary(MAX_TEXT)];
        let mut out = PROTOCOL.magic.to_vec();
        out.extend_from_slice(&PROTOCOL.version.to_le_bytes());
        out.extend_from_slice(&(self.cause as u16).to_le_bytes());
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out
    }

    /// `None` if no backup said them: nobody listens there, for example.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<REFUSAL_HEAD>()?;
        let number = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        if head[..8] != PROTOCOL.magic || number(8) != PROTOCOL.version {
            return None;
        }
        let cause = match number(10) {
            1 => Cause::OtherProcess,
            2 => Cause::Malformed,
            3 => Cause::Unable,
            _ => return None,
        };
        let text = rest.get(..usize::from(number(12)))?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(Self { cause, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_behind_any_padding() {
        let words = Words::new(Cause::OtherProcess, "it was started anew");
        let mut bytes = words.encode();
        bytes.resize(196, 0);
        assert_eq!(Words::decode(&bytes), Some(words));
        for len in 0..REFUSAL_HEAD {
            assert_eq!(Words::decode(&bytes[..len]), None, "{len} bytes");
        }
        bytes[12] = 255;
        assert_eq!(Words::decode(&bytes), None, "more text than there is");
    }

    #[test]
    fn a_long_text_is_cut_between_letters() {
        let words = Words::new(Cause::Unable, "ä".repeat(200));
        let read = Words::decode(&words.encode()).expect("is read");
        assert_eq!(read.text, "ä".repeat(60));
    }
}
