//! Refusals that may pass: a broker may hear of a user, or get its new certificate, later than others.

use std::time::Duration;

use tokio::time::Instant;

/// For how long brokers may refuse what one of them has taken before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What brokers have said of a client's login, or of its TLS.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    is_taken: bool,
    /// Since when brokers refuse it, and when one did last.
    refused: Option<(Instant, Instant)>,
}

impl Refusals {
    /// A broker takes it.
    pub(crate) fn taken(&mut self) {
        (self.is_taken, self.refused) = (true, None);
    }

    /// A broker refuses it. True if it may be taken again.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        // Connections that go on say nothing meanwhile: a refusal of long ago is no beginning of this one.
        let is_recent = |(_, last): &(Instant, Instant)| now.duration_since(*last) < PATIENCE;
        let since = self
            .refused
            .filter(is_recent)
            .map_or(now, |(since, _)| since);
        self.refused = Some((since, now));
        self.is_taken && now.duration_since(since) < PATIENCE
    }
}
