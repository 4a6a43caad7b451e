//! What is kept of a partition of a share group.

use kera_protocol::ids::Ordinal;

/// What a run of records costs where it is kept.
const RUN_BYTES: usize = 12;
/// Set in the second number of a run that is done.
const DONE: u64 = 1;

/// Records in a row with the same past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareRun {
    pub(crate) length: u64,
    /// How often they were delivered.
    pub(crate) deliveries: u16,
    /// Nobody gets it any more.
    pub(crate) done: bool,
}

impl ShareRun {
    /// Whether its records are to be dead letters yet. What else is done has no deliveries, and what was kept before there
    /// were dead letters neither; builds of then take it for done.
    pub(crate) fn is_given_up(&self) -> bool {
        self.done && self.deliveries > 0
    }
}

/// Where a group stands in a partition. What was acquired when this was taken counts as available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareState {
    /// All records below are done.
    pub start: Ordinal,
    /// From there on.
    pub(crate) runs: Vec<ShareRun>,
}

impl ShareState {
    /// Nothing from there on was delivered.
    pub fn at(start: Ordinal) -> Self {
        Self {
            start,
            runs: Vec::new(),
        }
    }

    /// As it was written by [`Self::runs`]. What makes no sense ends the list: its records are delivered again.
    pub fn of(start: Ordinal, runs: &[u64]) -> Self {
        let mut end = start;
        let pairs = runs.chunks_exact(2).map_while(|pair| {
            end = end.checked_add(pair[0]).filter(|_| pair[0] > 0)?;
            Some(ShareRun {
                length: pair[0],
                deliveries: u16::try_from(pair[1] >> 1).unwrap_or(u16::MAX),
                done: pair[1] & DONE == DONE,
            })
        });
        Self {
            start,
            runs: pairs.collect(),
        }
    }

    /// What lies from `start` on: of each run its length, and twice its deliveries, with one more if it is done. What is
    /// done after some deliveries is given up, and no dead letter yet.
    pub fn runs(&self) -> Vec<u64> {
        let pairs = self.runs.iter().flat_map(|run| {
            let done = if run.done { DONE } else { 0 };
            [run.length, u64::from(run.deliveries) << 1 | done]
        });
        pairs.collect()
    }

    /// About the bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.runs.len() * RUN_BYTES
    }

    /// Records from `start` on that were delivered or are done.
    pub fn length(&self) -> u64 {
        self.runs.iter().map(|run| run.length).sum()
    }

    /// Records from `start` on that are done.
    pub fn done(&self) -> u64 {
        let done = self.runs.iter();
        let done = done.filter(|run| run.done && !run.is_given_up());
        done.map(|run| run.length).sum()
    }
}
