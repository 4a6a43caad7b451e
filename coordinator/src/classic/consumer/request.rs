//! Requests about groups of the consumer protocol and their answers, in plain types.

use super::state::Partitions;
use crate::classic::GroupState;

/// A heartbeat of a member of a group of the consumer protocol. What is `None` is as it said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerHeartbeat {
    /// The group's id; made if a member joins.
    pub group: String,
    /// The member's id, which it chose itself.
    pub member: String,
    /// Its epoch as it knows it; 0 joins, [`LEAVE_EPOCH`](super::LEAVE_EPOCH) and [`LEAVE_FOR_A_WHILE_EPOCH`](super::LEAVE_FOR_A_WHILE_EPOCH) leave.
    pub epoch: i32,
    /// The name that makes it a static member.
    pub instance: Option<String>,
    /// Where it is.
    pub rack: Option<String>,
    /// How long it may take to give back partitions, milliseconds.
    pub rebalance_ms: Option<u32>,
    /// Topics that it subscribes to.
    pub topics: Option<Vec<String>>,
    /// A regular expression for further topics; empty for none.
    pub pattern: Option<String>,
    /// How it would have the work divided; empty without a wish.
    pub assignor: Option<String>,
    /// The partitions that it owns.
    pub owned: Option<Partitions>,
    /// Name of the client, for people.
    pub client_id: String,
    /// Where the client connects from.
    pub client_host: String,
    /// The user that it has proved to be.
    pub user: Option<String>,
}

/// A heartbeat of a member of a share group. What is `None` is as it said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareHeartbeat {
    /// The group's id; made if a member joins.
    pub group: String,
    /// The member's id, which it chose itself.
    pub member: String,
    /// Its epoch as it knows it; 0 joins, [`LEAVE_EPOCH`](super::LEAVE_EPOCH) leaves.
    pub epoch: i32,
    /// Where it is.
    pub rack: Option<String>,
    /// Topics that it subscribes to.
    pub topics: Option<Vec<String>>,
    /// Name of the client, for people.
    pub client_id: String,
    /// Where the client connects from.
    pub client_host: String,
}

/// The answer to a [`ConsumerHeartbeat`], or a [`ShareHeartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerBeat {
    /// The member's epoch from now on.
    pub epoch: i32,
    /// When the next heartbeat is due, milliseconds.
    pub heartbeat_ms: u32,
    /// What it has from now on, if that changed or it may not know.
    pub assignment: Option<Partitions>,
}

/// A group of the consumer protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerDescription {
    /// What it is doing.
    pub state: GroupState,
    /// Its epoch, and that of what members are to have.
    pub epoch: i32,
    /// How the work is divided.
    pub assignor: String,
    /// Its members.
    pub members: Vec<ConsumerMemberDescription>,
}

/// A member of such a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerMemberDescription {
    /// Its id.
    pub member: String,
    /// Its name, if it is a static member.
    pub instance: Option<String>,
    /// Where it is, if it says so.
    pub rack: Option<String>,
    /// Its epoch.
    pub epoch: i32,
    /// Name of its client.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Topics that it subscribes to by name.
    pub topics: Vec<String>,
    /// Its regular expression for topics; empty without one.
    pub pattern: String,
    /// What it has.
    pub assigned: Partitions,
    /// What it is to have.
    pub target: Partitions,
}
