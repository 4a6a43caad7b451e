//! Lists of copies of which only those are sent that have changed: an owner asks about its streamlets every minute, and
//! in a large cluster next to nothing of what is held changes in between.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{CopyInfo, Reply};
use crate::ids::StreamletKey;

/// Stands for one list, as the broker made it that sent it: it gives an equal list the same tag as long as it runs.
/// To anybody else it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListTag(u64);

impl ListTag {
    /// The tag of what was sent as such.
    pub fn new(tag: u64) -> Self {
        Self(tag)
    }

    /// The tag of a list; in another order it has another one.
    pub fn of(copies: &[CopyInfo]) -> Self {
        let mut hasher = DefaultHasher::new();
        copies.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// As it is sent.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A streamlet, and the list that the asker was sent of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownList {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// `None`: it was sent none.
    pub tag: Option<ListTag>,
}

/// The copies of a streamlet, which are not those that the asker knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedList {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// What the asker is to name next time; `None`: from a broker that does not know tags.
    pub tag: Option<ListTag>,
    /// All of them.
    pub copies: Vec<CopyInfo>,
}

impl Reply {
    /// The answer to [`Request::ListChanged`](super::Request::ListChanged) of a broker that has what `list` says.
    pub fn changed(known: &[KnownList], list: impl Fn(StreamletKey) -> Vec<CopyInfo>) -> Self {
        let changed = known.iter().filter_map(|known| {
            let copies = list(known.streamlet);
            let tag = Some(ListTag::of(&copies));
            (tag != known.tag).then_some(ChangedList {
                streamlet: known.streamlet,
                tag,
                copies,
            })
        });
        Self::Changed(changed.collect())
    }
}
