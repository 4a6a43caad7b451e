//! What both sides of a load did.

use serde::{Deserialize, Serialize};

use crate::Latency;

/// Producers and consumers, each by themselves; what a load does not have is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sides {
    /// Records acknowledged, and how long that took all producers together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced: Option<Side>,
    /// Records that reached consumers, once for each subscription, and how long that took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumed: Option<Side>,
    /// Records a second that were to be sent, and that were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// From when a record was due to its acknowledgement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acks: Option<Latency>,
    /// The same while a consumer caught up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_acks: Option<Latency>,
    /// Partitions, if the broker could not have as many as wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u32>,
}

/// One side's work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Records that it sent or saw.
    pub records: u64,
    /// How long that took.
    pub seconds: f64,
}

/// How an open loop went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Records a second that were asked for.
    pub wanted: f64,
    /// Records a second that were sent.
    pub reached: f64,
}

impl Side {
    /// Records a second.
    pub fn per_second(&self) -> f64 {
        self.records as f64 / self.seconds.max(1e-9)
    }
}

impl Rate {
    /// True if the load was sent as fast as it was to be, but for a twentieth.
    pub fn is_kept(&self) -> bool {
        self.reached >= 0.95 * self.wanted
    }
}
