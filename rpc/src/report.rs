//! Telling people what is waited for, so that nothing waits in silence.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What waits for so long is told.
pub const TOLD_AFTER: Duration = Duration::from_secs(2);
/// Longest time between two reports of the same cause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often is looked whether there is something to tell.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Lanes that do not go on, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// How many lanes stand still.
    pub lanes: usize,
    /// Of these the one that has waited longest,
    pub streamlet: u32,
    /// `None` where the owner chooses lanes.
    pub lane: Option<u32>,
    /// The broker that is waited for; `None` if the owner is not known.
    pub broker: Option<Arc<str>>,
    /// For how long it has waited.
    pub waited: Duration,
    /// The last error, or what does not come.
    pub why: String,
}

impl Stall {
    /// One lane that does not go on.
    pub fn new(streamlet: u32, waited: Duration, why: impl Into<String>) -> Self {
        Self {
            lanes: 1,
            streamlet,
            lane: None,
            broker: None,
            waited,
            why: why.into(),
        }
    }

    /// Counts another stall in: the longer one is described.
    pub fn join(self, other: Option<Self>) -> Self {
        let Some(other) = other else {
            return self;
        };
        let lanes = self.lanes + other.lanes;
        let longer = match other.waited > self.waited {
            true => other,
            false => self,
        };
        Self { lanes, ..longer }
    }

    /// What is told of it but for the time, which passes.
    fn cause(&self) -> String {
        let (lane, broker) = self.place();
        format!("{lane}{broker}{}", self.why)
    }

    fn place(&self) -> (String, String) {
        let lane = self
            .lane
            .map_or_else(String::new, |lane| format!(" lane {lane}"));
        let broker = match &self.broker {
            Some(broker) => format!("broker {broker}"),
            None => "its owner".to_owned(),
        };
        (lane, broker)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, broker) = self.place();
        write!(
            f,
            "streamlet {}{lane} has waited {:.0} s for {broker}: {}",
            self.streamlet,
            self.waited.as_secs_f64(),
            self.why
        )?;
        match self.lanes {
            0 | 1 => Ok(()),
            lanes => write!(f, " (and {} more wait)", lanes - 1),
        }
    }
}

/// Decides when to tell what is waited for: once for each cause, and again at growing intervals.
#[derive(Debug, Default)]
pub struct Reports {
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    cause: String,
    at: Instant,
    pause: Duration,
}

impl Reports {
    /// True if `cause` is to be told now.
    pub fn is_due(&mut self, now: Instant, cause: &str) -> bool {
        let pause = match &self.told {
            None => TOLD_AFTER,
            // Causes that take turns are not told all the time either.
            Some(told) if now < told.at + told.pause.min(TOLD_AFTER) => return false,
            Some(told) if told.cause != cause => TOLD_AFTER,
            Some(told) if now < told.at + told.pause => return false,
            Some(told) => (told.pause * 2).min(LONGEST_PAUSE),
        };
        self.told = Some(Told {
            cause: cause.to_owned(),
            at: now,
            pause,
        });
        true
    }

    /// Tells of lanes that do not go on, in the log; what follows is told anew once they do.
    pub fn tell(&mut self, now: Instant, stream: &str, stall: Option<&Stall>) {
        let Some(stall) = stall else {
            self.told = None;
            return;
        };
        if self.is_due(now, &stall.cause()) {
            tracing::warn!("stream {stream}: {stall}");
        }
    }
}

/// Does `work`, and tells in the log what it waits for while it takes long. `None`: nothing is wrong so
/// far.
pub async fn told<T>(work: impl Future<Output = T>, waits_for: impl Fn() -> Option<String>) -> T {
    let mut work = pin!(work);
    let mut reports = Reports::default();
    let mut next = Instant::now() + TOLD_AFTER;
    loop {
        if let Ok(done) = tokio::time::timeout_at(next, &mut work).await {
            return done;
        }
        let now = Instant::now();
        if let Some(text) = waits_for()
            && reports.is_due(now, &text)
        {
            tracing::warn!("{text}");
        }
        next = now + LOOK_EVERY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_and_again_at_growing_intervals() {
        let begin = Instant::now();
        let mut reports = Reports::default();
        let mut told = |cause: &str, from: u64, to: u64| {
            let at = |tenth: &u64| begin + Duration::from_millis(tenth * 100);
            let due = (from..to).filter(|tenth| reports.is_due(at(tenth), cause));
            due.collect::<Vec<_>>()
        };
        assert_eq!(told("refused", 0, 300), [0, 20, 60, 140]);
        assert_eq!(told("lost", 300, 310), [300]);
        let taking_turns: Vec<_> = (310..350)
            .flat_map(|tenth| told(["refused", "lost"][tenth as usize % 2], tenth, tenth + 1))
            .collect();
        assert!(taking_turns.len() <= 2, "{taking_turns:?}");
    }

    #[test]
    fn the_longest_wait_is_described_and_the_others_are_counted() {
        let short = Stall::new(1, Duration::from_secs(3), "short");
        let long = Stall {
            lane: Some(2),
            broker: Some("a:1".into()),
            ..Stall::new(0, Duration::from_secs(5), "connection refused")
        };
        let text = short.clone().join(Some(long.clone()));
        assert_eq!(
            text.to_string(),
            "streamlet 0 lane 2 has waited 5 s for broker a:1: connection refused (and 1 more wait)"
        );
        assert_eq!(long.join(None).join(Some(short)), text);
    }
}
