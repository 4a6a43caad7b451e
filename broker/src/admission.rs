//! How many connections there may be, who may have those beyond, and how fast they may come.
//!
//! Native clients, Kafka's clients and other brokers share one number of places. A broker that cannot be reached because
//! clients took all of them holds up metadata and consumer groups of the whole cluster, so some places are kept for
//! addresses at which brokers of the cluster are known. A few more are kept for programs on the broker's own machine, at the
//! native address: whoever has to find out who fills the broker gets in there. One address may be kept from taking all that
//! there are, and so may Kafka's clients. Connections that come faster than they may wait for their turn, for a moment.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kera_replication::seldom::Seldom;
use parking_lot::Mutex;

use crate::config::{BrokerConfig, Listener, Via};
use crate::metrics::{Counter, Family, Labels};
use crate::unheard::{Among, Source, Unheard};
use crate::{machine, process};

/// What a second allows may come at once, after a pause.
const BURST: Duration = Duration::from_secs(1);
/// Whose turn is later than this is refused: clients give up on a connection that does not answer.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// Turns later than this are for sources that have few: one that opens connections all the time does not keep others out.
const FOR_ALL: Duration = Duration::from_millis(1_500);
/// As many as come in this time are few.
const OF_ONE: Duration = Duration::from_millis(187);

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// There are so many, its limit.
    InAll(u64),
    /// So many are of Kafka's clients, their limit.
    OfKafka(u64),
    /// So many are at the addresses of this name, their limit.
    OfName(&'static str, u64),
    /// So many come from its address, the limit for one.
    FromAddress(IpAddr, u64),
    /// They come faster from its address than its quota allows.
    TooFast(IpAddr),
    /// More come in a second than this, the limit of all.
    TooFastInAll(u64),
}

/// The limits as metrics have them, and what made room.
const LIMITS: [&str; 7] = [
    "all",
    "listener",
    "name",
    "address",
    "rate",
    "address_rate",
    "silent",
];

impl TooMany {
    /// The limit that was met, as metrics have it.
    fn name(self) -> &'static str {
        match self {
            Self::InAll(_) => "all",
            Self::OfKafka(_) => "listener",
            Self::OfName(..) => "name",
            Self::FromAddress(..) => "address",
            Self::TooFast(_) => "address_rate",
            Self::TooFastInAll(_) => "rate",
        }
    }
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InAll(limit) => write!(
                f,
                "the broker has {limit} connections, its limit; close some or raise server.max_connections"
            ),
            Self::OfKafka(limit) => write!(
                f,
                "the broker has {limit} connections of Kafka's clients, their limit; close some or raise kafka.max_connections"
            ),
            Self::OfName(name, limit) => write!(
                f,
                "the broker has {limit} connections at the addresses named {name}, their limit; close some or raise listeners.max_connections"
            ),
            Self::TooFast(address) => write!(
                f,
                "connections from {address} are opened faster than its quota allows; keep connections, or raise connection_creation_rate (kera quota list)"
            ),
            Self::TooFastInAll(rate) => write!(
                f,
                "more than {rate} connections are opened in a second; keep connections, or raise server.connection_creation_rate"
            ),
            Self::FromAddress(address, limit) => write!(
                f,
                "the broker has {limit} connections from {address}, the limit for one address; close some or raise server.max_connections_per_address"
            ),
        }
    }
}

/// A connection that asks for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer {
    /// Where it comes in.
    pub(crate) via: Via,
    /// Where it comes from.
    pub(crate) peer: IpAddr,
    /// Another broker of the cluster is known at that address.
    pub(crate) is_broker: bool,
}

/// A connection that is taken.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// How long it waits for its turn.
    pub(crate) wait: Duration,
    /// It is one of those kept for programs on the broker's own machine.
    pub(crate) is_reserved: bool,
}

/// Most connections, as far as clients have them.
#[derive(Debug, Default)]
struct Limits {
    in_all: u64,
    of_kafka: u64,
    of_name: HashMap<&'static str, u64>,
    per_address: u64,
    of_address: HashMap<Source, u64>,
    reserved: u64,
    /// In a second.
    rate: u64,
}

