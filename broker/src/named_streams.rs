//! Which streams the metrics tell by their names.
//!
//! Counters never fall while the broker runs. So a stream that is told by its name stays so until it is deleted, and one
//! of the others that comes to be told by its name begins at zero there.

use std::collections::{HashMap, HashSet};

use kera_protocol::ids::StreamId;
use kera_streamlet::TrafficTotals;

/// Which streams are told by their names, and what the others have counted.
#[derive(Debug, Default)]
pub(crate) struct NamedStreams {
    named: HashSet<StreamId>,
    /// How far each of the others was counted in `others`, also of those that have got a name since.
    counted: HashMap<StreamId, TrafficTotals>,
    /// What those without a name have counted.
    pub(crate) others: TrafficTotals,
}

impl NamedStreams {
    /// Takes all streams in the order of their names, with their counters. Returns for each, in the same order, the
    /// counters to tell under its name; `None` for a stream that is counted in `others`.
    pub(crate) fn take(
        &mut self,
        all: &[(StreamId, TrafficTotals)],
        most: usize,
    ) -> Vec<Option<TrafficTotals>> {
        let present: HashSet<StreamId> = all.iter().map(|(id, _)| *id).collect();
        self.named.retain(|id| present.contains(id));
        self.counted.retain(|id, _| present.contains(id));
        let mut told = Vec::with_capacity(all.len());
        for (id, traffic) in all {
            if self.named.contains(id) || (self.named.len() < most && self.named.insert(*id)) {
                let before = self.counted.get(id).copied().unwrap_or_default();
                told.push(Some(traffic.since(&before)));
                continue;
            }
            let before = self.counted.insert(*id, *traffic).unwrap_or_default();
            self.others = self.others.plus(&traffic.since(&before));
            told.push(None);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64) -> TrafficTotals {
        TrafficTotals {
            read_bytes: bytes,
            ..TrafficTotals::default()
        }
    }

    fn told(state: &mut NamedStreams, all: &[(StreamId, u64)], most: usize) -> Vec<Option<u64>> {
        let all: Vec<_> = all.iter().map(|(id, bytes)| (*id, read(*bytes))).collect();
        let told = state.take(&all, most).into_iter();
        told.map(|told| told.map(|traffic| traffic.read_bytes))
            .collect()
    }

    #[test]
    fn beyond_the_limit_streams_are_summed_and_no_counter_falls() {
        let [a, b, c, d] = [(); 4].map(|()| StreamId::random());
        let mut state = NamedStreams::default();
        let state = &mut state;
        assert_eq!(
            told(state, &[(a, 1), (b, 2), (c, 4)], 1),
            [Some(1), None, None]
        );
        assert_eq!(state.others, read(6));
        // One that comes first by name takes nobody's place.
        let all = [(d, 100), (a, 1), (b, 2), (c, 5)];
        assert_eq!(told(state, &all, 1), [None, Some(1), None, None]);
        assert_eq!(state.others, read(107));
        // The named one is deleted: another is told by its name, from zero on; of the others what they had counted stays.
        let all = [(d, 103), (b, 2), (c, 5)];
        assert_eq!(told(state, &all, 1), [Some(3), None, None]);
        assert_eq!(state.others, read(107));
        // One of the others is deleted.
        assert_eq!(told(state, &[(d, 103), (c, 6)], 1), [Some(3), None]);
        assert_eq!(state.others, read(108));
    }
}
