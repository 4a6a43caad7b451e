//! The consumer groups of the model: leases, reads, commits, expiry, members that do not know.

use std::collections::{BTreeMap, HashMap, HashSet};

use kera_history::{Event, LeaseRef, Order};

use super::{LEASE_STRIDE, Model};

/// What the broker knows of all groups.
#[derive(Debug, Default)]
pub(super) struct Coordinator {
    pub(super) leases: BTreeMap<(u32, u64), BrokerLease>,
    next_lease: u64,
    /// By group and lane: everything below is consumed.
    committed: HashMap<(u32, usize), u64>,
    /// Ordinals consumed out of order.
    finished: HashSet<(u32, usize, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct BrokerLease {
    member: u32,
    lane: usize,
    start: u64,
    end: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: u32,
    pub(super) order: Order,
    members: Vec<Member>,
}

/// A member, as it sees itself.
#[derive(Debug)]
pub struct Member {
    /// Its number in the history, and its inbox.
    client: usize,
    asking: bool,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    lease: u64,
    lane: usize,
    end: Option<u64>,
    next: u64,
    committed: u64,
    /// Reads on their way.
    pending: usize,
}

impl Group {
    pub(super) fn new(id: u32, order: Order, members: usize) -> Self {
        let member = |n| Member {
            // Producers have the first inboxes.
            client: 4 + id as usize * 4 + n,
            asking: false,
            held: Vec::new(),
        };
        Self {
            id,
            order,
            members: (0..members).map(member).collect(),
        }
    }

    /// The connection broke: nothing is on its way any more.
    pub(super) fn lose_reads(&mut self) {
        for member in &mut self.members {
            member.asking = false;
            for held in &mut member.held {
                held.pending = 0;
            }
        }
    }
}

impl Model {
    pub(super) fn member_step(&mut self) {
        if !self.running {
            return;
        }
        let group = self.rng.below(self.groups.len() as u64) as usize;
        let member = self.rng.below(self.groups[group].members.len() as u64) as usize;
        match self.rng.below(20) {
            0..5 => self.acquire(group, member),
            5..14 => {
                let count = 1 + self.rng.below(5) as usize;
                self.read(group, member, count);
            }
            14..17 => self.commit(group, member),
            17 => self.release(group, member),
            18 => self.heartbeat(group, member),
            _ => self.observe_commit(group),
        }
    }

    fn acquire(&mut self, group: usize, member: usize) {
        let asked = self.now();
        let state = &mut self.groups[group].members[member];
        if state.asking || state.held.len() >= 2 {
            return;
        }
        state.asking = true;
        let client = state.client;
        let answer = self
            .grant(group, client as u32)
            .unwrap_or(Event::AcquiredNothing {
                group: group as u32,
                member: client as u32,
                asked,
            });
        self.inboxes[client].push_back(answer);
    }

    fn grant(&mut self, group: usize, member: u32) -> Option<Event> {
        let first = self.rng.below(self.lanes.len() as u64) as usize;
        let most = 1 + self.rng.below(8) as usize;
        let lanes = self.lanes.len();
        let (lane, start, end) = (0..lanes).map(|n| (first + n) % lanes).find_map(|lane| {
            let (start, end) = match self.groups[group].order {
                Order::Lane => self.grant_lane(group as u32, lane)?,
                Order::None => self.grant_range(group as u32, lane, most)?,
            };
            Some((lane, start, end))
        })?;
        self.coordinator.next_lease += LEASE_STRIDE;
        let lease = self.coordinator.next_lease;
        self.coordinator.leases.insert(
            (group as u32, lease),
            BrokerLease {
                member,
                lane,
                start,
                end,
            },
        );
        Some(Event::LeaseGranted {
            lease: LeaseRef {
                group: group as u32,
                lease,
            },
            member,
            lane: self.lanes[lane].lane,
            start,
            end,
        })
    }

    fn committed(&self, group: u32, lane: usize) -> u64 {
        self.coordinator
            .committed
            .get(&(group, lane))
            .copied()
            .unwrap_or(0)
    }

    fn grant_lane(&self, group: u32, lane: usize) -> Option<(u64, Option<u64>)> {
        let mut leases = self.coordinator.leases.range((group, 0)..(group + 1, 0));
        if leases.any(|(_, lease)| lease.lane == lane) {
            return None;
        }
        let log = &self.lanes[lane];
        let start = self.committed(group, lane).max(log.log_start);
        if log.read(start, u64::MAX, 1).is_empty() {
            return None;
        }
        let unfinished = |&(old, boundary): &(usize, u64)| {
            let from = self.committed(group, old).max(self.lanes[old].log_start);
            let mut records = self.lanes[old].records.iter();
            records.any(|r| (from..boundary).contains(&r.0))
        };
        match self.boundaries.get(lane) {
            Some(old) if unfinished(old) => Some((start, Some(old.1))),
            Some(&(_, boundary)) => Some((start.max(boundary), None)),
            // A lane of the new generation waits for all of the old one.
            None if self.boundaries.iter().any(unfinished) => None,
            None => Some((start, None)),
        }
    }

    fn grant_range(&self, group: u32, lane: usize, most: usize) -> Option<(u64, Option<u64>)> {
        let log = &self.lanes[lane];
        let leased = |ordinal: u64| {
            self.coordinator
                .leases
                .range((group, 0)..(group + 1, 0))
                .any(|(_, l)| {
                    l.lane == lane && l.start <= ordinal && l.end.is_none_or(|e| ordinal < e)
                })
        };
        let range: Vec<u64> = log
            .read(log.log_start, u64::MAX, usize::MAX)
            .into_iter()
            .map(|(ordinal, _, _)| ordinal)
            .skip_while(|&o| self.coordinator.finished.contains(&(group, lane, o)) || leased(o))
            .take_while(|&o| !self.coordinator.finished.contains(&(group, lane, o)) && !leased(o))
            .take(most)
            .collect();
        Some((*range.first()?, Some(range.last()? + 1)))
    }

    fn read(&mut self, group: usize, member: usize, count: usize) {
        let member = &mut self.groups[group].members[member];
        let held = self.rng.below(member.held.len() as u64) as usize;
        let Some(held) = member.held.get_mut(held).filter(|held| held.pending == 0) else {
            return;
        };
        let log = &self.lanes[held.lane];
        self.inboxes[member.client].push_back(Event::Polled {
            consumer: member.client as u32,
        });
        for (ordinal, record, key) in log.read(held.next, held.end.unwrap_or(u64::MAX), count) {
            held.pending += 1;
            self.inboxes[member.client].push_back(Event::Read {
                consumer: member.client as u32,
                lease: Some(LeaseRef {
                    group: group as u32,
                    lease: held.lease,
                }),
                lane: log.lane,
                ordinal,
                record: Some(record),
                key: Some(key),
                head: Some(log.head),
            });
        }
    }

    /// The broker's side of a commit: whether the lease is still the member's.
    fn apply_commit(&mut self, group: usize, lease: u64, ordinal: u64, release: bool) -> bool {
        let id = (group as u32, lease);
        let Some(held) = self.coordinator.leases.get(&id).cloned() else {
            return false;
        };
        let (group, lane) = (group as u32, held.lane);
        match held.end {
            Some(_) if self.groups[group as usize].order == Order::None => {
                let log = &self.lanes[lane].records;
                let consumed = log.iter().map(|r| r.0);
                let consumed = consumed.filter(|o| (held.start..ordinal).contains(o));
                self.coordinator
                    .finished
                    .extend(consumed.map(|o| (group, lane, o)));
            }
            _ => {
                let committed = self.coordinator.committed.entry((group, lane)).or_insert(0);
                *committed = ordinal.max(*committed);
            }
        }
        if release || held.end.is_some_and(|end| ordinal >= end) {
            self.coordinator.leases.remove(&id);
        }
        true
    }

    fn commit(&mut self, group: usize, member: usize) {
        let asked = self.now();
        let state = &self.groups[group].members[member];
        let client = state.client;
        let ready = state.held.iter().find(|held| held.next > held.committed);
        let Some((lease, ordinal)) = ready.map(|held| (held.lease, held.next)) else {
            return;
        };
        let reference = LeaseRef {
            group: group as u32,
            lease,
        };
        let event = if self.apply_commit(group, lease, ordinal, false) {
            Event::Committed {
                lease: reference,
                ordinal,
                asked,
            }
        } else {
            Event::LeaseEnded { lease: reference }
        };
        self.inboxes[client].push_back(event);
    }

    fn release(&mut self, group: usize, member: usize) {
        let state = &mut self.groups[group].members[member];
        let client = state.client;
        let Some(index) = state.held.iter().position(|held| held.pending == 0) else {
            return;
        };
        let held = state.held.remove(index);
        let lease = LeaseRef {
            group: group as u32,
            lease: held.lease,
        };
        self.log(Event::LeaseEnded { lease });
        let asked = self.now();
        if self.apply_commit(group, held.lease, held.next, true) {
            self.inboxes[client].push_back(Event::Committed {
                lease,
                ordinal: held.next,
                asked,
            });
        }
    }

    fn heartbeat(&mut self, group: usize, member: usize) {
        let live = &self.coordinator.leases;
        let state = &mut self.groups[group].members[member];
        let gone = |held: &Held| !live.contains_key(&(group as u32, held.lease));
        let Some(index) = state.held.iter().position(gone) else {
            return;
        };
        let lease = LeaseRef {
            group: group as u32,
            lease: state.held.remove(index).lease,
        };
        self.log(Event::LeaseEnded { lease });
    }

    fn observe_commit(&mut self, group: usize) {
        if self.groups[group].order == Order::None {
            return;
        }
        let lane = self.rng.below(self.lanes.len() as u64) as usize;
        let asked = self.now();
        self.log(Event::CommitObserved {
            group: group as u32,
            lane: self.lanes[lane].lane,
            ordinal: self.committed(group as u32, lane),
            asked,
        });
    }

    pub(super) fn expire_lease(&mut self) {
        let live: Vec<_> = self.coordinator.leases.keys().copied().collect();
        if let Some(lease) = self.rng.pick(&live) {
            self.coordinator.leases.remove(lease);
        }
    }

    /// A member got an answer.
    pub(super) fn member_received(&mut self, client: usize, event: Event) {
        let members = self.groups.iter_mut().flat_map(|group| &mut group.members);
        let mut members = members.filter(|member| member.client == client);
        let Some(member) = members.next() else { return };
        let lane_of = |lane| self.lanes.iter().position(|log| log.lane == lane);
        match event {
            Event::AcquiredNothing { .. } => member.asking = false,
            Event::LeaseGranted {
                lease,
                lane,
                start,
                end,
                ..
            } => {
                member.asking = false;
                member.held.push(Held {
                    lease: lease.lease,
                    lane: lane_of(lane).expect("a lease is of a lane"),
                    end,
                    next: start,
                    committed: start,
                    pending: 0,
                });
            }
            Event::Read { lease, ordinal, .. } => {
                let lease = lease.map(|lease| lease.lease);
                if let Some(held) = member.held.iter_mut().find(|h| Some(h.lease) == lease) {
                    held.next = ordinal + 1;
                    held.pending = held.pending.saturating_sub(1);
                }
            }
            Event::Committed { lease, ordinal, .. } => {
                for held in &mut member.held {
                    if held.lease == lease.lease {
                        held.committed = ordinal;
                    }
                }
                member
                    .held
                    .retain(|h| h.end.is_none_or(|end| h.committed < end));
            }
            Event::LeaseEnded { lease } => member.held.retain(|h| h.lease != lease.lease),
            _ => {}
        }
    }

    /// All old leases expire, and the first member of each group consumes what is left.
    pub(super) fn finish_groups(&mut self) {
        self.coordinator.leases.clear();
        for group in 0..self.groups.len() {
            for member in 0..self.groups[group].members.len() {
                while !self.groups[group].members[member].held.is_empty() {
                    self.heartbeat(group, member);
                }
            }
            let client = self.groups[group].members[0].client;
            let mut in_vain = 0;
            while in_vain < 5 {
                self.acquire(group, 0);
                self.receive_all(client);
                if self.groups[group].members[0].held.is_empty() {
                    in_vain += 1;
                    continue;
                }
                self.read(group, 0, usize::MAX);
                self.receive_all(client);
                self.commit(group, 0);
                self.receive_all(client);
                self.release(group, 0);
                self.receive_all(client);
            }
        }
    }

    fn receive_all(&mut self, client: usize) {
        while let Some(event) = self.inboxes[client].pop_front() {
            self.received(client, event);
        }
    }
}