/// Connections that are open.
#[derive(Debug, Default)]
struct Open {
    by_source: HashMap<Source, u64>,
    /// At the addresses of each name.
    by_name: HashMap<&'static str, u64>,
    of_kafka: u64,
    reserved: u64,
}

/// The limits on connections.
#[derive(Debug)]
pub struct Admission {
    limits: Mutex<Limits>,
    open: Mutex<Open>,
    turns: Mutex<Turns>,
    /// By the limit that was met.
    told: Mutex<HashMap<&'static str, Seldom>>,
    /// Those that were refused, by listener and by the limit that was met.
    pub(crate) refused: Family<Labels, Counter>,
    /// Those that had to wait for their turn.
    pub(crate) delayed: Counter,
}

/// Whose turn it is, where so many may come in a second.
#[derive(Debug)]
struct Turns {
    /// When all that have come would have come one after the other.
    until: Instant,
    /// The same of each source alone, of those where that is not over.
    until_of: HashMap<Source, Instant>,
}

impl Turns {
    fn new(now: Instant) -> Self {
        Self {
            until: now,
            until_of: HashMap::new(),
        }
    }

    /// How long one waits that comes now; `None` if that is too long, or it would take turns that are left for others.
    fn next(&mut self, rate: u64, source: Source, now: Instant) -> Option<Duration> {
        let begins = self.until.max(now);
        let wait = (begins - now).saturating_sub(BURST);
        let until_of = self.until_of.get(&source).copied().unwrap_or(now).max(now);
        let is_for_others = wait > FOR_ALL && until_of - now > OF_ONE;
        if wait > LONGEST_WAIT || is_for_others {
            return None;
        }
        let each = Duration::from_secs(1).div_f64(rate.max(1) as f64);
        self.until = begins + each;
        // There are no more of them than turns in the time that one waits at most.
        if self.until_of.len() >= self.until_of.capacity() {
            self.until_of.retain(|_, until| *until > now);
        }
        self.until_of.insert(source, until_of + each);
        Some(wait)
    }
}

impl Admission {
    /// As configured; fewer where the process may not open as many files.
    pub fn new(config: &BrokerConfig) -> Self {
        let admission = Self {
            limits: Mutex::default(),
            open: Mutex::default(),
            turns: Mutex::new(Turns::new(Instant::now())),
            told: Mutex::default(),
            refused: Family::default(),
            delayed: Counter::default(),
        };
        // What has not happened yet is told as 0, so that a first refusal is seen as a rise.
        for via in [Listener::Native, Listener::Kafka] {
            for limit in LIMITS {
                drop(admission.refused.get_or_create_owned(&labels(via, limit)));
            }
        }
        admission.set_most(config);
        admission
    }

    /// Changes how many clients may have; those that are open stay.
    pub(crate) fn set_most(&self, config: &BrokerConfig) {
        let (server, files) = (&config.server, process::open_files_limit());
        let in_all = machine::most_connections(server.max_connections.into(), files);
        let overrides = server.max_connections_per_address_overrides.iter();
        let named = config.listeners.max_connections.iter();
        *self.limits.lock() = Limits {
            in_all,
            of_kafka: config.kafka.max_connections.into(),
            of_name: named
                .map(|(name, most)| (name.as_str(), (*most).into()))
                .collect(),
            per_address: server.max_connections_per_address.into(),
            of_address: overrides
                .map(|one| (one.address.into(), one.most.into()))
                .collect(),
            reserved: server.reserved_connections.into(),
            rate: server.connection_creation_rate.into(),
        };
    }

    /// Connections that clients may have.
    pub fn limit(&self) -> u64 {
        self.limits.lock().in_all
    }

    /// One more connection is open.
    pub(crate) fn enter(&self, via: Via, source: Source) {
        let mut open = self.open.lock();
        *open.by_source.entry(source).or_default() += 1;
        open.of_kafka += u64::from(via.listener == Listener::Kafka);
        if let Some(name) = via.name {
            *open.by_name.entry(name).or_default() += 1;
        }
    }

