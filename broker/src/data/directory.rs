//! The brokers there are and who owns what, as clients are told.

use std::sync::Arc;

use kera_protocol::ids::{Epoch, GroupKey, Ordinal, StreamId, StreamletId};

/// A broker as clients and other brokers reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerInfo {
    /// Its number.
    pub id: u32,
    /// HOST:PORT for native clients.
    pub address: String,
    /// Its native addresses with names: the name and HOST:PORT.
    pub native_named: Vec<(String, String)>,
    /// HOST:PORT for Kafka's clients, one for each listener in the order of the configuration; empty if
    /// it does not listen for them.
    pub kafka: Vec<String>,
    /// Those of them whose listeners have names: the name and HOST:PORT.
    pub kafka_named: Vec<(String, String)>,
    /// The machine it runs on.
    pub host: String,
    /// Its rack, if it has one.
    pub rack: Option<String>,
}

impl BrokerInfo {
    /// HOST:PORT that a native client is told which came in by the address of this name. As of
    /// [`kafka_at`](Self::kafka_at); without a name it is the first.
    pub fn native_at(&self, name: Option<&str>) -> Option<&str> {
        let Some(name) = name.filter(|_| !self.native_named.is_empty()) else {
            return Some(&self.address);
        };
        let mut named = self.native_named.iter();
        let found = named.find(|(known, _)| known == name);
        found.map(|(_, address)| address.as_str())
    }

    /// HOST:PORT that a client is told which came in by the listener of this name, or, without one, by that of number
    /// `listener`. `None`: this broker is not for such clients.
    ///
    /// Without names brokers are expected to have the same listeners, and one that has fewer is named by its first. One that has
    /// no names, as brokers of versions that know none, is named to a client with one by the listener of the same number. One that has some,
    /// and not this one, is not named: at another of its listeners the client may be let in to less, or its password be
    /// read. So it is with a client without a name at a broker that has only listeners with names.
    pub fn kafka_at(&self, listener: usize, name: Option<&str>) -> Option<(&str, u16)> {
        let address = match (name, self.kafka_named.is_empty()) {
            (None, true) => self.kafka.get(listener).or_else(|| self.kafka.first())?,
            (Some(_), true) => self.kafka.get(listener)?,
            (Some(name), false) => {
                let mut named = self.kafka_named.iter();
                &named.find(|(known, _)| known == name)?.1
            }
            (None, false) => {
                let has_name =
                    |one: &String| self.kafka_named.iter().any(|(_, named)| named == one);
                let same = self.kafka.get(listener).filter(|one| !has_name(one));
                same.or_else(|| self.kafka.iter().find(|one| !has_name(one)))?
            }
        };
        host_and_port(address)
    }

    /// As [`kafka_at`](Self::kafka_at), for a client of the broker `asked`. While that has no names at all and this one has only
    /// addresses with names, as where they are given to one broker after the other, it is the address at the same place.
    pub fn kafka_for(
        &self,
        asked: Option<&Self>,
        listener: usize,
        name: Option<&str>,
    ) -> Option<(&str, u16)> {
        let knows_none = name.is_none() && asked.is_some_and(|info| info.kafka_named.is_empty());
        let by_place = || self.kafka.get(listener).filter(|_| knows_none);
        let found = self.kafka_at(listener, name);
        found.or_else(|| host_and_port(by_place()?))
    }
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host, port.parse().ok()?))
}

/// Who owns a streamlet, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The broker's number.
    pub broker: u32,
    /// The epoch that it took.
    pub epoch: Epoch,
}

/// What a broker knows of its cluster at the moment. Every call is a look at memory.
pub trait Directory: Send + Sync {
    /// This broker's number.
    fn me(&self) -> u32;

    /// The cluster's id, as Kafka's clients are told it.
    fn cluster_id(&self) -> String;

    /// The brokers that live and serve clients, by number, this one among them.
    fn brokers(&self) -> Arc<Vec<BrokerInfo>>;

