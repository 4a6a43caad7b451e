//! What other brokers hold of this broker's streamlets. Each is asked in every round, and sends what has changed since
//! the round before: the rest is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Jobs;
use crate::ids::{BrokerId, CopyId, StreamletKey};
use crate::primary::Primary;
use crate::primary::tidy::List;
use crate::runtime::{Local, all};
use crate::transport::{
    ChangedList, CopyInfo, CopyState, KnownList, ListTag, MAX_LISTS, Reply, Request,
};

/// The list that a broker sent last of a streamlet.
#[derive(Clone)]
struct Told {
    tag: Option<ListTag>,
    copies: Arc<BTreeMap<CopyId, CopyInfo>>,
}

/// Lists of one broker; streamlets of which it holds nothing are there as well.
type Lists = BTreeMap<StreamletKey, Told>;

/// What brokers sent last.
#[derive(Default)]
pub(super) struct Remembered(BTreeMap<BrokerId, Lists>);

impl Remembered {
    /// Forgets streamlets that are not this broker's any more.
    pub(super) fn retain(&mut self, is_owned: impl Fn(&StreamletKey) -> bool) {
        for lists in self.0.values_mut() {
            lists.retain(|streamlet, _| is_owned(streamlet));
        }
    }
}

/// What each broker held of this broker's streamlets when the round began, as far as it answered.
pub(crate) struct Held {
    by: BTreeMap<BrokerId, Lists>,
    /// Copies that were listed, and have less than is recorded.
    pub(super) short: BTreeSet<(BrokerId, CopyId)>,
    /// Copies that were listed, and were flushed since.
    pub(super) on_disk: BTreeSet<(BrokerId, CopyId)>,
}

/// What is known of a copy since the round began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was listed.
    There,
    /// It was listed, and has less than is recorded.
    Short,
    /// It was not in the list. Its group may be younger than that.
    NotListed,
    /// Its broker did not answer.
    Silent,
}

impl Held {
    pub(super) fn of(&self, backup: BrokerId, copy: CopyId) -> Known {
        let Some(lists) = self.by.get(&backup) else {
            return Known::Silent;
        };
        let list = lists.get(&copy.streamlet);
        match list.is_some_and(|list| list.copies.contains_key(&copy)) {
            _ if self.short.contains(&(backup, copy)) => Known::Short,
            true => Known::There,
            false => Known::NotListed,
        }
    }

    /// Whether a broker has a copy of a closed group on its disk.
    pub(super) fn is_flushed(&self, backup: BrokerId, copy: CopyId) -> bool {
        let lists = self.by.get(&backup);
        let list = lists.and_then(|lists| lists.get(&copy.streamlet));
        let listed = list.and_then(|list| list.copies.get(&copy));
        listed.is_some_and(|listed| listed.state == CopyState::Flushed)
            || self.on_disk.contains(&(backup, copy))
    }

    /// What was listed of a streamlet.
    pub(super) fn of_streamlet(&self, streamlet: StreamletKey) -> Vec<List> {
        let lists = self.by.iter().filter_map(|(backup, lists)| {
            let copies = &lists.get(&streamlet)?.copies;
            (!copies.is_empty()).then(|| (*backup, copies.values().copied().collect()))
        });
        lists.collect()
    }
}

impl Jobs {
    /// What every peer holds now of `mine`, the streamlets that are this broker's.
    pub(super) async fn held(&self, primary: &Arc<Primary>, mine: &[StreamletKey]) -> Held {
        let peers = primary.peers();
        let others = peers.iter().filter(|peer| !primary.is_own(**peer));
        let asks = others.map(|peer| -> Local<'_, _> {
            let before = self.lists.lock().0.remove(peer).unwrap_or_default();
            Box::pin(async move { (*peer, ask(primary, *peer, mine, before).await) })
        });
        let now = primary.runtime.now();
        let mut by = BTreeMap::new();
        for (peer, lists) in all(asks.collect()).await {
            let mut silent = self.silent.lock();
            match lists {
                Some(lists) => {
                    silent.remove(&peer);
                    by.insert(peer, lists);
                }
                None => {
                    silent.entry(peer).or_insert(now);
                }
            }
        }
        self.lists.lock().0 = by.clone();
        Held {
            by,
            short: BTreeSet::new(),
            on_disk: BTreeSet::new(),
        }
    }

    /// True if the broker, which does not answer now, has not for so long that its copies count as lost. One
    /// that is not among the brokers that are alive is asked nothing, and is silent from when that is seen.
    pub(super) fn is_lost(&self, backup: BrokerId, now: Duration) -> bool {
        let mut silent = self.silent.lock();
        let since = *silent.entry(backup).or_insert(now);
        now.saturating_sub(since) >= self.config.lost_after
    }
}

/// Asks a broker what has changed since it sent `lists`, and returns what it has now; `None` if it does not answer.
async fn ask(
    primary: &Primary,
    peer: BrokerId,
    mine: &[StreamletKey],
    mut lists: Lists,
) -> Option<Lists> {
    for some in mine.chunks(MAX_LISTS) {
        let known = some.iter().map(|streamlet| KnownList {
            streamlet: *streamlet,
            tag: lists.get(streamlet).and_then(|told| told.tag),
        });
        let known = known.collect();
        let asked = Request::ListChanged { known };
        let Ok(Reply::Changed(changed)) = primary.caller().ask(peer, asked).await else {
            return None;
        };
        for ChangedList {
            streamlet,
            tag,
            copies,
        } in changed
        {
            let copies = copies.into_iter().map(|info| (info.copy, info));
            let copies = Arc::new(copies.collect());
            lists.insert(streamlet, Told { tag, copies });
        }
    }
    Some(lists)
}