    /// One has ended.
    pub(crate) fn leave(&self, via: Via, source: Source, is_reserved: bool) {
        let mut open = self.open.lock();
        open.of_kafka -= u64::from(via.listener == Listener::Kafka);
        open.reserved -= u64::from(is_reserved);
        if let Some(count) = via.name.and_then(|name| open.by_name.get_mut(name)) {
            *count -= 1;
        }
        if let Some(count) = open.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                open.by_source.remove(&source);
            }
        }
    }

    /// The limit for one address, if more are open from `source`.
    fn exceeded(&self, source: Source) -> Option<u64> {
        let limits = self.limits.lock();
        let limit = limits.of_address.get(&source).copied();
        let limit = limit.unwrap_or(limits.per_address);
        drop(limits);
        let open = self.open.lock().by_source.get(&source).copied();
        (open.unwrap_or(0) > limit).then_some(limit)
    }

    /// The limit for Kafka's clients, if more are open of them.
    fn exceeded_by_kafka(&self) -> Option<u64> {
        let limit = self.limits.lock().of_kafka;
        (self.open.lock().of_kafka > limit).then_some(limit)
    }

    /// The limit for the addresses of this name, if more are open there.
    fn exceeded_by_name(&self, name: &'static str) -> Option<u64> {
        let limit = self.limits.lock().of_name.get(name).copied()?;
        let open = self.open.lock().by_name.get(name).copied();
        (open.unwrap_or(0) > limit).then_some(limit)
    }

    /// Whether a connection may stay that is counted already: `open` are open with it, and `kept` more may be of brokers. Where
    /// there are too many, one that has not said yet what it wants makes room.
    ///
    /// # Errors
    /// Which limit it is.
    pub(crate) fn admit(
        &self,
        newcomer: Newcomer,
        (open, kept): (u64, u32),
        unheard: &Unheard,
        now: Instant,
    ) -> Result<Place, TooMany> {
        let Newcomer {
            via,
            peer,
            is_broker,
        } = newcomer;
        let is_own = via.listener == Listener::Native && peer.to_canonical().is_loopback();
        let mut place = Place::default();
        let mut has_reserved = || {
            place.is_reserved = place.is_reserved || is_own && self.take_reserved();
            place.is_reserved
        };
        let source = Source::from(peer);
        if let Some(limit) = self.exceeded(source).filter(|_| !is_broker)
            && !self.made_room(unheard.end_oldest_of(source))
            && !has_reserved()
        {
            return Err(TooMany::FromAddress(peer, limit));
        }
        let is_kafka = via.listener == Listener::Kafka;
        if let Some(limit) = self.exceeded_by_kafka().filter(|_| is_kafka)
            && !self.made_room(unheard.end_oldest(Among::Kafka))
        {
            return Err(TooMany::OfKafka(limit));
        }
        if let Some(name) = via.name.filter(|_| !is_broker)
            && let Some(limit) = self.exceeded_by_name(name)
            && !self.made_room(unheard.end_oldest(Among::Named(name)))
            && !has_reserved()
        {
            return Err(TooMany::OfName(name, limit));
        }
        if !self.has_room(open, if is_broker { kept } else { 0 })
            && !self.made_room(unheard.end_oldest(Among::All))
            && !has_reserved()
        {
            return Err(TooMany::InAll(self.limit()));
        }
        // Who has to find out who opens so many does not wait behind them.
        if !is_broker && !is_own {
            place.wait = self.turn(source, now)?;
        }
        Ok(place)
    }

    /// With `kept` more for brokers, beside those for the broker's own machine.
    fn has_room(&self, open: u64, kept: u32) -> bool {
        let limits = self.limits.lock();
        let beyond = match kept {
            0 => 0,
            kept => limits.reserved + u64::from(kept),
        };
        open <= limits.in_all + beyond
    }

    /// Counts a silent connection that has made room, if one has.
    fn made_room(&self, ended: Option<Via>) -> bool {
        if let Some(via) = ended {
            self.count(via.listener, "silent");
        }
        ended.is_some()
    }

    /// Takes one of the places that are kept for the broker's own machine; false if all are taken.
    fn take_reserved(&self) -> bool {
        let most = self.limits.lock().reserved;
        let mut open = self.open.lock();
        let is_free = open.reserved < most;
        open.reserved += u64::from(is_free);
        is_free
    }

    /// How long one more waits, for connections to come no faster than they may.
    ///
    /// # Errors
    /// [`TooMany::TooFastInAll`] if that is too long.
    fn turn(&self, source: Source, now: Instant) -> Result<Duration, TooMany> {
        let rate = self.limits.lock().rate;
        let wait = self.turns.lock().next(rate, source, now);
        let wait = wait.ok_or(TooMany::TooFastInAll(rate))?;
        if !wait.is_zero() {
            self.delayed.inc();
            if let Some(others) = self.due("delayed", now) {
                tracing::info!(
                    rate,
                    others,
                    "connections are opened faster than server.connection_creation_rate; each waits for its turn"
                );
            }
        }
        Ok(wait)
    }

    /// Counts a connection that is refused, and tells of it in the log from time to time.
    pub(crate) fn refuse(&self, via: Via, peer: IpAddr, reason: TooMany) {
        self.count(via.listener, reason.name());
        if let Some(others) = self.due(reason.name(), Instant::now()) {
            tracing::warn!(listener = %via, %peer, others, "a connection is refused, and so were others lately: {reason}");
        }
    }

    fn count(&self, via: Listener, limit: &str) {
        let labels = labels(via, limit);
        self.refused.get_or_create_owned(&labels).inc();
    }

    fn due(&self, what: &'static str, now: Instant) -> Option<u64> {
        self.told.lock().entry(what).or_default().due(now)
    }
}

