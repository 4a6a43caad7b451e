//! Copies of closed groups: who is said to hold them, and what comes of reading there.

use kera_protocol::error::ErrorCode;
use kera_protocol::v1;

use super::{Fake, State};

/// A closed group of which there are copies.
#[derive(Clone)]
pub(crate) struct Group {
    pub lane: (u32, u32),
    pub first: u64,
    pub end: u64,
    /// Brokers that hold it, in the order they are named.
    pub holders: Vec<usize>,
    /// Of those, whose bytes are not whole.
    pub damaged: Vec<usize>,
}

/// A read or a subscription, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub member: usize,
    pub ordinal: u64,
    pub from_copy: bool,
}

impl State {
    /// Where the copy ends that a broker is asked for.
    pub(super) fn copy_end(
        &self,
        member: usize,
        lane: (u32, u32),
        from: u64,
    ) -> Result<u64, ErrorCode> {
        let mut groups = self.groups.iter().filter(|group| group.lane == lane);
        let group = groups.find(|group| (group.first..group.end).contains(&from));
        match group.filter(|group| group.holders.contains(&member)) {
            None => Err(ErrorCode::NotOwner),
            Some(group) if group.damaged.contains(&member) => Err(ErrorCode::Damaged),
            Some(group) => Ok(group.end),
        }
    }
}

impl Fake {
    /// Closes a group of which these brokers hold copies.
    pub(crate) fn close_group(&self, lane: (u32, u32), first: u64, end: u64, holders: &[usize]) {
        let group = Group {
            lane,
            first,
            end,
            holders: holders.to_vec(),
            damaged: Vec::new(),
        };
        self.state.lock().groups.push(group);
    }

    /// Answers who holds copies.
    pub(super) fn find(&self, request: &v1::FindCopiesRequest) -> v1::FindCopiesResponse {
        let lane = (request.streamlet, request.lane);
        let state = self.state.lock();
        let groups = state.groups.iter().zip(1..);
        let groups = groups.filter(|(g, _)| g.lane == lane && g.end > request.ordinal);
        let brokers = self.members.iter().zip(&state.racks).zip(0..);
        v1::FindCopiesResponse {
            groups: groups
                .map(|(group, number)| v1::GroupInfo {
                    group: number,
                    first_ordinal: group.first,
                    end_ordinal: group.end,
                    closed: true,
                    holders: group.holders.iter().map(|holder| *holder as u32).collect(),
                    ..v1::GroupInfo::default()
                })
                .collect(),
            brokers: brokers
                .map(|((member, rack), broker)| v1::CopyHolder {
                    broker,
                    address: member.data_address.clone(),
                    rack: (*rack).to_owned(),
                })
                .collect(),
        }
    }
}
