//! The interfaces between a streamlet and what makes the replicas of its groups at other brokers; neither knows the
//! other's crate.

use kera_protocol::ids::{Epoch, GroupId, LaneId};

use crate::group::{AckPolicy, Group};
use crate::place::Place;
use crate::sync::Arc;

/// What became of fetching a closed group's file, which is damaged or gone, from another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mending {
    /// What another replica has is in the file's place.
    Done,
    /// Not now: a broker that may have the group whole does not answer, or what decides about it does not.
    NotYet,
    /// Each broker that has a replica has answered, and none has it whole; or what is missing was given up.
    Nowhere,
}

/// Makes the replicas of a streamlet's groups; the streamlet calls it.
pub trait Copies: Send + Sync {
    /// The id of the lane's next group, which promises `ack` for its life; each is handed out once, and used
    /// at once. Called under the streamlet lock: must not wait and must not call back.
    fn next_group(&self, lane: LaneId, ack: AckPolicy) -> GroupId;

    /// The lane goes on in `group`, which takes its first batch after this. Whoever ships it says so
    /// with [`Group::ship_by`]. Called as [`Self::next_group`], in the order of the groups.
    fn begin(&self, lane: LaneId, group: &Arc<Group>);

    /// Groups, with their epochs and file generations, are no longer recorded: their replicas may go. Must not wait.
    fn deleted(&self, groups: &[(GroupId, Epoch, u32)]);

    /// Fetches the file of a closed group, which is damaged or gone, from another replica that is whole,
    /// and puts it where the file lies. Called on a thread that may wait, without any lock.
    fn mend(&self, group: GroupId) -> Mending;

    /// The stream is deleted: nothing more is acknowledged. Must not wait.
    fn abandon(&self);
}

/// A streamlet as who makes its replicas calls it. To be called without holding any lock.
pub trait GroupOwner: Send + Sync {
    /// Ends a group that is shipped, because a replica was lost or the lane is handed over: it takes no more appends,
    /// and the lane goes on in its next group. Returns where it ends.
    fn freeze_group(&self, lane: LaneId, group: &Arc<Group>, now_ms: u64) -> Place;

    /// Makes this broker's own file of a group that is about to be recorded ahead of its use as one that promises
    /// `ack`: without it nobody could tell later that nothing was written to it, rather than removed. Of a `synced` one the
    /// name is durable, as that of [`Group::make_file_to_record`]. False if it
    /// cannot be made now; then the group must not be recorded.
    fn make_ahead(&self, lane: LaneId, group: GroupId, ack: AckPolicy) -> bool;

    /// A group of [`Self::make_ahead`] is not used. Its file goes now if it is known that no record names it
    /// (`is_unrecorded`), and otherwise as any that no record names.
    fn drop_ahead(&self, group: GroupId, is_unrecorded: bool);

    /// The close of a group that is shipped is recorded: its own file is put in order.
    fn group_ended(&self, lane: LaneId, group: &Group);

    /// Enough replicas of a closed group, of that generation of its file, are on the disks of their brokers, `with_own` once
    /// this broker's own file is.
    fn group_flushed(&self, lane: LaneId, group: (GroupId, u32), with_own: bool);

    /// Another broker owns the streamlet, or its stream is gone: every append that waits is answered, and no later one is
    /// taken.
    fn deposed(&self);
}