    /// A broker that lives.
    fn broker(&self, id: u32) -> Option<BrokerInfo> {
        self.brokers().iter().find(|b| b.id == id).cloned()
    }

    /// The broker that decides who owns what; `None` while there is none.
    fn controller(&self) -> Option<u32>;

    /// The recorded owner of a streamlet; `None` if there is no such streamlet, or if this broker works
    /// alone and owns whatever there is.
    fn owner(&self, stream: StreamId, streamlet: StreamletId) -> Option<Owner>;

    /// True while this broker may answer for a streamlet: it is the recorded owner, its lease is valid,
    /// and the streamlet is recovered. A broker that works alone may always.
    fn serves(&self, stream: StreamId, streamlet: StreamletId) -> bool;

    /// True while others may take this broker's word for who owns what: it works alone, or its lease is
    /// valid and it has heard of all that was recorded before the lease was taken.
    fn is_current(&self) -> bool;

    /// The brokers that are recorded to hold a replica of a group; none where brokers share nothing.
    fn holders(&self, group: GroupKey) -> Vec<u32>;

    /// If an operator has given up the record of a group, the ordinal behind it and what was given up with it. `None` where
    /// brokers share nothing: there nothing is given up.
    fn given_up(&self, group: GroupKey, ordinal: Ordinal) -> Option<Ordinal>;

    /// True if other brokers may own streamlets of the same streams.
    fn is_shared(&self) -> bool;

    /// Takes note of the addresses for Kafka's clients, one for each listener with its name if it has one, once they are
    /// bound; other brokers are told.
    fn announce_kafka(&self, addresses: Vec<(Option<String>, String)>);
}

/// Those addresses that have names: the name and HOST:PORT.
pub(crate) fn with_names(
    addresses: &[(Option<String>, String)],
) -> impl Iterator<Item = (String, String)> {
    let addresses = addresses.iter();
    addresses.filter_map(|(name, address)| Some((name.clone()?, address.clone())))
}

/// A broker that works alone.
#[derive(Debug)]
pub struct Alone {
    cluster_id: String,
    brokers: arc_swap::ArcSwap<Vec<BrokerInfo>>,
}

impl Alone {
    /// Nobody but `me`, whose data directory's id is the cluster's.
    pub fn new(cluster_id: String, me: BrokerInfo) -> Self {
        Self {
            cluster_id,
            brokers: arc_swap::ArcSwap::from_pointee(vec![me]),
        }
    }
}

impl Directory for Alone {
    fn me(&self) -> u32 {
        self.brokers.load().first().map_or(0, |me| me.id)
    }

    fn cluster_id(&self) -> String {
        self.cluster_id.clone()
    }

    fn brokers(&self) -> Arc<Vec<BrokerInfo>> {
        self.brokers.load_full()
    }

    fn controller(&self) -> Option<u32> {
        Some(self.me())
    }

    fn owner(&self, _stream: StreamId, _streamlet: StreamletId) -> Option<Owner> {
        None
    }

    fn serves(&self, _stream: StreamId, _streamlet: StreamletId) -> bool {
        true
    }

    fn is_current(&self) -> bool {
        true
    }

    fn holders(&self, _group: GroupKey) -> Vec<u32> {
        Vec::new()
    }

