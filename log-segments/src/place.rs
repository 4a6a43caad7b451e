//! A place in a group.

use kera_protocol::ids::Ordinal;

/// A place in a group: an address and the ordinal of the batch that begins there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Byte address: `segment * segment_size + position`.
    pub address: u64,
    /// Ordinal at that address.
    pub ordinal: Ordinal,
}
