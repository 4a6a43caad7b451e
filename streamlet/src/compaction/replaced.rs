//! What is left of compactions that are over.

use kera_log_segments::group::Group;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::LaneId;

/// What a streamlet's compactions have left.
#[derive(Default)]
pub(crate) struct Replaced {
    /// Groups that others replaced, and that readers may still hold.
    pub(super) groups: Vec<Arc<Group>>,
    /// Lanes of which nobody knows whether their last change was made.
    pub(super) unsettled: Vec<LaneId>,
}
