//! A cluster on loopback: brokers that share an etcd, at ports of their own.

use std::time::Duration;

use serde_json::Value;

use crate::asking;
use crate::clock::Clock;
use crate::common::Broker;
use crate::common::holdings::{Directories, nothing_was_missed};
use crate::common::place::Place;
use crate::etcd::Etcd;
use crate::mutation::BROKEN;
use crate::nodes::{REPAIR, init};

/// Brokers 1, 2, ... and their etcd.
pub struct Local {
    pub brokers: Vec<Broker>,
    pub clocks: Vec<Clock>,
    pub store: Etcd,
    /// How long a broker may be silent before others take over.
    lease: Duration,
    /// Brokers that are stopped, and would let a command wait.
    stopped: Vec<u32>,
    places: Vec<Place>,
}

impl Local {
    /// So many brokers with such leases, which serve when this returns.
    pub fn start(brokers: u32, lease: Duration) -> Self {
        let store = Etcd::plain();
        init(&store.address());
        let mut local = Self {
            brokers: Vec::new(),
            clocks: Vec::new(),
            store,
            lease,
            stopped: Vec::new(),
            places: Vec::new(),
        };
        for _ in 0..brokers {
            local.add();
        }
        local
    }

    /// One more broker, under the next number.
    pub fn add(&mut self) {
        let number = self.brokers.len() + 1;
        let place = Place::new();
        let mut words = place.flags(number, ["--cluster", &self.store.address()]);
        let lease = format!("{}s", self.lease.as_secs());
        let flags = [
            ["--cluster-lease", &lease],
            ["--consumers-session-min", "500ms"],
            ["--retention-check-interval", "200ms"],
            ["--cluster-repair-interval", REPAIR],
            ["--compaction-check-interval", "200ms"],
        ];
        words.extend(flags.as_flattened().iter().map(|&flag| flag.to_owned()));
        let clock = Clock::new();
        let mut within = clock.within();
        if let Ok(rule) = std::env::var(BROKEN) {
            within.push(format!("KERA_BROKEN_RULE={rule}"));
        }
        let broker = Broker::within(within, "127.0.0.1:0", words);
        self.brokers.push(broker);
        self.clocks.push(clock);
        self.places.push(place);
    }

    /// Where the brokers keep bytes.
    pub fn directories(&self) -> Vec<Directories> {
        let brokers = (1..).zip(self.brokers.iter().zip(&self.places));
        let of = |(number, (broker, place)): (u32, (&Broker, &Place))| Directories {
            broker: number,
            kept: vec![place.shared().into(), broker.data_dir().join("backup")],
            data: broker.data_dir().into(),
            runs: broker.was_started(),
            harmed: false,
        };
        brokers.map(of).collect()
    }

    /// Fails if an owner has found that a broker does not have what it is recorded to have. Here nobody removes
    /// files, and what is trimmed is trimmed later.
    pub fn nothing_was_missed(&self) {
        nothing_was_missed(&self.brokers);
    }

    /// How many rounds of its jobs a broker has ended.
    pub fn rounds(&self, number: u32) -> u64 {
        let status = self.brokers[number as usize - 1].json(&["broker", "describe"]);
        let rounds = status["cluster"]["background"]["rounds"].as_u64();
        rounds.unwrap_or_else(|| panic!("no rounds in {status}"))
    }

    /// Where clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    pub fn broker(&mut self, number: u32) -> &mut Broker {
        &mut self.brokers[number as usize - 1]
    }

    /// Stops the process where it is, or lets it go on.
    pub fn pause(&mut self, number: u32, paused: bool) {
        self.stopped.retain(|other| *other != number);
        if paused {
            self.stopped.push(number);
        }
        self.broker(number).pause(paused);
    }

    /// The brokers that answer commands.
    fn answering(&self) -> String {
        let runs = |(number, _): &(u32, &Broker)| !self.stopped.contains(number);
        let brokers: Vec<_> = (1..)
            .zip(&self.brokers)
            .filter(runs)
            .map(|(_, broker)| broker.address())
            .collect();
        brokers.join(",")
    }

    fn until<T>(&self, words: &[&str], look: impl Fn(&str) -> Option<T>) -> T {
        asking::until(&self.answering(), words, look)
    }

    /// The number of the broker that owns a stream's first streamlet, and the epoch.
    pub fn owner(&self, stream: &str) -> (u32, u64) {
        self.until(&["stream", "list", "--json"], |text| {
            let listed: Value = serde_json::from_str(text).ok()?;
            let mut streams = listed.as_array()?.iter();
            let found = streams.find(|found| found["name"] == stream)?;
            let owner = found["owners"].as_array()?.first()?;
            let address = owner["owner"].as_str()?;
            let at = self.brokers.iter().position(|b| b.address() == address)?;
            Some((at as u32 + 1, owner["epoch"].as_u64()?))
        })
    }

    /// Waits until a broker owns at least one streamlet; how far it is.
    pub fn owns_something(&self, number: u32) -> String {
        self.until(&["cluster", "status", "--json"], |text| {
            let status: Value = serde_json::from_str(text).ok()?;
            let mut brokers = status["brokers"].as_array()?.iter();
            let found = brokers.find(|found| found["broker_id"] == number)?;
            let streamlets = found["streamlets"].as_u64().filter(|count| *count > 0)?;
            Some(format!("{streamlets} of {} streamlets", found["share"]))
        })
    }

    /// Waits until a broker that was started has its share.
    pub fn has_joined(&self, number: u32) {
        let number = number.to_string();
        self.until(&["broker", "add", &number, "--json"], |text| {
            let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
            (last["state"] == "NORMAL").then_some(())
        });
    }

    /// Has a broker give away what it owns, until nobody needs it any more.
    pub fn drain(&self, number: u32) {
        let number = number.to_string();
        self.until(&["broker", "drain", &number, "--json"], |text| {
            let left: Value = serde_json::from_str(text.lines().last()?).ok()?;
            (left["may_stop"] == true).then_some(())
        });
    }
}
