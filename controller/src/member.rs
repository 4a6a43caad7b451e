//! The brokers that are alive, as decisions need them.

use std::collections::{BTreeMap, BTreeSet};

use kera_metadata::{LiveBroker, LiveState, Role};

/// A broker that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: u32,
    /// The machine it runs on: one machine holds one copy of a group.
    pub host: String,
    /// What fails together beyond the machine, if that is told.
    pub rack: Option<String>,
    /// Whether it may own streamlets at all.
    pub role: Role,
    /// It serves what it owns and is to own nothing.
    pub draining: bool,
    /// It cannot write its own files, and so is given nothing more.
    pub cannot_write: bool,
}

impl Member {
    /// A broker on a machine, without a rack, that does not drain.
    pub fn new(id: u32, host: impl Into<String>) -> Self {
        Self {
            id,
            host: host.into(),
            rack: None,
            role: Role::Broker,
            draining: false,
            cannot_write: false,
        }
    }

    /// True if it may own more: a broker that does not drain and can write its own files. A replica store never is given
    /// any.
    fn may_own(&self) -> bool {
        self.role == Role::Broker && !self.draining && !self.cannot_write
    }
}

impl From<&LiveBroker> for Member {
    fn from(live: &LiveBroker) -> Self {
        Self {
            id: live.id,
            host: live.host.clone(),
            rack: live.rack.clone(),
            role: live.role,
            draining: live.state == LiveState::Draining,
            cannot_write: live.cannot_write.is_some(),
        }
    }
}

/// Over how much copies are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Apart {
    /// Racks; a broker of which none is known stands in one of its own.
    pub(super) racks: usize,
    /// Machines.
    pub(super) hosts: usize,
}

/// All brokers that are alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    by_id: BTreeMap<u32, Member>,
    /// Where brokers that are not alive any more ran, as far as that is remembered.
    racks_of_gone: BTreeMap<u32, String>,
    allow_same_host: bool,
}

impl Members {
    /// These brokers; `allow_same_host` lets one machine hold several copies of a group.
    pub fn new(members: impl IntoIterator<Item = Member>, allow_same_host: bool) -> Self {
        Self {
            by_id: members.into_iter().map(|one| (one.id, one)).collect(),
            racks_of_gone: BTreeMap::new(),
            allow_same_host,
        }
    }

    /// The same, remembering where brokers ran that were alive once: what fails in a rack is better not
    /// taken over there.
    pub fn remembering<'a>(mut self, known: impl IntoIterator<Item = &'a Member>) -> Self {
        for member in known {
            if let (false, Some(rack)) = (self.lives(member.id), &member.rack) {
                self.racks_of_gone.insert(member.id, rack.clone());
            }
        }
        self
    }

    /// The rack that a broker runs or ran in, if it is known.
    pub fn rack_of(&self, id: u32) -> Option<&str> {
        let living = self.get(id).and_then(|member| member.rack.as_deref());
        living.or_else(|| self.racks_of_gone.get(&id).map(String::as_str))
    }

    /// True if the broker is alive.
    pub fn lives(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A broker that is alive.
    pub fn get(&self, id: u32) -> Option<&Member> {
        self.by_id.get(&id)
    }

    /// Every broker that is alive, by number.
    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values()
    }

    /// Those that may own more: alive, brokers, not draining, and able to write their own files.
    pub fn targets(&self) -> impl Iterator<Item = &Member> {
        self.all().filter(|member| member.may_own())
    }

    /// True if the broker may own more.
    pub fn is_target(&self, id: u32) -> bool {
        self.get(id).is_some_and(Member::may_own)
    }

    /// Those that may hold more copies: alive and not draining, replica stores among them.
    pub(super) fn staying(&self) -> impl Iterator<Item = &Member> {
        self.all().filter(|member| !member.draining)
    }

    /// True if the broker, or replica store, may hold more copies.
    pub(super) fn stays(&self, id: u32) -> bool {
        self.get(id).is_some_and(|member| !member.draining)
    }

    /// Over how many racks and machines copies at `brokers` are spread.
    pub(super) fn apart(&self, brokers: &[u32]) -> Apart {
        let racks = brokers.iter().map(|id| self.rack_of(*id).ok_or(*id));
        let host = |id: &u32| self.get(*id).map(|member| member.host.as_str());
        let hosts = brokers.iter().map(|id| host(id).ok_or(*id));
        Apart {
            racks: racks.collect::<BTreeSet<_>>().len(),
            hosts: hosts.collect::<BTreeSet<_>>().len(),
        }
    }

    /// The most copies that a group can have at the living brokers, without those of `but`.
    pub fn most_copies(&self, but: Option<u32>) -> usize {
        self.copies_at(self.all().filter(|member| Some(member.id) != but))
    }

    /// The same of those that do not drain.
    pub(super) fn most_copies_staying(&self, but: u32) -> usize {
        self.copies_at(self.staying().filter(|member| member.id != but))
    }

    /// The same, counted up to `enough`: no more brokers are looked at than that takes.
    pub(super) fn copies_up_to(&self, enough: usize, but: u32) -> usize {
        let mut hosts = BTreeSet::new();
        let mut copies = 0;
        for member in self.all().filter(|member| member.id != but) {
            if copies >= enough {
                break;
            }
            let counts = self.allow_same_host || hosts.insert(member.host.as_str());
            copies += usize::from(counts);
        }
        copies
    }

    fn copies_at<'a>(&self, counted: impl Iterator<Item = &'a Member>) -> usize {
        if self.allow_same_host {
            return counted.count();
        }
        let hosts = counted.map(|member| member.host.as_str());
        hosts.collect::<BTreeSet<_>>().len()
    }
}
