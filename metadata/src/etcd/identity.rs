//! Whether what answers at the store's address is the store: by the cluster's id, and by how far its
//! history goes.
//!
//! An etcd can be replaced at its address: by an empty one, by another cluster's, or by itself as it was
//! when a snapshot was taken. That happens while it does not answer, so each new connection is asked who
//! it is before it is used. Connections may come back by themselves, and keys may be removed under a living
//! one: so whatever is read or written compares the cluster's key in the same transaction. What is not
//! the store is treated as a store that does not answer, until the store is back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message;
use tokio::sync::watch;
use uuid::Uuid;

use super::messages::*;
use crate::wrong_store::Stranger;

/// What is recorded of a cluster where it was made.
struct Expected {
    cluster: Uuid,
    /// The value of its key.
    value: Vec<u8>,
}

pub(super) struct Identity {
    /// Where the store is, for messages.
    store: String,
    /// The cluster's key.
    key: Vec<u8>,
    expected: OnceLock<Expected>,
    /// The highest revision that was heard of.
    seen: AtomicU64,
    stranger: watch::Sender<Option<Stranger>>,
}

impl Identity {
    /// Of the store at `store` whose cluster has the key `key`; nothing is known of it yet.
    pub(super) fn new(store: String, key: Vec<u8>) -> Self {
        Self {
            store,
            key,
            expected: OnceLock::new(),
            seen: AtomicU64::new(0),
            stranger: watch::Sender::new(None),
        }
    }

    /// From now on only `cluster`, whose key was found to be `value` at `revision`, is the store.
    pub(super) fn expect(&self, cluster: Uuid, value: Vec<u8>, revision: u64) {
        self.saw(revision);
        let _only_once = self.expected.set(Expected { cluster, value });
    }

    /// True once it is known who is to answer.
    pub(super) fn is_known(&self) -> bool {
        self.expected.get().is_some()
    }

    /// Asks for the cluster's key.
    pub(super) fn question(&self) -> RangeRequest {
        RangeRequest::of(self.key.clone())
    }

    /// Holds where the cluster's key is as it should be.
    pub(super) fn comparison(&self) -> Option<Compare> {
        self.expected.get().map(|expected| Compare {
            result: EQUAL,
            target: VALUE,
            key: self.key.clone(),
            operand: Some(Target::Value(expected.value.clone())),
            range_end: Vec::new(),
        })
    }

    /// A revision was heard of.
    pub(super) fn saw(&self, revision: u64) {
        self.seen.fetch_max(revision, Ordering::AcqRel);
    }

    /// The highest revision that was heard of.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Who is there in place of the store, as it changes.
    pub(super) fn stranger(&self) -> watch::Receiver<Option<Stranger>> {
        self.stranger.subscribe()
    }

    /// Judges who answered by the cluster's key, as `found`, and the revision `at` of the answer; `floor`
    /// is what was [`seen`](Self::seen) before it was asked.
    pub(super) fn judge(
        &self,
        found: Option<&KeyValue>,
        at: u64,
        floor: u64,
    ) -> Result<(), Stranger> {
        let judged = self.verdict(found, at, floor);
        if judged.is_ok() {
            self.saw(at);
        }
        self.tell(judged.as_ref().err());
        judged
    }

