//! Short ways to speak to classic groups.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_coordinator::Request as AnyRequest;
use kera_coordinator::classic::{
    CommitOffsets, CommittedOffset, Description, Fault, FetchOffsets, GroupState, Heartbeat,
    JoinGroup, Joined, LeaveGroup, OffsetToCommit, Reply, Request, SyncGroup, Synced,
};
use kera_coordinator::{Coordinator, Event, Limits, Replay, Reply as AnyReply};
use kera_protocol::ids::StreamId;
use kera_protocol::v1::LaneBy;

use crate::support::{Bench, FakeStream};

pub const GROUP: &str = "g";

/// A consumer's metadata for these topics, followed by `rest`.
pub fn subscription(topics: &[&str], rest: &[u8]) -> Bytes {
    let mut out = vec![0, 1];
    out.extend((topics.len() as i32).to_be_bytes());
    for topic in topics {
        out.extend((topic.len() as i16).to_be_bytes());
        out.extend(topic.as_bytes());
    }
    out.extend(rest);
    out.into()
}

pub struct World {
    pub bench: Bench,
    fresh: u32,
}

impl World {
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Self {
        let mut bench = Bench::new(FakeStream::new(2, 1, LaneBy::Key));
        bench.coordinator = Coordinator::new(limits);
        Self { bench, fresh: 0 }
    }

    pub fn stream(&self) -> StreamId {
        self.bench.stream.shape.id
    }

