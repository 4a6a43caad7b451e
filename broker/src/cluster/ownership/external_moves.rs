//! Which changes of owners the controller asked for itself. Others are a person's, or a plan's of which more
//! is to come: it does not put them right at once.

use std::collections::BTreeMap;

use kera_controller::{Move, Picture};
use kera_protocol::ids::StreamletKey;

/// Owners as they were last seen, and what was asked for and has not been seen yet.
#[derive(Debug, Default)]
pub(crate) struct Movers {
    seen: BTreeMap<StreamletKey, u32>,
    asked: BTreeMap<StreamletKey, u32>,
}

impl Movers {
    /// Begins anew with what a picture shows.
    pub(crate) fn begin(&mut self, picture: &Picture) {
        self.asked.clear();
        self.seen.clear();
        self.look(picture, |_| false);
    }

    /// The controller asked for a move, or is about to record it.
    pub(crate) fn asked(&mut self, one: &Move) {
        self.asked.insert(one.which(), one.to);
    }

    /// A move came to nothing.
    pub(crate) fn failed(&mut self, one: &Move) {
        self.asked.remove(&one.which());
    }

    /// Takes in a picture; true if it shows that somebody else moved a streamlet away from an owner that
    /// `counts`.
    pub(crate) fn look(&mut self, picture: &Picture, counts: impl Fn(u32) -> bool) -> bool {
        let mut moved = false;
        let mut streamlets = 0;
        for (which, _, streamlet) in picture.streamlets() {
            streamlets += 1;
            let owner = streamlet.owner();
            let former = self.seen.insert(which, owner);
            let Some(former) = former.filter(|former| *former != owner) else {
                continue;
            };
            match self.asked.get(&which) {
                Some(to) if *to == owner => _ = self.asked.remove(&which),
                _ => moved |= counts(former),
            }
        }
        if self.seen.len() > streamlets {
            let exists = |which: &StreamletKey| picture.stream(which.stream).is_some();
            self.seen.retain(|which, _| exists(which));
            self.asked.retain(|which, _| exists(which));
        }
        moved
    }
}