    fn verdict(&self, found: Option<&KeyValue>, at: u64, floor: u64) -> Result<(), Stranger> {
        let Some(expected) = self.expected.get() else {
            return Ok(());
        };
        let store = self.store.clone();
        match found {
            None => Err(Stranger::Empty {
                store,
                expected: expected.cluster,
            }),
            Some(kv) if kv.value != expected.value => Err(Stranger::Other {
                store,
                expected: expected.cluster,
                found: name_of(&kv.value),
            }),
            Some(_) if at < floor => Err(Stranger::Older {
                store,
                cluster: expected.cluster,
                seen: floor,
                found: at,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Judges an answer that does not come with the cluster's key, since that was compared.
    pub(super) fn judge_revision(&self, at: u64, floor: u64) -> Result<(), Stranger> {
        let value = self.expected.get().map(|expected| KeyValue {
            value: expected.value.clone(),
            ..KeyValue::default()
        });
        self.judge(value.as_ref(), at, floor)
    }

    /// Judges what a watch tells: the cluster's key is never written again.
    pub(super) fn judge_events(&self, events: &[Event]) -> Result<(), Stranger> {
        for event in events {
            let Some(kv) = event.kv.as_ref().filter(|kv| kv.key == self.key) else {
                continue;
            };
            let now = (event.kind != DELETE).then_some(kv);
            self.judge(now, kv.revision(), 0)?;
        }
        Ok(())
    }

    fn tell(&self, stranger: Option<&Stranger>) {
        let same = |known: &Option<Stranger>| match (known, stranger) {
            (None, None) => true,
            (Some(known), Some(new)) => known.is_like(new),
            _ => false,
        };
        if same(&self.stranger.borrow()) {
            return;
        }
        self.stranger.send_if_modified(|known| {
            if same(known) {
                return false;
            }
            match stranger {
                Some(error) => tracing::error!(
                    %error,
                    "this is not the metadata store that was there; it is treated as one that does not answer, and nothing is deleted"
                ),
                None => tracing::info!(store = self.store, "the metadata store is back"),
            }
            *known = stranger.cloned();
            true
        });
    }
}

/// The cluster's id in the value of its key, for messages.
fn name_of(value: &[u8]) -> String {
    let message = ClusterMessage::decode(value).ok();
    let id = message.and_then(|message| Uuid::from_slice(&message.cluster).ok());
    id.map_or_else(
        || "that cannot be told, as its key holds something else".to_owned(),
        |id| id.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(cluster: Uuid) -> KeyValue {
        let message = ClusterMessage {
            format: 1,
            cluster: cluster.as_bytes().to_vec(),
        };
        KeyValue {
            key: b"/kera/cluster".to_vec(),
            value: message.encode_to_vec(),
            mod_revision: 2,
            ..KeyValue::default()
        }
    }

    #[test]
    fn only_the_same_cluster_at_no_older_revision_is_the_store() {
        let (mine, other) = (key_of(Uuid::from_u128(1)), key_of(Uuid::from_u128(2)));
        let identity = Identity::new("etcd://a:1".into(), mine.key.clone());
        let told = identity.stranger();
        // Until it is known nobody is a stranger.
        assert_eq!(identity.judge(Some(&other), 1, 9), Ok(()));
        assert!(identity.comparison().is_none());
        identity.expect(Uuid::from_u128(1), mine.value.clone(), 10);
        assert_eq!(identity.judge(Some(&mine), 12, identity.seen()), Ok(()));
        assert_eq!(identity.seen(), 12);

        let wrong = identity.judge(Some(&other), 90, 12).unwrap_err();
        assert!(matches!(&wrong, Stranger::Other { found, .. } if found.ends_with("02")));
        assert_eq!(*told.borrow(), Some(wrong));
        let wiped = identity.judge(None, 90, 12).unwrap_err();
        assert!(matches!(wiped, Stranger::Empty { .. }));
        let older = identity.judge(Some(&mine), 11, 12).unwrap_err();
        assert!(matches!(
            older,
            Stranger::Older {
                seen: 12,
                found: 11,
                ..
            }
        ));
        assert!(identity.judge_revision(11, 12).is_err());
        // A stranger's revisions are not the store's.
        assert_eq!(identity.seen(), 12);

        assert_eq!(identity.judge_revision(12, 12), Ok(()));
        assert_eq!(*told.borrow(), None);
    }

    #[test]
    fn a_cluster_whose_key_goes_under_a_watch_is_gone() {
        let mine = key_of(Uuid::from_u128(1));
        let identity = Identity::new("etcd://a:1".into(), mine.key.clone());
        identity.expect(Uuid::from_u128(1), mine.value.clone(), 10);
        let event = |kind, kv: &KeyValue| Event {
            kind,
            kv: Some(kv.clone()),
        };
        let another = KeyValue {
            key: b"/kera/r/1".to_vec(),
            ..mine.clone()
        };
        assert_eq!(identity.judge_events(&[event(DELETE, &another)]), Ok(()));
        assert_eq!(identity.judge_events(&[event(0, &mine)]), Ok(()));
        let gone = [event(DELETE, &another), event(DELETE, &mine)];
        assert!(identity.judge_events(&gone).is_err());
        assert!(identity.stranger().borrow().is_some());
    }
}
