//! The share sessions of a connection.

use std::collections::{HashMap, HashSet};

use kafka_protocol::error::ResponseError;
use kera_broker::Shared;
use kera_broker::shares::Attached;
use kera_coordinator::share::Holder;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::fetch::{Held, MAX_PARTITIONS, SessionRoom};
use crate::refusal::Refusal;

/// Sessions of one connection; a client has one for each of its consumers, and most have one.
const MOST_SESSIONS: usize = 16;
/// Bytes of a group's or a member's name, as the coordinator takes them.
pub(super) const MOST_NAME_BYTES: usize = 1_024;
/// So many bytes of a session's names take as much room as a partition.
const NAMES_OF_A_PARTITION: usize = 128;
/// The epoch of a request that begins a session,
pub(super) const BEGINS: i32 = 0;
/// and of one that ends it.
pub(super) const ENDS: i32 = -1;

/// A partition: its topic, and its number.
pub(super) type Key = (Uuid, i32);

/// The sessions of a connection, by group and member. The one whose request is answered is not among them.
#[derive(Default)]
pub(crate) struct ShareSessions(Mutex<HashMap<(String, String), ShareSession>>);

/// What a member reads at this broker, and what it has acquired.
pub(super) struct ShareSession {
    pub(super) holder: Holder,
    next_epoch: i32,
    /// What is read for it, in the order in which it gets its turn.
    pub(super) wanted: Vec<Key>,
    /// The same.
    index: HashSet<Key>,
    /// Where the next round begins.
    pub(super) begin: usize,
    /// Partitions in which it may hold locks.
    pub(super) attached: HashMap<Key, Attached>,
    held: Option<Held>,
}

impl ShareSessions {
    /// The session that a request is of; a new one if it begins one. Give it back with [`Self::put_back`]: otherwise it ends,
    /// and its locks with it.
    pub(super) fn take(
        &self,
        shared: &Shared,
        who: &(String, String),
        epoch: i32,
    ) -> Result<ShareSession, Refusal> {
        let mut sessions = self.0.lock();
        let known = sessions.get(who).map(|session| session.next_epoch);
        match (known, epoch) {
            (None, BEGINS) if sessions.len() >= MOST_SESSIONS => {
                let text = format!(
                    "a connection has {MOST_SESSIONS} share sessions at most; take another one"
                );
                Err(Refusal::new(ResponseError::ShareSessionLimitReached, text))
            }
            (None, BEGINS) => Ok(ShareSession {
                holder: shared.shares.new_holder(),
                next_epoch: 1,
                wanted: Vec::new(),
                index: HashSet::new(),
                begin: 0,
                attached: HashMap::new(),
                held: None,
            }),
            (None, _) => Err(Refusal::new(
                ResponseError::ShareSessionNotFound,
                "the connection has no such share session; begin one with epoch 0",
            )),
            (Some(next), _) if ![BEGINS, ENDS, next].contains(&epoch) => Err(Refusal::new(
                ResponseError::InvalidShareSessionEpoch,
                format!("the epoch of the share session is {next} by now, and not {epoch}"),
            )),
            (Some(_), _) => {
                let mut session = sessions.remove(who);
                if let Some(session) = &mut session {
                    if epoch == BEGINS {
                        // What it has acquired stays its own.
                        session.wanted.clear();
                        session.index.clear();
                        session.next_epoch = 0;
                    }
                    session.next_epoch = session.next_epoch.checked_add(1).unwrap_or(1);
                }
                session.ok_or_else(|| {
                    Refusal::new(ResponseError::ShareSessionNotFound, "there is none")
                })
            }
        }
    }

    pub(super) fn put_back(&self, who: (String, String), session: ShareSession) {
        self.0.lock().insert(who, session);
    }
}

impl ShareSession {
    pub(super) fn want(&mut self, key: Key) -> Result<(), Refusal> {
        if self.index.contains(&key) {
            return Ok(());
        }
        if self.wanted.len() >= MAX_PARTITIONS {
            let text = format!("a share session has {MAX_PARTITIONS} partitions at most");
            return Err(Refusal::new(ResponseError::InvalidRequest, text));
        }
        self.index.insert(key);
        self.wanted.push(key);
        Ok(())
    }

    pub(super) fn forget(&mut self, key: Key) {
        if self.index.remove(&key) {
            self.wanted.retain(|wanted| *wanted != key);
            self.begin = 0;
        }
    }

    /// Counts its partitions and names among those of all connections; leaves partitions that it neither reads nor holds
    /// anything of.
    pub(super) fn hold(
        &mut self,
        (group, member): &(String, String),
        room: &SessionRoom,
    ) -> Result<(), Refusal> {
        let wanted = &self.index;
        self.attached
            .retain(|key, attached| wanted.contains(key) || attached.holds_any());
        self.held = None;
        let names = (group.len() + member.len()) / NAMES_OF_A_PARTITION;
        self.held = room.hold(self.wanted.len() + self.attached.len() + names);
        match self.held {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                ResponseError::ShareSessionLimitReached,
                "sessions of all clients have as many partitions as they may (kafka.max_fetch_session_partitions); raise it, or read fewer",
            )),
        }
    }
}
