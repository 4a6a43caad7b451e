//! Groups of the consumer protocol as their clients' tools see them.

use super::state::Partitions;
use crate::classic::{Fault, GroupState, Reply};
use crate::coordinator::Coordinator;

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

impl Coordinator {
    pub(in crate::classic) fn consumer_describe(&self, name: &str) -> Result<Reply, Fault> {
        let group = self.state.classic.get(name).ok_or(Fault::GroupNotFound)?;
        let consumer = group.consumer.as_ref().ok_or(Fault::NotConsumer)?;
        let members = consumer.members.iter();
        let members = members.map(|(id, member)| ConsumerMemberDescription {
            member: id.clone(),
            instance: member.instance.clone(),
            rack: member.rack.clone(),
            epoch: member.epoch,
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            topics: member.topics.iter().cloned().collect(),
            pattern: member.pattern.clone(),
            assigned: member.assigned.clone(),
            target: consumer.target_of(id),
        });
        Ok(Reply::ConsumerDescribed(ConsumerDescription {
            state: self.classic_live(name)?.state,
            epoch: group.generation,
            assignor: group.protocol.clone(),
            members: members.collect(),
        }))
    }
}
