//! What answers at a shared store's address and is not the store.

use thiserror::Error;
use uuid::Uuid;

/// Why what answers at a shared store's address is not taken for the store. Nothing is read from it and
/// nothing is written to it: it is as if the store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Stranger {
    /// It holds no cluster.
    #[error(
        "the store at {store} holds no cluster, and this broker belongs to cluster {expected}: it is an empty one, or was wiped; bring the store of that cluster back to the address, or restore its newest snapshot there; a new `kera cluster init` would make another cluster, which this broker refuses"
    )]
    Empty {
        /// Where it is.
        store: String,
        /// The cluster that was there.
        expected: Uuid,
    },
    /// It holds another cluster.
    #[error(
        "the store at {store} holds cluster {found}, and this broker belongs to cluster {expected}; bring the store of that cluster back to the address, or start this broker with the address where it is"
    )]
    Other {
        /// Where it is.
        store: String,
        /// The cluster that was there.
        expected: Uuid,
        /// The id of the one that is, or what stands in its place.
        found: String,
    },
    /// It holds the same cluster as it was at an earlier time.
    #[error(
        "the store at {store} holds cluster {cluster} as of revision {found}, and this broker has seen revision {seen}: it is an older state, such as of a snapshot; bring the store back as it was, or restore a snapshot that is not older; if there is none, see `Backing up etcd` in docs/operations.md"
    )]
    Older {
        /// Where it is.
        store: String,
        /// The cluster.
        cluster: Uuid,
        /// The highest revision that was seen.
        seen: u64,
        /// The revision that was found.
        found: u64,
    },
}

impl Stranger {
    /// True if `other` says the same; how far an older state has come is no news.
    #[cfg(any(feature = "etcd", test))]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Older { .. }, Self::Older { .. }) => true,
            (one, other) => one == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_names_what_is_there_what_should_be_and_what_to_do() {
        let (expected, store) = (Uuid::from_u128(7), "etcd://a:1".to_owned());
        let empty = Stranger::Empty {
            store: store.clone(),
            expected,
        };
        let other = Stranger::Other {
            store: store.clone(),
            expected,
            found: Uuid::from_u128(8).to_string(),
        };
        let older = |found| Stranger::Older {
            store: store.clone(),
            cluster: expected,
            seen: 90,
            found,
        };
        for stranger in [&empty, &other, &older(17)] {
            let text = stranger.to_string();
            for part in [&store, &expected.to_string(), "bring the store"] {
                assert!(text.contains(part), "{text}");
            }
        }
        assert!(other.to_string().contains(&Uuid::from_u128(8).to_string()));
        assert!(older(17).to_string().contains("17"));
        assert!(older(17).is_like(&older(18)) && !older(17).is_like(&empty));
        assert!(!empty.is_like(&other));
    }
}
