//! Where transactions began that are open, or whose end may not be durable yet.

use std::collections::BTreeMap;

use kera_protocol::ids::Ordinal;

/// By where they began: after its marker, for one that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unstable {
    from: BTreeMap<Ordinal, Option<Ordinal>>,
    open: usize,
}

impl Unstable {
    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// One begins.
    pub(crate) fn begin(&mut self, first: Ordinal) {
        self.from.insert(first, None);
        self.open += 1;
    }

    /// The one that began at `first` has its marker, after which `next` follows.
    pub(crate) fn end(&mut self, first: Ordinal, next: Ordinal) {
        self.from.insert(first, Some(next));
        self.open -= 1;
    }

    /// The first ordinal that is not stable, at most the durable head.
    pub(crate) fn stable(&mut self, head: Ordinal) -> Ordinal {
        // Of many that end behind one that stays open nothing gathers.
        if self.from.len() > 2 * self.open + 16 {
            self.from.retain(|_, end| end.is_none_or(|end| end > head));
        }
        while let Some(first) = self.from.first_entry() {
            match first.get() {
                Some(end) if *end <= head => first.remove(),
                _ => return head.min(*first.key()),
            };
        }
        head
    }
}
