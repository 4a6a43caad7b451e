//! Which brokers hold replicas of the closed groups that a source reads next.

use std::collections::BTreeSet;
use std::sync::Arc;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1;
use tokio::time::Instant;

/// Records of one closed group.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) first: Ordinal,
    /// Where the next begins, as far as is known.
    pub(super) end: Ordinal,
    /// Who holds them, nearest first: the address, and whether it is in the reader's rack.
    pub(super) holders: Vec<(Arc<str>, bool)>,
}

impl Range {
    /// Whether this one is among the holders in the reader's rack.
    pub(super) fn is_near(&self, holder: &Arc<str>) -> bool {
        self.holders.iter().any(|(a, near)| *near && a == holder)
    }
}

/// The replicas that a source may read closed groups from.
#[derive(Debug, Default)]
pub(super) struct KnownReplicas {
    pub(super) ranges: Vec<Range>,
    /// Who did not give which range, by its first ordinal.
    pub(super) refused: BTreeSet<(Ordinal, Arc<str>)>,
    /// There may be more groups behind those known.
    pub(super) more: bool,
    /// To be asked for before the owner is.
    pub(super) wanted: bool,
    pub(super) looking: bool,
    pub(super) not_before: Option<Instant>,
    /// When it is asked again though all that is known has been said: groups close, and replicas move.
    pub(super) anew_at: Option<Instant>,
}

impl KnownReplicas {
    /// Of a source that begins, with or without a rack.
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Nothing is known any more: the source goes on elsewhere.
    pub(super) fn forget(&mut self, wanted: bool) {
        let looking = self.looking;
        *self = Self {
            looking,
            ..Self::new(wanted)
        };
    }

    pub(super) fn range(&self, at: Ordinal) -> Option<&Range> {
        let mut ranges = self.ranges.iter();
        ranges.find(|range| range.first <= at && at < range.end)
    }

    pub(super) fn is_exhausted(&self, at: Ordinal) -> bool {
        self.more && self.ranges.last().is_some_and(|last| at >= last.end)
    }
}

/// The groups of an answer, those of the `rack` first.
pub(super) fn ranges(found: &v1::FindCopiesResponse, rack: Option<&str>) -> Vec<Range> {
    let begins = found.groups.iter().skip(1).map(|group| group.first_ordinal);
    let ends = begins.map(Some).chain(std::iter::once(None));
    let ranges = found.groups.iter().zip(ends).map(|(group, next)| {
        let of = |id: &u32| found.brokers.iter().find(|broker| broker.broker == *id);
        let mut holders: Vec<_> = group
            .holders
            .iter()
            .filter_map(of)
            .filter(|broker| !broker.address.is_empty())
            .map(|broker| {
                let near = rack.is_some_and(|rack| rack == broker.rack);
                (Arc::from(broker.address.as_str()), near)
            })
            .collect();
        holders.sort_by_key(|(_, near)| !near);
        Range {
            first: group.first_ordinal,
            end: next.unwrap_or(group.end_ordinal),
            holders,
        }
    });
    ranges.collect()
}
