//! Where records and everything else lie among etcd's keys.
//!
//! ```text
//! PREFIX cluster          the cluster's id and the format of what is stored
//! PREFIX m/broker/ID      a living broker, under its lease; ID has ten digits
//! PREFIX m/controller     the controller, under its lease
//! PREFIX r/KEY            a record; KEY as every store has it
//! PREFIX s/KEY            broker settings; apart, as builds that do not know them accept no unknown key
//!                         below r/
//! PREFIX a/a              rules of access; apart for the same reason
//! PREFIX u/u              users; likewise
//! PREFIX q/q              quotas; likewise
//! PREFIX p/KEY            a pin; likewise
//! ```
//!
//! A record's value is as in every store, but for its revision, for which etcd's own `mod_revision`
//! stands: in the value itself is a random number of the transaction, by which whoever sent it knows
//! it again after its answer was lost.

use crate::encode::{Record, decode_value, restamp};
use kera_records::key::{Key, PIN, QUOTAS, RULES, SETTINGS, USERS, prefix_end};

use super::messages::KeyValue;

/// The controller's key where it stands beside keys of records; no record's key begins so.
pub(super) const CONTROLLER: &[u8] = b"k";

#[derive(Clone, Debug)]
pub(super) struct Space {
    prefix: Vec<u8>,
}

impl Space {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.as_bytes().to_vec(),
        }
    }

    fn join(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = self.prefix.clone();
        for part in parts {
            key.extend_from_slice(part);
        }
        key
    }

    /// What every key begins with.
    pub(super) fn all(&self) -> Vec<u8> {
        self.prefix.clone()
    }

    pub(super) fn cluster(&self) -> Vec<u8> {
        self.join(&[b"cluster"])
    }

    /// What the keys of the living and of the controller begin with.
    pub(super) fn members(&self) -> Vec<u8> {
        self.join(&[b"m/"])
    }

    pub(super) fn controller(&self) -> Vec<u8> {
        self.join(&[b"m/controller"])
    }

    pub(super) fn broker(&self, id: u32) -> Vec<u8> {
        self.join(&[b"m/broker/", format!("{id:010}").as_bytes()])
    }

    /// The number of a living broker's key.
    pub(super) fn broker_of(&self, key: &[u8]) -> Option<u32> {
        let digits = key.strip_prefix(self.join(&[b"m/broker/"]).as_slice())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// etcd's key of a record's key, or of [`CONTROLLER`].
    pub(super) fn key(&self, key: &[u8]) -> Vec<u8> {
        if key == CONTROLLER {
            return self.controller();
        }
        match key.first() {
            Some(&SETTINGS) => self.join(&[b"s/", key]),
            Some(&RULES) => self.join(&[b"a/", key]),
            Some(&USERS) => self.join(&[b"u/", key]),
            Some(&QUOTAS) => self.join(&[b"q/", key]),
            Some(&PIN) => self.join(&[b"p/", key]),
            _ => self.join(&[b"r/", key]),
        }
    }

    /// The record's key of one of etcd's.
    pub(super) fn record_key<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let key = key.strip_prefix(self.prefix.as_slice())?;
        key.strip_prefix(b"r/".as_slice())
            .or_else(|| key.strip_prefix(b"s/".as_slice()))
            .or_else(|| key.strip_prefix(b"a/".as_slice()))
            .or_else(|| key.strip_prefix(b"u/".as_slice()))
            .or_else(|| key.strip_prefix(b"q/".as_slice()))
            .or_else(|| key.strip_prefix(b"p/".as_slice()))
    }
}

/// The range of all keys that begin with `prefix`, which is not empty and no run of the last byte.
pub(super) fn range_of(prefix: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    // As etcd has it, a single zero byte is "no end".
    let end = prefix_end(&prefix).unwrap_or_else(|| vec![0]);
    (prefix, end)
}

/// A record's value as every store has it, with etcd's revision in it.
pub(super) fn value(key: &[u8], kv: &KeyValue) -> Result<Vec<u8>, String> {
    restamp(key, &kv.value, kv.revision())
}

/// The record of a pair of a key and a value.
pub(super) fn record(key: &[u8], kv: &KeyValue) -> Result<(Key, Record), String> {
    let Some(decoded) = Key::decode(key) else {
        return Err(format!("it holds a key that is none: {key:?}"));
    };
    let value = value(key, kv).map_err(|detail| format!("{decoded}: {detail}"))?;
    let record =
        decode_value(&decoded, key, &value).map_err(|detail| format!("{decoded}: {detail}"))?;
    Ok((decoded, record))
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::StreamId;
    use kera_records::PinKey;

    use super::*;

    #[test]
    fn keys_are_found_again() {
        let space = Space::new("/a/");
        let key = Key::Broker(7).encode();
        let stored = space.key(&key);
        assert_eq!(space.record_key(&stored), Some(key.as_slice()));
        let pin = Key::Pin(PinKey {
            stream: StreamId(uuid::Uuid::from_u128(7)),
            name: "savepoint".to_owned(),
        });
        for apart in [
            Key::Settings(Some(7)),
            Key::Rules,
            Key::Users,
            Key::Quotas,
            pin,
        ] {
            let apart = apart.encode();
            let stored = space.key(&apart);
            assert!(
                !stored.starts_with(&space.key(&[])),
                "older builds load all of that"
            );
            assert_eq!(space.record_key(&stored), Some(apart.as_slice()));
        }
        assert_eq!(space.record_key(&space.cluster()), None);
        assert_eq!(space.broker_of(&space.broker(42)), Some(42));
        assert_eq!(space.broker_of(&space.controller()), None);
        assert!(space.controller().starts_with(&space.members()));
        assert_eq!(Key::decode(CONTROLLER), None);
        assert!(space.broker(9) < space.broker(10));
    }
}
