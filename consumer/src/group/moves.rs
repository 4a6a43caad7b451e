//! What of its leases a member reads, where it chooses.

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::Cursor;

use super::lease_key::LeaseKey;
use super::leases::{NotMoved, Place};
use super::session::Group;
use crate::config::{Order, Seek};
use crate::error::ConsumeError;
use crate::fetch::SourceSpec;
use crate::find::find_in_lane;

/// What comes of a lane that was to go back while nobody knows what is committed of it.
const NOT_MOVED: &str = "they may have taken effect, so the lane goes on where it stood: see that the brokers can be reached, and seek again";

impl Group {
    pub(crate) fn order(&self) -> Order {
        self.settings.order
    }

    /// No lease of the lane is read from now on.
    pub(crate) fn pause(&self, lane: Place) {
        let _reading = self.reading.lock();
        let sources = self.leases.lock().pause(lane);
        for source in sources {
            self.fetcher.remove(source);
        }
    }

    /// Leases of the lane are read again.
    pub(crate) fn resume(&self, lane: Place) {
        let _reading = self.reading.lock();
        let unread = self.leases.lock().resume(lane);
        self.read(unread);
    }

    /// The lanes that are paused.
    pub(crate) fn paused(&self) -> Vec<Place> {
        self.leases.lock().paused()
    }

    /// True if the lease is one of the lane.
    pub(crate) fn is_of(&self, lease: LeaseKey, lane: Place) -> bool {
        self.leases.lock().is_of(lease, lane)
    }

    /// Has the lane go on at `to`. Up to where it was delivered before. Waits for the answer of a commit beyond that, no longer
    /// than [`commit`](Self::commit) does.
    ///
    /// # Errors
    /// If no lease of it is held, or what is to be delivered again is committed, or nobody knows whether it is.
    pub(crate) async fn seek(&self, lane: Place, to: Cursor) -> Result<Ordinal, ConsumeError> {
        let limit = self.commit_limit();
        let moved = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if let Some(error) = self.fatal() {
                    return Err(error);
                }
                match self.try_seek(lane, to) {
                    Ok(stood) => return Ok(stood),
                    Err(NotMoved::UnderWay) => {
                        // Its answer may be lost, and whoever made it may wait no more: then nobody sends it again.
                        self.commit_marked();
                        settled.await;
                    }
                    Err(NotMoved::NotHeld) => {
                        let (streamlet, lane) = lane;
                        return Err(ConsumeError::NotHeld { streamlet, lane });
                    }
                    Err(NotMoved::Committed(lane, committed)) => {
                        return Err(ConsumeError::Committed { lane, committed });
                    }
                }
            }
        };
        match tokio::time::timeout(limit, moved).await {
            Ok(moved) => moved,
            Err(_) => Err(self.unanswered(limit, NOT_MOVED)),
        }
    }

    /// As [`seek`](Self::seek), at once.
    fn try_seek(&self, lane: Place, to: Cursor) -> Result<Ordinal, NotMoved> {
        let _reading = self.reading.lock();
        let (stood, sources, unread) = {
            let mut leases = self.leases.lock();
            let (stood, sources) = leases.seek(lane, to)?;
            (stood, sources, leases.unread(lane))
        };
        for source in sources {
            self.fetcher.remove(source);
        }
        self.read(unread);
        self.commits.notify_one();
        Ok(stood)
    }

    /// Where the lane has what `to` names.
    ///
    /// # Errors
    /// If the broker does not answer, or the stream has no such lane.
    pub(crate) async fn find(&self, lane: Place, to: Seek) -> Result<Cursor, ConsumeError> {
        find_in_lane(&self.client, &self.settings.stream, lane, to).await
    }

    /// Reads leases that nothing reads. Call with `reading` locked.
    pub(super) fn read(&self, unread: Vec<(LeaseKey, SourceSpec)>) {
        let (leases, specs): (Vec<_>, Vec<_>) = unread.into_iter().unzip();
        let sources = self.fetcher.add(specs);
        for (lease, source) in leases.into_iter().zip(sources) {
            // A heartbeat may have been told meanwhile that it is lost.
            if !self.leases.lock().set_source(lease, source) {
                self.fetcher.remove(source);
            }
        }
    }
}
