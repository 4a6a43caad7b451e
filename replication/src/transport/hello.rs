//! The first bytes of a connection for data, alike over TCP and RDMA but for what names the protocol. Numbers are
//! little-endian.
//!
//! ```text
//! magic, 8 bytes | version u16 | zero u16 | primary u32 | process u64      24 bytes
//! ```

use bytes::Buf;

use crate::ids::{BrokerId, ProcessId};

/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 24;

/// What is spoken over a connection.
pub(super) struct Protocol {
    pub(super) magic: [u8; 8],
    pub(super) version: u16,
}

/// Who connects, and to which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) primary: BrokerId,
    pub(super) process: ProcessId,
}

impl Hello {
    pub(super) fn encode(&self, protocol: &Protocol) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&protocol.magic);
        out[8..10].copy_from_slice(&protocol.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.primary.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.process.0.to_le_bytes());
        out
    }

    /// Reads a hello at the beginning of `bytes`; `Err` says what is wrong with it.
    pub(super) fn decode(bytes: &[u8], protocol: &Protocol) -> Result<Self, String> {
        let hello = bytes.first_chunk::<HELLO_BYTES>();
        let Some(hello) = hello.filter(|hello| hello[..8] == protocol.magic) else {
            return Err("the connection does not begin with a hello".into());
        };
        let mut rest = &hello[8..];
        let (version, ours) = (rest.get_u16_le(), protocol.version);
        if version != ours {
            return Err(format!(
                "the hello has version {version}, this build speaks {ours}; use the same build"
            ));
        }
        rest.advance(2);
        Ok(Self {
            primary: BrokerId(rest.get_u32_le()),
            process: ProcessId(rest.get_u64_le()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_behind_any_padding() {
        let protocol = Protocol {
            magic: *b"KERATEST",
            version: 2,
        };
        let hello = Hello {
            primary: BrokerId(7),
            process: ProcessId(1 << 60),
        };
        let mut bytes = hello.encode(&protocol).to_vec();
        bytes.resize(56, 0);
        assert_eq!(Hello::decode(&bytes, &protocol), Ok(hello));
        bytes[8] = 9;
        assert!(Hello::decode(&bytes, &protocol).is_err_and(|e| e.contains("version 9")));
        assert!(Hello::decode(&bytes[..20], &protocol).is_err());
        bytes[0] = b'k';
        assert!(Hello::decode(&bytes, &protocol).is_err_and(|e| e.contains("does not begin")));
    }
}
