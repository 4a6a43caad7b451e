//! Lanes that do not go on, and why: for whoever asks, and told in the log.

use std::sync::Arc;
use std::time::Duration;

use kera_rpc::{Reports, Stall, TOLD_AFTER};
use tokio::time::Instant;

use super::Fetcher;
use super::source::Source;
use super::state::State;
use super::trouble::{Tried, Trouble};

/// For so long a trouble counts as the same that went on while another attempt was made.
const SAME_TROUBLE: Duration = Duration::from_secs(10);

impl Source {
    /// Notes why it does not go on.
    pub(super) fn in_trouble(&mut self, since: Instant, why: String, of_link: bool) {
        let now = Instant::now();
        let tried = self.tried.filter(|tried| now < tried.at + SAME_TROUBLE);
        let known = self.trouble.as_ref().map(|known| known.since);
        let since = known.or(tried.map(|tried| tried.since)).unwrap_or(since);
        self.trouble = Some(Trouble {
            since,
            why,
            of_link,
        });
    }

    /// The broker serves it again, as it says; whether something comes of it will be seen.
    pub(super) fn tried_again(&mut self, now: Instant) {
        if let Some(trouble) = self.trouble.take() {
            self.tried = Some(Tried {
                since: trouble.since,
                at: now,
            });
        }
    }

    /// It goes on.
    pub(super) fn out_of_trouble(&mut self) {
        (self.trouble, self.tried) = (None, None);
    }
}

impl State {
    /// Notes that a broker is not reached.
    pub(super) fn broker_in_trouble(&mut self, address: &Arc<str>, since: Instant, why: &str) {
        for source in self.sources.values_mut() {
            if source.broker() == Some(address) && !source.has_ended() {
                source.in_trouble(since, why.to_owned(), true);
            }
        }
    }

    /// Notes that a broker is reached, again or still.
    pub(super) fn broker_is_well(&mut self, address: &Arc<str>) {
        for source in self.sources.values_mut() {
            if source.broker() == Some(address) {
                source.trouble.take_if(|trouble| trouble.of_link);
            }
        }
    }

    /// Notes why owners are not known.
    pub(super) fn owners_in_trouble(&mut self, why: &str) {
        for source in self.sources.values_mut() {
            if source.owner.is_none() && !source.has_ended() {
                source.in_trouble(Instant::now(), why.to_owned(), true);
            }
        }
    }

    fn stall(&self, now: Instant, longer: Duration) -> Option<Stall> {
        self.sources.values().fold(None, |found, source| {
            let Some(trouble) = &source.trouble else {
                return found;
            };
            let waited = now.duration_since(trouble.since);
            if waited < longer {
                return found;
            }
            let mut stall = Stall::new(source.spec.lane.streamlet.0, waited, &*trouble.why);
            stall.lane = Some(source.spec.lane.lane.0);
            stall.broker = source.broker().cloned();
            Some(stall.join(found))
        })
    }

    /// True if something does not go on, which may have to be told.
    fn is_in_trouble(&self) -> bool {
        self.sources.values().any(|source| source.trouble.is_some())
    }
}

impl Fetcher {
    /// The lanes that have not gone on for `longer` although they could be read, and why.
    pub(crate) fn stall(&self, longer: Duration) -> Option<Stall> {
        self.state.lock().stall(Instant::now(), longer)
    }

    /// Tells in the log what has not gone on for a while. True if it is to be called again.
    pub(super) fn tell_stall(&self, reports: &mut Reports) -> bool {
        let now = Instant::now();
        let state = self.state.lock();
        let (stall, again) = (state.stall(now, TOLD_AFTER), state.is_in_trouble());
        drop(state);
        reports.tell(now, &self.stream, stall.as_ref());
        again
    }
}
