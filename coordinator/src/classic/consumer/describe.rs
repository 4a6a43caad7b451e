//! Groups of the consumer protocol as their clients' tools see them.

use super::request::{ConsumerDescription, ConsumerMemberDescription};
use crate::classic::{Fault, Reply};
use crate::coordinator::Coordinator;

impl Coordinator {
    /// Of a group of the consumer protocol, or of a share group.
    pub(in crate::classic) fn consumer_describe(
        &self,
        name: &str,
        shares: bool,
    ) -> Result<Reply, Fault> {
        let group = self.state.classic.get(name).ok_or(Fault::GroupNotFound)?;
        let consumer = group.consumer.as_ref();
        let (consumer, refused) = match shares {
            true => (consumer.filter(|consumer| consumer.shares), Fault::NotShare),
            false => (
                consumer.filter(|consumer| !consumer.shares),
                Fault::NotConsumer,
            ),
        };
        let consumer = consumer.ok_or(refused)?;
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
