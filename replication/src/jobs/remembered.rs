//! What jobs remember of streamlets' records, so that a round in which nothing has changed reads nothing.
//!
//! What is remembered tells whether there is anything to do, and no more than that: whoever finds something reads the
//! records again before it acts. So it may be behind, as whatever tells of changes is; the round after sees the rest.
//! Where nobody tells of changes, every look reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Jobs, Owned};
use crate::ids::StreamletKey;
use crate::primary::Primary;
use crate::records::{StreamletRecords, read};

/// Up to which change a streamlet's records were followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Followed {
    /// How often everything was read anew, because changes may have been missed.
    pub loads: u64,
    /// Changes of the streamlet and its groups since, as far as they were told.
    pub changes: u64,
}

/// Says how far this broker has followed a streamlet's records; `None`: it does not.
pub type FollowedNow = Box<dyn Fn(StreamletKey) -> Option<Followed> + Send + Sync>;

/// Records of streamlets, and how far they were followed when they were read.
pub(super) type Remembered = BTreeMap<StreamletKey, (Followed, Arc<StreamletRecords>)>;

impl Jobs {
    /// Says how far streamlets' records are followed. Only the first word counts.
    pub fn set_followed(&self, followed: FollowedNow) {
        let _only_once = self.followed.set(followed);
    }

    /// Forgets what is known of streamlets that are not this broker's any more.
    pub(super) fn forget_others(&self, is_owned: impl Fn(&StreamletKey) -> bool) {
        self.remembered.lock().retain(|key, _| is_owned(key));
        self.lists.lock().retain(&is_owned);
        let mut missing = self.missing.lock();
        missing.retain(|copy, _| is_owned(&copy.streamlet));
    }

    /// A streamlet's records as they were when it last changed, as far as that is known; `None` if they cannot be
    /// read, or the streamlet is another broker's.
    pub(super) async fn remembered(
        &self,
        primary: &Primary,
        owned: &Owned,
    ) -> Option<Arc<StreamletRecords>> {
        let streamlet = owned.streamlet;
        // Before they are read: what changes meanwhile has them read again.
        let now = self.followed.get().and_then(|followed| followed(streamlet));
        let is_mine = |found: &StreamletRecords| found.streamlet.epoch == owned.epoch;
        if let Some((then, found)) = self.remembered.lock().get(&streamlet)
            && now == Some(*then)
            && is_mine(found)
        {
            return Some(found.clone());
        }
        let found = read(&primary.records, &*primary.runtime, streamlet).await;
        let found = Arc::new(found.ok().filter(is_mine)?);
        if let Some(now) = now {
            let entry = (now, found.clone());
            self.remembered.lock().insert(streamlet, entry);
        }
        Some(found)
    }
}
