//! What is kept of a partition of a share group.

use crate::share::ShareState;

/// What is kept of a partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ShareRecord {
    /// Under which it may be written.
    pub(crate) state_epoch: u64,
    /// The epoch of the streamlet's owner that began last.
    pub(crate) owner_epoch: u32,
    /// `None` until an owner has found where the group begins.
    pub(crate) state: Option<ShareState>,
    /// How many partitions the stream had when this was first kept; 0 if an earlier build did that.
    pub(crate) of_partitions: u32,
}

impl ShareRecord {
    /// About the bytes that its state takes.
    pub(super) fn bytes(&self) -> usize {
        self.state.as_ref().map_or(0, ShareState::bytes)
    }
}
