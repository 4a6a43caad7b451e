//! A registered buffer's name on a link: all that a network card needs to write it, so that nobody
//! has to keep a table of them.
//!
//! ```text
//! bits 0..32   the card's key of the registration
//! bits 32..48  how far into a page the buffer's first byte lies; the registration counts from there
//! bits 48..64  drawn at random
//! ```

use crate::ids::BufferKey;

/// The largest page of any machine: as far as a buffer lies in one of these, so far it lies in a
/// smaller one.
pub(super) const PAGE_BYTES: u64 = 1 << 16;

/// What a primary's card writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteBuffer {
    /// The card's key.
    pub(super) key: u32,
    /// The address of the buffer's first byte, as the registration counts: below [`PAGE_BYTES`].
    pub(super) base: u64,
}

impl RemoteBuffer {
    /// Its name; `drawn` makes it unlikely to be met again.
    pub(super) fn name(self, drawn: u32) -> BufferKey {
        let base = self.base % PAGE_BYTES;
        BufferKey(u64::from(self.key) | (base << 32) | (u64::from(drawn >> 16) << 48))
    }

    /// What `name` names. Any key can be read so; a wrong one is refused by the card.
    pub(super) fn named(name: BufferKey) -> Self {
        Self {
            key: name.0 as u32,
            base: (name.0 >> 32) & (PAGE_BYTES - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_key_and_base_whatever_was_drawn() {
        for key in [0, 1, 0x1234_5678, u32::MAX] {
            for base in [0, 1, 1024, PAGE_BYTES - 1] {
                for drawn in [0, 1 << 16, u32::MAX] {
                    let buffer = RemoteBuffer { key, base };
                    assert_eq!(RemoteBuffer::named(buffer.name(drawn)), buffer);
                }
            }
        }
    }

    #[test]
    fn the_same_registration_gets_other_names() {
        let buffer = RemoteBuffer { key: 7, base: 0 };
        assert_ne!(buffer.name(1 << 16), buffer.name(2 << 16));
        assert_eq!(buffer.name(u32::MAX).0 >> 48, (1 << 16) - 1);
    }
}
