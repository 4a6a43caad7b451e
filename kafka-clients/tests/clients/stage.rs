//! A broker and a client for a scenario.

use std::panic::catch_unwind;

use crate::common::broker::unique;
use crate::common::{Broker, Kind, Session, Setup, machine};

/// What a scenario works with.
pub struct Stage {
    pub name: String,
    pub broker: Broker,
    pub client: Session,
    /// Names that no other test uses.
    pub topic: String,
    pub group: String,
}

/// How a scenario is set up and what it does.
pub struct Scenario {
    pub setup: Setup,
    pub play: fn(&mut Stage),
    /// Whether it makes sense with that client.
    pub with: fn(Kind) -> bool,
}

/// Declares scenarios: each is a function from nothing to [`Scenario`].
macro_rules! scenario {
    ($(#[$meta:meta])* $name:ident, $setup:ident, $with:expr, $play:expr) => {
        $(#[$meta])*
        pub fn $name() -> $crate::stage::Scenario {
            $crate::stage::Scenario {
                setup: $crate::common::Setup::$setup,
                play: $play,
                with: $with,
            }
        }
    };
}
pub(crate) use scenario;

/// Any client will do.
pub fn anyone(_: Kind) -> bool {
    true
}

/// Runs a scenario with a client, if both are possible here.
pub fn run(kind: Kind, name: &str, scenario: fn() -> Scenario) {
    let scenario = scenario();
    // What a client lacks is no fault of the machine, and nothing to report each time.
    if !(scenario.with)(kind) || !kind.is_here(name) {
        return;
    }
    let label = format!("{name}, {}", kind.name());
    if kind.gets_stuck() {
        let first = catch_unwind(|| play(kind, &label, name, &scenario));
        if first.is_ok() {
            return;
        }
        machine::tried_twice(&label);
    }
    play(kind, &label, name, &scenario);
}

fn play(kind: Kind, label: &str, name: &str, scenario: &Scenario) {
    let Some(broker) = Broker::start(label, scenario.setup) else {
        return;
    };
    let client = Session::open(kind, &broker);
    let topic = unique(&format!("{}-{name}", kind.name()));
    let mut stage = Stage {
        name: label.to_owned(),
        broker,
        client,
        group: format!("{topic}-group"),
        topic,
    };
    (scenario.play)(&mut stage);
}

impl Stage {
    /// A new process of the same client; the old one is gone as in a crash.
    pub fn renew_client(&mut self) {
        self.client = Session::open(self.client.kind, &self.broker);
    }
}
