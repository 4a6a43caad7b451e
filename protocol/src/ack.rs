//! What an acknowledgement promises.

use crate::v1;

/// What must have happened to a batch on each counted replica before it is acknowledged.
///
/// The numbers stand in files' headers and never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AckPolicy {
    /// It is in the broker's memory, and survives nothing.
    Memory = 0,
    /// It is in the page cache, and survives the process.
    #[default]
    Written = 1,
    /// It is on the device, and survives power loss.
    Synced = 2,
}

impl AckPolicy {
    /// The policy of a number that a file holds; an unknown one is taken for the default.
    pub fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Memory,
            2 => Self::Synced,
            _ => Self::Written,
        }
    }

    /// As people write it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Written => "written",
            Self::Synced => "synced",
        }
    }
}

impl From<v1::AckPolicy> for AckPolicy {
    fn from(value: v1::AckPolicy) -> Self {
        match value {
            v1::AckPolicy::Memory => Self::Memory,
            v1::AckPolicy::Written => Self::Written,
            v1::AckPolicy::Synced => Self::Synced,
        }
    }
}

impl From<AckPolicy> for v1::AckPolicy {
    fn from(value: AckPolicy) -> Self {
        match value {
            AckPolicy::Memory => Self::Memory,
            AckPolicy::Written => Self::Written,
            AckPolicy::Synced => Self::Synced,
        }
    }
}
