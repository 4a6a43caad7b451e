//! What is counted of a client's connection while it lives.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::admission::{Place, TooMany};
use crate::config::Via;
use crate::shared::Shared;
use crate::unheard::{Source, Wanted};

/// About what a connection takes of the allocator.
const OF_CONNECTION: usize = 4 << 10;
/// About what one takes whose client has still to prove who it is, its task and its first buffers included.
const OF_STRANGER: usize = 12 << 10;

/// Counts a connection while it lives.
pub struct Counted {
    pub(crate) shared: Arc<Shared>,
    via: Via,
    source: Source,
    /// It has a place that is kept for programs on this machine.
    is_reserved: bool,
    carries_data: bool,
    /// Its number among those that have not been heard.
    unheard: Option<u64>,
}

/// A connection that has a place.
pub struct Admitted {
    counted: Counted,
    wanted: Wanted,
    wait: Duration,
}

impl Admitted {
    /// Waits for its turn, where connections come faster than they may; `None` if its place was wanted for another before.
    pub async fn turn(self) -> Option<(Counted, Wanted)> {
        let Self {
            counted,
            mut wanted,
            wait,
        } = self;
        let has_place = wanted.keeps_for(wait).await;
        has_place.then_some((counted, wanted))
    }
}

impl Counted {
    /// Counts one more connection to `via`, from `peer`, if there is room for it. Until it is
    /// [heard](Self::heard) it may be told that its place is wanted for another. It may be from here on, not only once
    /// its task runs: or of many that come at once those that came first would be refused for those that came last.
    ///
    /// # Errors
    /// Which limit there is. It takes no place then, or those that are refused would take the ones that are kept for
    /// brokers.
    pub fn admit(shared: &Arc<Shared>, via: Via, peer: IpAddr) -> Result<Admitted, TooMany> {
        let source = Source::from(peer);
        shared.data.metrics.connections_accepted.inc();
        shared.connections.fetch_add(1, Ordering::Relaxed);
        shared.admission.enter(via, source);
        let mut counted = Self {
            shared: shared.clone(),
            via,
            source,
            is_reserved: false,
            carries_data: false,
            unheard: None,
        };
        let Place { wait, is_reserved } = shared.admit(via, peer)?;
        counted.is_reserved = is_reserved;
        let (number, wanted) = shared.unheard.enter(source, via);
        counted.unheard = Some(number);
        Ok(Admitted {
            counted,
            wanted,
            wait,
        })
    }

    /// Its client has still to prove who it is, and it wants to hold so many bytes in all. False: it may not
    /// [yet](crate::unheard::Unheard::hold).
    #[must_use]
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let unheard = &self.shared.unheard;
        self.unheard
            .is_none_or(|number| unheard.hold(number, OF_STRANGER + bytes, false))
    }

    /// It holds so many bytes already. If there are too many, another makes room, or it is to end itself.
    pub(crate) fn holds(&self, bytes: usize) {
        if let Some(number) = self.unheard {
            let unheard = &self.shared.unheard;
            unheard.hold(number, OF_STRANGER + bytes, true);
        }
    }

    /// It has said what it wants: its place is its own.
    pub fn heard(&mut self) {
        if let Some(number) = self.unheard.take() {
            self.shared.unheard.leave(number);
        }
    }

    /// Counts it among those that drain when the broker stops.
    pub fn of_data(mut self) -> Self {
        self.shared.data_connections.fetch_add(1, Ordering::Relaxed);
        self.carries_data = true;
        self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.heard();
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        let (via, source) = (self.via, self.source);
        self.shared.admission.leave(via, source, self.is_reserved);
        self.shared.data.note_freed(OF_CONNECTION);
        if self.carries_data {
            self.shared.data_connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
