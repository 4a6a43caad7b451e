//! The last changes of a store in memory, and who watches them.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::cluster::{Change, Changes, WatchLost, Watched};

/// Transactions that are kept for watches that begin later.
const KEPT: usize = 16_384;
/// Transactions that wait for one watcher.
const BEHIND: usize = 4096;

#[derive(Default)]
pub(crate) struct History {
    /// The newest transactions, oldest first.
    kept: VecDeque<(u64, Vec<Change>)>,
    /// Transactions up to this revision are not kept.
    forgotten: u64,
    last: u64,
    watchers: Vec<mpsc::Sender<Watched>>,
}

impl History {
    /// One that begins after `revision`.
    pub(crate) fn since(revision: u64) -> Self {
        Self {
            forgotten: revision,
            last: revision,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, revision: u64, changes: Vec<Change>) {
        self.last = revision;
        let told = Changes { changes, revision };
        // Whoever fell behind sees its channel end.
        self.watchers
            .retain(|watcher| watcher.try_send(Ok(told.clone())).is_ok());
        let changes = told.changes;
        self.kept.push_back((revision, changes));
        if self.kept.len() > KEPT
            && let Some((revision, _)) = self.kept.pop_front()
        {
            self.forgotten = revision;
        }
    }

    /// The revision of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn forget(&mut self) {
        self.kept.clear();
        self.forgotten = self.last;
    }

    pub(crate) fn watch(&mut self, after: u64) -> mpsc::Receiver<Watched> {
        let missed = self.kept.iter().filter(|(revision, _)| *revision > after);
        let missed = missed.map(|(revision, changes)| Changes {
            changes: changes.clone(),
            revision: *revision,
        });
        let missed: Vec<_> = missed.collect();
        let (sender, receiver) = mpsc::channel(BEHIND + missed.len());
        if after < self.forgotten {
            let detail = format!("changes up to revision {} are forgotten", self.forgotten);
            // The channel is new and has room.
            let _ = sender.try_send(Err(WatchLost { detail }));
            return receiver;
        }
        for changes in missed {
            let _ = sender.try_send(Ok(changes));
        }
        self.watchers.push(sender);
        receiver
    }
}
