//! What travels between a primary and a backup whose workers handle requests. Numbers are
//! little-endian.
//!
//! ```text
//! primary:  hello    "KERARPC1" | primary u32 | zero u32 | process u64                24 bytes
//!           request  as a write of the one-sided transport over TCP                   24 bytes + length
//! backup:   word     "KRRP" | kind u16 | text length u16 | number u64 | text          16 bytes + text
//! ```
//! Requests are numbered from 1 in the order they are sent. Each is answered by a word of its own, in
//! whatever order workers are done.

use kera_replication::ids::{BrokerId, BufferKey, ProcessId};
use kera_replication::transport::tcp::{WRITE_BYTES, WriteHead};

/// The first bytes of a data connection.
pub(super) const HELLO_MAGIC: [u8; 8] = *b"KERARPC1";
/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 24;
/// Bytes of a word before its text.
pub(super) const WORD_BYTES: usize = 16;
/// Most bytes of one request, as of RAMCloud's messages; longer writes are several requests.
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// Longest text of a farewell.
const MAX_TEXT: usize = 512;

const WORD_MAGIC: [u8; 4] = *b"KRRP";

/// Who connects, and to which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) primary: BrokerId,
    pub(super) process: ProcessId,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&HELLO_MAGIC);
        out[8..12].copy_from_slice(&self.primary.0.to_le_bytes());
        out[16..].copy_from_slice(&self.process.0.to_le_bytes());
        out
    }

    /// `None` if the bytes are no hello.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        (bytes[..8] == HELLO_MAGIC).then(|| Self {
            primary: BrokerId(u32_at(bytes, 8)),
            process: ProcessId(u64_at(bytes, 16)),
        })
    }
}

/// The head of a request, which is that of a write; `None` if the bytes begin none, or one that has
/// no bytes or too many.
pub(super) fn head(bytes: &[u8; WRITE_BYTES]) -> Option<WriteHead> {
    let fits = |head: &WriteHead| (1..=MAX_REQUEST).contains(&(head.len as usize));
    WriteHead::decode(bytes).filter(fits)
}

/// Why a backup ends a connection; the number is the word's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Cause {
    /// It is not the process that the hello names.
    OtherProcess = 3,
    /// A request was refused: its copy is sealed, freed or unknown.
    Refused = 4,
    /// The bytes make no sense.
    Malformed = 5,
}

/// What a backup says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Welcome,
    /// The request of this number is placed.
    Answer(u64),
    /// The end, about this buffer if a request was refused.
    Farewell(Cause, BufferKey, String),
}

impl Word {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, number, text) = match self {
            Self::Welcome => (1, 0, ""),
            Self::Answer(number) => (2, *number, ""),
            Self::Farewell(cause, buffer, text) => (*cause as u16, buffer.0, text.as_str()),
        };
        let text = &text[..text.floor_char_boundary(MAX_TEXT)];
        let mut out = Vec::with_capacity(WORD_BYTES + text.len());
        out.extend_from_slice(&WORD_MAGIC);
        out.extend_from_slice(&u16::to_le_bytes(kind));
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out
    }

    /// The word at the beginning of `bytes` and its length; `Ok(None)` if more bytes are needed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let Some(head) = bytes.first_chunk::<WORD_BYTES>() else {
            return Ok(None);
        };
        let kind = u16::from_le_bytes([head[4], head[5]]);
        let text = usize::from(u16::from_le_bytes([head[6], head[7]]));
        if head[..4] != WORD_MAGIC || text > MAX_TEXT {
            return Err("what listens there is no backup that takes requests");
        }
        let end = WORD_BYTES + text;
        let Some(text) = bytes.get(WORD_BYTES..end) else {
            return Ok(None);
        };
        let number = u64_at(head, 8);
        let farewell = |cause| {
            let text = String::from_utf8_lossy(text).into_owned();
            Self::Farewell(cause, BufferKey(number), text)
        };
        let word = match kind {
            1 => Self::Welcome,
            2 => Self::Answer(number),
            3 => farewell(Cause::OtherProcess),
            4 => farewell(Cause::Refused),
            5 => farewell(Cause::Malformed),
            _ => return Err("the backup said a word that there is not"),
        };
        Ok(Some((word, end)))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello {
            primary: BrokerId(7),
            process: ProcessId(1 << 60),
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
        let whole = WriteHead {
            buffer: BufferKey(1 << 63),
            offset: 1 << 40,
            len: MAX_REQUEST as u32,
            signalled: false,
        };
        assert_eq!(head(&whole.encode()), Some(whole));
        for len in [0, MAX_REQUEST as u32 + 1] {
            assert_eq!(head(&WriteHead { len, ..whole }.encode()), None);
        }
        let long = "é".repeat(MAX_TEXT);
        for word in [
            Word::Welcome,
            Word::Answer(u64::MAX),
            Word::Farewell(Cause::Refused, BufferKey(9), "sealed".into()),
        ] {
            let bytes = word.encode();
            assert_eq!(Word::decode(&bytes), Ok(Some((word, bytes.len()))));
            assert_eq!(Word::decode(&bytes[..bytes.len() - 1]), Ok(None));
        }
        let cut = Word::Farewell(Cause::Malformed, BufferKey(0), long).encode();
        assert_eq!(cut.len(), WORD_BYTES + MAX_TEXT);
        assert!(Word::decode(&[0; WORD_BYTES]).is_err());
    }
}
