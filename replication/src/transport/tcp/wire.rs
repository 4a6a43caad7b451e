//! What travels on a data connection, byte for byte. Numbers are little-endian.
//!
//! ```text
//! primary:  hello   "KERAREPL" | version u16 | zero u16 | primary u32 | process u64        24 bytes
//!           write   "KRWR" | length u32 | buffer key u64 | offset u64 | bytes              24 bytes + length
//!           the same, and a word is wanted once it is placed: "KRWS"
//! backup:   word    "KRBK" | kind u16 | text length u16 | number u64 | text                16 bytes + text
//! ```
//! A backup's words: *welcome* to the hello, once any earlier connection of that primary is gone;
//! *done* with the number of writes placed since the hello, which speaks for all of them, when a write is
//! placed of which the primary wants to hear, and before it when very much is; *farewell* with a
//! [`Cause`], the buffer it is about and a text for people, after which it closes.

use kera_log_segments::layout::{read_u32, read_u64};

use crate::ids::BufferKey;
use crate::transport::hello::Protocol;

/// The first bytes of a data connection, by which a listener tells it from gRPC.
pub const HELLO_MAGIC: [u8; 8] = *b"KERAREPL";
const VERSION: u16 = 2;
/// What is spoken here.
pub(super) const PROTOCOL: Protocol = Protocol {
    magic: HELLO_MAGIC,
    version: VERSION,
};
/// Bytes before a write's own, those of a [`WriteHead`].
pub const WRITE_BYTES: usize = 24;
/// Bytes of a backup's word before its text.
pub(super) const WORD_BYTES: usize = 16;
/// Longest text of a farewell.
pub(super) const MAX_TEXT: usize = 512;

const WRITE_MAGIC: [u8; 4] = *b"KRWR";
const SIGNALLED_MAGIC: [u8; 4] = *b"KRWS";
const WORD_MAGIC: [u8; 4] = *b"KRBK";

/// The head of a write: where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The buffer of the copy.
    pub buffer: BufferKey,
    /// Bytes from the buffer's beginning.
    pub offset: u64,
    /// Bytes that follow.
    pub len: u32,
    /// The primary waits to hear that it is placed: the last of a submission.
    pub signalled: bool,
}

impl WriteHead {
    /// As it travels.
    pub fn encode(&self) -> [u8; WRITE_BYTES] {
        let mut out = [0; WRITE_BYTES];
        out[..4].copy_from_slice(match self.signalled {
            true => &SIGNALLED_MAGIC,
            false => &WRITE_MAGIC,
        });
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..16].copy_from_slice(&self.buffer.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// `None` if the bytes do not begin a write.
    pub fn decode(bytes: &[u8; WRITE_BYTES]) -> Option<Self> {
        let signalled = bytes[..4] == SIGNALLED_MAGIC;
        (signalled || bytes[..4] == WRITE_MAGIC).then(|| Self {
            signalled,
            len: read_u32(bytes, 4),
            buffer: BufferKey(read_u64(bytes, 8)),
            offset: read_u64(bytes, 16),
        })
    }
}

/// Why a backup ends a connection; the number is the word's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Cause {
    /// It is not the process that the hello names.
    OtherProcess = 3,
    /// A write was refused: its copy is sealed, freed or unknown.
    Refused = 4,
    /// The bytes make no sense.
    Malformed = 5,
    /// The backup is stopping, or a newer connection took this one's place.
    Ending = 6,
}

impl Cause {
    const ALL: [Self; 4] = [
        Self::OtherProcess,
        Self::Refused,
        Self::Malformed,
        Self::Ending,
    ];
}

/// What a backup says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Welcome,
    /// So many writes are placed.
    Done(u64),
    /// About this buffer, if the cause is a refused write; a text of this length follows.
    Farewell(Cause, BufferKey, usize),
}

impl Word {
    pub(super) fn encode(&self) -> [u8; WORD_BYTES] {
        let (kind, text, number) = match *self {
            Self::Welcome => (1u16, 0, 0),
            Self::Done(count) => (2, 0, count),
            Self::Farewell(cause, buffer, text) => {
                (cause as u16, text.min(MAX_TEXT) as u16, buffer.0)
            }
        };
        let mut out = [0; WORD_BYTES];
        out[..4].copy_from_slice(&WORD_MAGIC);
        out[4..6].copy_from_slice(&kind.to_le_bytes());
        out[6..8].copy_from_slice(&text.to_le_bytes());
        out[8..16].copy_from_slice(&number.to_le_bytes());
        out
    }

    /// `None` if the bytes are no word.
    pub(super) fn decode(bytes: &[u8; WORD_BYTES]) -> Option<Self> {
        let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
        let text = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let number = read_u64(bytes, 8);
        if bytes[..4] != WORD_MAGIC || text > MAX_TEXT {
            return None;
        }
        match kind {
            1 => Some(Self::Welcome),
            2 => Some(Self::Done(number)),
            _ => {
                let cause = Cause::ALL.into_iter().find(|c| *c as u16 == kind)?;
                Some(Self::Farewell(cause, BufferKey(number), text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for signalled in [false, true] {
            let head = WriteHead {
                buffer: BufferKey(1 << 63),
                offset: 1 << 40,
                len: u32::MAX,
                signalled,
            };
            assert_eq!(WriteHead::decode(&head.encode()), Some(head));
        }
        for word in [
            Word::Welcome,
            Word::Done(u64::MAX),
            Word::Farewell(Cause::Refused, BufferKey(9), 12),
        ] {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
        assert_eq!(Word::decode(&[0; WORD_BYTES]), None);
        assert_eq!(WriteHead::decode(&[0; WRITE_BYTES]), None);
    }
}
