//! Describing, listing and deleting classic groups.

use bytes::Bytes;

use super::join::check_group_id;
use super::request::{DescribedMember, Description, Fault, GroupState, Listing, Reply};
use super::shares::SHARE;
use crate::coordinator::{Coordinator, Step};
use crate::event::{Body, GroupDeleted};

impl Coordinator {
    /// Every classic group, sorted by id.
    pub fn classic_groups(&self) -> Vec<Listing> {
        self.classic
            .iter()
            .map(|(group, live)| Listing {
                group: group.clone(),
                protocol_type: live.protocol_type.clone(),
                state: live.state,
                is_consumer: live.consumer.is_some() && live.protocol_type != SHARE,
                is_share: live.consumer.is_some() && live.protocol_type == SHARE,
            })
            .collect()
    }

    pub(super) fn classic_describe(&self, group: &str) -> Result<Reply, Fault> {
        let live = self.classic_live(group)?;
        if live.consumer.is_some() {
            return Err(Fault::NotClassic);
        }
        let stable = live.state == GroupState::Stable;
        let shown = |bytes: Bytes| if stable { bytes } else { Bytes::new() };
        Ok(Reply::Described(Description {
            state: live.state,
            protocol_type: live.protocol_type.clone(),
            protocol: if stable {
                live.protocol.clone()
            } else {
                String::new()
            },
            members: live
                .members
                .iter()
                .map(|(id, member)| DescribedMember {
                    member: id.clone(),
                    instance: member.info.instance.clone(),
                    client_id: member.info.client_id.clone(),
                    client_host: member.info.client_host.clone(),
                    metadata: shown(member.info.metadata(&live.protocol)),
                    assignment: shown(member.info.assignment.clone()),
                })
                .collect(),
        }))
    }

    pub(super) fn classic_delete(&mut self, group: &str, step: &mut Step) -> Result<Reply, Fault> {
        check_group_id(group, &self.limits.classic)?;
        let live = self.classic_live(group)?;
        if live.state != GroupState::Empty {
            return Err(Fault::NonEmptyGroup);
        }
        self.classic_forget_group(group, step);
        Ok(Reply::Deleted)
    }

    pub(crate) fn classic_forget_group(&mut self, group: &str, step: &mut Step) {
        self.emit(step, group, Body::GroupDeleted(GroupDeleted {}));
        self.classic.remove(group);
    }
}