    fn given_up(&self, _group: GroupKey, _ordinal: Ordinal) -> Option<Ordinal> {
        None
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn announce_kafka(&self, addresses: Vec<(Option<String>, String)>) {
        let mut brokers = (*self.brokers.load_full()).clone();
        for broker in &mut brokers {
            broker.kafka = addresses.iter().map(|(_, told)| told.clone()).collect();
            broker.kafka_named = with_names(&addresses).collect();
        }
        self.brokers.store(Arc::new(brokers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_with_fewer_listeners_is_named_by_its_first() {
        let info = BrokerInfo {
            kafka: vec!["a:9092".to_owned(), "[::1]:9093".to_owned()],
            ..BrokerInfo::default()
        };
        // One of a version that knows no names is named by the place in its list, whatever the client came in by.
        for name in [None, Some("outer")] {
            assert_eq!(info.kafka_at(0, name), Some(("a", 9092)));
            assert_eq!(info.kafka_at(1, name), Some(("::1", 9093)));
            assert_eq!(BrokerInfo::default().kafka_at(0, name), None);
        }
        assert_eq!(info.kafka_at(2, None), Some(("a", 9092)));
        assert_eq!(
            info.kafka_at(2, Some("outer")),
            None,
            "it may be an inner one"
        );
    }

    #[test]
    fn a_broker_with_names_is_named_by_the_same_name_and_by_no_other() {
        let named = |name: &str, address: &str| (name.to_owned(), address.to_owned());
        let info = BrokerInfo {
            kafka: vec!["a:9092".to_owned(), "b:9093".to_owned()],
            kafka_named: vec![named("inner", "a:9092"), named("outer", "b:9093")],
            ..BrokerInfo::default()
        };
        for listener in 0..3 {
            let at = |name| info.kafka_at(listener, Some(name));
            assert_eq!(at("inner"), Some(("a", 9092)));
            assert_eq!(at("outer"), Some(("b", 9093)));
            assert_eq!(at("partners"), None, "not what others are let in by");
        }
        // Nor is one without a name told what others are let in by.
        assert_eq!(info.kafka_at(1, None), None);
        let mixed = BrokerInfo {
            kafka: vec!["a:9092".to_owned(), "c:9094".to_owned()],
            kafka_named: vec![named("inner", "a:9092")],
            ..BrokerInfo::default()
        };
        for listener in 0..3 {
            assert_eq!(mixed.kafka_at(listener, None), Some(("c", 9094)));
        }
    }

    #[test]
    fn names_are_given_to_one_broker_after_the_other() {
        let before = BrokerInfo {
            kafka: vec!["a:9092".to_owned(), "a:9093".to_owned()],
            ..BrokerInfo::default()
        };
        let named = |name: &str, address: &str| (name.to_owned(), address.to_owned());
        let after = BrokerInfo {
            kafka: vec!["b:9092".to_owned(), "b:9093".to_owned()],
            kafka_named: vec![named("inner", "b:9092"), named("outer", "b:9093")],
            ..BrokerInfo::default()
        };
        for (listener, name) in [(0, "inner"), (1, "outer")] {
            let port = 9092 + listener as u16;
            let told = after.kafka_for(Some(&before), listener, None);
            assert_eq!(told, Some(("b", port)), "of who has them already");
            let told = before.kafka_for(Some(&after), listener, Some(name));
            assert_eq!(told, Some(("a", port)), "of who has none yet");
        }
        assert_eq!(after.kafka_for(Some(&before), 2, None), None);
        // Once the broker that is asked has names, an address without one is another than those with one.
        let mixed = BrokerInfo {
            kafka_named: vec![named("inner", "a:9092")],
            ..before
        };
        assert_eq!(after.kafka_for(Some(&mixed), 1, None), None);
        assert_eq!(after.kafka_for(None, 1, None), None);
    }

    #[test]
    fn native_clients_are_told_the_address_of_the_name_that_they_came_in_by() {
        let mut info = BrokerInfo {
            address: "a:7600".to_owned(),
            ..BrokerInfo::default()
        };
        for name in [None, Some("inner"), Some("outer")] {
            assert_eq!(info.native_at(name), Some("a:7600"), "it knows no names");
        }
        info.native_named = vec![("outer".to_owned(), "b:7601".to_owned())];
        assert_eq!(info.native_at(None), Some("a:7600"));
        assert_eq!(info.native_at(Some("outer")), Some("b:7601"));
        assert_eq!(info.native_at(Some("partners")), None);
    }
}