fn labels(via: Listener, limit: &str) -> Labels {
    vec![("limit", limit.to_owned()), ("listener", via.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AddressLimit, ListenerName};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_a_second_allows_comes_at_once_and_the_rest_waits_for_a_while() {
        let begin = Instant::now();
        let mut turns = Turns::new(begin);
        let source = |number: u8| Source::from(IpAddr::from([10, 0, 0, number]));
        let mut come = (0..100).map_while(|number| turns.next(10, source(number), begin));
        let waits: Vec<_> = come.by_ref().collect();
        let at_once = waits.iter().filter(|wait| wait.is_zero()).count();
        assert_eq!(at_once, 11, "one begins as the second ends");
        // Each a tenth later, up to the longest wait.
        assert_eq!(waits.len(), 11 + 30);
        let last = waits.last().copied().expect("there are some");
        assert!(last <= LONGEST_WAIT && last > LONGEST_WAIT - Duration::from_millis(1));
        assert!(waits.is_sorted());
        // What was refused has taken no turn.
        let later = begin + Duration::from_millis(101);
        assert!(turns.next(10, source(101), later).is_some());
        assert!(turns.next(10, source(102), later).is_none());
        // After a pause all is as it was, and nobody is remembered who has no turn to come.
        let rested = begin + Duration::from_secs(60);
        for number in 0..=u8::MAX {
            let at = rested + Duration::from_secs(number.into());
            assert_eq!(turns.next(10, source(number), at), Some(Duration::ZERO));
        }
        assert!(turns.until_of.len() < 128, "{}", turns.until_of.len());
    }

    #[test]
    fn who_comes_all_the_time_leaves_turns_for_others() {
        let begin = Instant::now();
        let mut turns = Turns::new(begin);
        let (flood, other) = (Source::from(ip("10.0.0.1")), Source::from(ip("10.0.0.2")));
        let flooded = (0..1000).filter_map(|_| turns.next(10, flood, begin));
        assert_eq!(flooded.count(), 11 + 15, "half of the waiting is left");
        for tenth in 1..100 {
            let now = begin + Duration::from_millis(100) * tenth;
            let flooded = (0..30).filter_map(|_| turns.next(10, flood, now));
            assert!(flooded.count() <= 2, "as many as leave");
            if tenth % 5 == 0 {
                let wait = turns.next(10, other, now);
                assert!(wait.is_some_and(|wait| wait <= LONGEST_WAIT), "{wait:?}");
            }
        }
        // Alone it gets all turns that there are.
        let later = begin + Duration::from_secs(60);
        let each = (0..100).map(|tenth| later + Duration::from_millis(100) * tenth);
        let flooded = each.map(|now| {
            let all = (0..30).filter_map(|_| turns.next(10, flood, now));
            all.count()
        });
        assert!(flooded.sum::<usize>() >= 100);
    }

    #[test]
    fn an_address_may_have_a_limit_of_its_own() {
        let mut config = BrokerConfig::default();
        config.server.max_connections_per_address = 1;
        config.server.max_connections_per_address_overrides = vec![
            AddressLimit {
                address: ip("10.0.0.1"),
                most: 2,
            },
            AddressLimit {
                address: ip("2001:db8::1"),
                most: 0,
            },
        ];
        let admission = Admission::new(&config);
        let opens = |address: &str| {
            let source = Source::from(ip(address));
            admission.enter(Via::from(Listener::Native), source);
            admission.exceeded(source)
        };
        assert_eq!(opens("10.0.0.2"), None);
        assert_eq!(opens("10.0.0.2"), Some(1));
        assert_eq!(opens("10.0.0.1"), None);
        assert_eq!(opens("::ffff:10.0.0.1"), None, "the same, mapped");
        assert_eq!(opens("10.0.0.1"), Some(2));
        assert_eq!(opens("2001:db8::7"), Some(0), "the same machine");
        config.server.max_connections_per_address_overrides.clear();
        admission.set_most(&config);
        assert_eq!(admission.exceeded(ip("10.0.0.1").into()), Some(1));
    }

    /// Many connections that have all said what they want.
    struct Played {
        admission: Admission,
        unheard: Unheard,
        open: u64,
        now: Instant,
    }

    impl Played {
        fn new(config: &BrokerConfig) -> Self {
            Self {
                admission: Admission::new(config),
                unheard: Unheard::default(),
                open: 0,
                now: Instant::now(),
            }
        }

        fn opens_as(
            &mut self,
            via: Listener,
            peer: &str,
            is_broker: bool,
        ) -> Result<Place, TooMany> {
            self.opens_at(Via::from(via), peer, is_broker)
        }

        fn opens_at(&mut self, via: Via, peer: &str, is_broker: bool) -> Result<Place, TooMany> {
            let peer = ip(peer);
            let newcomer = Newcomer {
                via,
                peer,
                is_broker,
            };
            self.admission.enter(via, peer.into());
            self.open += 1;
            let counts = (self.open, 3);
            let admitted = self
                .admission
                .admit(newcomer, counts, &self.unheard, self.now);
            if admitted.is_err() {
                self.admission.leave(via, peer.into(), false);
                self.open -= 1;
            }
            admitted
        }

        fn opens(&mut self, via: Listener, peer: &str) -> bool {
            self.opens_as(via, peer, false).is_ok()
        }
    }

    #[test]
    fn places_for_the_own_machine_and_for_brokers_are_for_nobody_else_and_come_back() {
        let mut config = BrokerConfig::default();
        config.server.max_connections = 2;
        config.server.reserved_connections = 2;
        let mut played = Played::new(&config);
        for _ in 0..2 {
            assert!(played.opens(Listener::Kafka, "10.0.0.1"));
        }
        assert!(!played.opens(Listener::Native, "10.0.0.1"));
        assert!(
            !played.opens(Listener::Kafka, "127.0.0.1"),
            "its operator is native"
        );
        assert!(played.opens(Listener::Native, "127.0.0.1"));
        assert!(played.opens(Listener::Native, "::ffff:127.0.0.1"));
        let all = played.opens_as(Listener::Native, "::1", false);
        assert_eq!(all.map(|_| ()), Err(TooMany::InAll(2)));
        for _ in 0..3 {
            assert!(played.opens_as(Listener::Native, "10.0.0.2", true).is_ok());
        }
        assert!(played.opens_as(Listener::Native, "10.0.0.2", true).is_err());
        let admission = &played.admission;
        let native = Via::from(Listener::Native);
        admission.leave(native, ip("127.0.0.1").into(), true);
        played.open -= 1;
        let again = played.opens_as(Listener::Native, "127.0.0.1", false);
        assert!(again.is_ok_and(|place| place.is_reserved));
    }

    #[test]
    fn kafkas_clients_leave_places_to_native_ones() {
        let mut config = BrokerConfig::default();
        config.kafka.max_connections = 2;
        let mut played = Played::new(&config);
        for _ in 0..2 {
            assert!(played.opens(Listener::Kafka, "10.0.0.1"));
        }
        let refused = played.opens_as(Listener::Kafka, "10.0.0.2", false);
        assert_eq!(refused.map(|_| ()), Err(TooMany::OfKafka(2)));
        assert!(played.opens(Listener::Native, "10.0.0.2"));
        let labels = vec![
            ("limit", "silent".to_owned()),
            ("listener", "kafka".to_owned()),
        ];
        let kafka = Via::from(Listener::Kafka);
        let _silent = played.unheard.enter(ip("10.0.0.1").into(), kafka);
        assert!(played.opens(Listener::Kafka, "10.0.0.2"), "it makes room");
        let refused = &played.admission.refused;
        assert_eq!(refused.get_or_create_owned(&labels).get(), 1);
    }

    #[test]
    fn a_name_has_a_limit_of_its_own_and_leaves_places_to_others() {
        let mut config = BrokerConfig::default();
        let name = |text| ListenerName::new(text).expect("a name");
        let (outer, inner) = (name("outer"), name("inner"));
        config.listeners.max_connections = vec![(outer.clone(), 2)];
        let mut played = Played::new(&config);
        let at = |name: &ListenerName| Via::new(Listener::Kafka, Some(name.as_str()));
        for _ in 0..2 {
            assert!(played.opens_at(at(&outer), "10.0.0.1", false).is_ok());
        }
        let refused = played.opens_at(at(&outer), "10.0.0.2", false);
        assert_eq!(refused.map(|_| ()), Err(TooMany::OfName("outer", 2)));
        for _ in 0..3 {
            assert!(played.opens_at(at(&inner), "10.0.0.1", false).is_ok());
        }
        assert!(played.opens(Listener::Kafka, "10.0.0.1"), "without a name");
        // One that has said nothing at another name makes no room, and one at this name does.
        let _other = played.unheard.enter(ip("10.0.0.1").into(), at(&inner));
        assert!(played.opens_at(at(&outer), "10.0.0.2", false).is_err());
        let _silent = played.unheard.enter(ip("10.0.0.1").into(), at(&outer));
        assert!(played.opens_at(at(&outer), "10.0.0.2", false).is_ok());
        // Who was refused took no place, and who has left gives it back.
        let admission = &played.admission;
        for _ in 0..2 {
            admission.leave(at(&outer), ip("10.0.0.1").into(), false);
        }
        assert!(played.opens_at(at(&outer), "10.0.0.2", false).is_ok());
    }

    #[test]
    fn neither_brokers_nor_the_own_machine_wait_for_their_turn_or_have_a_limit_of_addresses() {
        let mut config = BrokerConfig::default();
        config.server.connection_creation_rate = 1;
        config.server.max_connections_per_address = 50;
        config.server.reserved_connections = 10;
        let mut played = Played::new(&config);
        let clients = (0..40).map(|number| format!("10.0.1.{number}"));
        let clients = clients.filter(|address| played.opens(Listener::Native, address));
        assert_eq!(clients.count(), 2 + 3, "one a second");
        let too_fast = played.opens_as(Listener::Kafka, "127.0.0.1", false);
        assert_eq!(too_fast.map(|_| ()), Err(TooMany::TooFastInAll(1)));
        for _ in 0..60 {
            let broker = played.opens_as(Listener::Native, "10.0.0.2", true);
            assert!(broker.is_ok_and(|place| place.wait.is_zero()));
            let own = played.opens_as(Listener::Native, "127.0.0.1", false);
            assert!(own.is_ok_and(|place| place.wait.is_zero()));
        }
        let full = played.opens_as(Listener::Native, "127.0.0.1", false);
        let limit = TooMany::FromAddress(ip("127.0.0.1"), 50);
        assert_eq!(full.map(|_| ()), Err(limit));
    }
}