    pub fn join_request(&mut self, member: &str) -> JoinGroup {
        self.fresh += 1;
        JoinGroup {
            group: GROUP.into(),
            member: member.into(),
            fresh_member: format!("m{}", self.fresh),
            client_id: "client".into(),
            client_host: "/127.0.0.1".into(),
            session_ms: 10_000,
            rebalance_ms: 30_000,
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), subscription(&["s"], b""))],
            ..JoinGroup::default()
        }
    }

    pub fn send(&mut self, request: Request) -> u64 {
        self.bench.send(AnyRequest::Classic(request))
    }

    /// The answer to a request; `None` while it waits.
    pub fn answer(&mut self, ticket: u64) -> Option<Reply> {
        match self.bench.replies.remove(&ticket)? {
            Ok(AnyReply::Classic(reply)) => Some(reply),
            other => panic!("a classic request was answered with {other:?}"),
        }
    }

    pub fn call(&mut self, request: Request) -> Reply {
        let ticket = self.send(request);
        self.answer(ticket).expect("answered at once")
    }

    pub fn refused(&mut self, request: Request) -> Fault {
        match self.call(request) {
            Reply::Refused(fault) => fault,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    pub fn joined(&mut self, ticket: u64) -> Joined {
        match self.answer(ticket) {
            Some(Reply::Joined(joined)) => joined,
            other => panic!("expected to have joined, got {other:?}"),
        }
    }

    pub fn synced(&mut self, ticket: u64) -> Synced {
        match self.answer(ticket) {
            Some(Reply::Synced(synced)) => synced,
            other => panic!("expected to have synced, got {other:?}"),
        }
    }

    pub fn fault(&mut self, ticket: u64) -> Fault {
        match self.answer(ticket) {
            Some(Reply::Refused(fault)) => fault,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    pub fn join(&mut self, member: &str) -> u64 {
        let request = self.join_request(member);
        self.send(Request::Join(request))
    }

    pub fn join_static(&mut self, instance: &str) -> u64 {
        let mut request = self.join_request("");
        request.instance = Some(instance.into());
        self.send(Request::Join(request))
    }

    pub fn sync(&mut self, member: &str, generation: i32, shares: &[(&str, &str)]) -> u64 {
        self.send(Request::Sync(SyncGroup {
            group: GROUP.into(),
            member: member.into(),
            generation,
            assignments: shares
                .iter()
                .map(|(member, share)| {
                    (member.to_string(), Bytes::copy_from_slice(share.as_bytes()))
                })
                .collect::<BTreeMap<_, _>>(),
            ..SyncGroup::default()
        }))
    }

    pub fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), Fault> {
        match self.call(Request::Heartbeat(Heartbeat {
            group: GROUP.into(),
            member: member.into(),
            instance: None,
            generation,
        })) {
            Reply::Alive => Ok(()),
            Reply::Refused(fault) => Err(fault),
            other => panic!("heartbeat answered {other:?}"),
        }
    }

    pub fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Result<(), Fault>> {
        let members = members
            .iter()
            .map(|(member, instance)| (member.to_string(), instance.map(str::to_owned)))
            .collect();
        let group = GROUP.into();
        match self.call(Request::Leave(LeaveGroup { group, members })) {
            Reply::Left(results) => results,
            other => panic!("leave answered {other:?}"),
        }
    }

    pub fn commit_request(
        &self,
        member: &str,
        generation: i32,
        offsets: &[(u32, i64)],
    ) -> CommitOffsets {
        let stream = self.stream();
        CommitOffsets {
            group: GROUP.into(),
            client_host: String::new(),
            member: member.into(),
            generation,
            offsets: offsets
                .iter()
                .map(|&(partition, offset)| OffsetToCommit {
                    stream,
                    partition,
                    offset,
                    leader_epoch: 3,
                    metadata: format!("at {offset}"),
                })
                .collect(),
            ..CommitOffsets::default()
        }
    }

    pub fn commit(
        &mut self,
        member: &str,
        generation: i32,
        offsets: &[(u32, i64)],
    ) -> Result<(), Fault> {
        let request = self.commit_request(member, generation, offsets);
        match self.call(Request::Commit(request)) {
            Reply::Committed(results) => results.into_iter().collect(),
            Reply::Refused(fault) => Err(fault),
            other => panic!("commit answered {other:?}"),
        }
    }

    pub fn fetch(&mut self) -> Vec<(u32, CommittedOffset)> {
        let group = GROUP.into();
        match self.call(Request::Fetch(FetchOffsets {
            group,
            partitions: None,
            max_bytes: usize::MAX,
            require_stable: false,
            member: None,
        })) {
            Reply::Offsets(offsets) => offsets
                .into_iter()
                .map(|(_, partition, offset)| (partition, offset.unwrap()))
                .collect(),
            other => panic!("fetch answered {other:?}"),
        }
    }

    pub fn describe(&mut self) -> Description {
        match self.call(Request::Describe(GROUP.into())) {
            Reply::Described(description) => description,
            other => panic!("describe answered {other:?}"),
        }
    }

    pub fn state(&mut self) -> GroupState {
        self.describe().state
    }

    /// Members that joined generation 1 and have their shares; the first one leads.
    pub fn stable(&mut self, members: usize) -> Vec<String> {
        let mut ids = Vec::new();
        let mut pending = Vec::new();
        for _ in 0..members {
            let mut request = self.join_request("");
            request.require_known_member = true;
            match self.refused(Request::Join(request)) {
                Fault::MemberIdRequired(id) => ids.push(id),
                other => panic!("expected an id, got {other:?}"),
            }
        }
        for id in &ids {
            pending.push(self.join(id));
        }
        let joined: Vec<Joined> = pending.into_iter().map(|t| self.joined(t)).collect();
        let generation = joined[0].generation;
        let shares: Vec<(String, String)> = ids
            .iter()
            .map(|id| (id.clone(), format!("share of {id}")))
            .collect();
        let shares: Vec<(&str, &str)> = shares
            .iter()
            .map(|(id, share)| (id.as_str(), share.as_str()))
            .collect();
        for id in ids.iter().skip(1) {
            let ticket = self.sync(id, generation, &[]);
            assert!(self.answer(ticket).is_none(), "the leader has not synced");
            let ticket = self.sync(id, generation, &[]);
            self.bench.coordinator.cancel(ticket);
        }
        let ticket = self.sync(&ids[0], generation, &shares);
        self.synced(ticket);
        for id in ids.iter().skip(1) {
            let ticket = self.sync(id, generation, &[]);
            let share = self.synced(ticket).assignment;
            assert_eq!(share, format!("share of {id}").as_bytes());
        }
        self.bench.replies.clear();
        ids
    }

    /// The coordinator as it would be after a restart.
    pub fn restart(&mut self) {
        let replayed = replay(&self.bench.events, self.bench.now);
        assert!(replayed.same_durable_state(&self.bench.coordinator));
        self.bench.coordinator = replayed;
    }
}

pub fn replay(events: &[Event], now: u64) -> Coordinator {
    let mut replay = Replay::new();
    for event in events {
        replay.apply(&Event::decode(event.key(), &event.value()).unwrap());
    }
    let (coordinator, report) = replay.finish(Limits::default(), now);
    assert_eq!(report.ignored, 0, "every event fits");
    coordinator
}
