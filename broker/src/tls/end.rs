//! What the log says of a certificate's end: once before it, and once when it has come.

use std::path::Path;

use parking_lot::Mutex;

use crate::calendar::rfc3339;

/// From when on the end is near, in seconds: as the alert has it.
const NEAR: i64 = 14 * 86_400;

/// How near the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Far,
    Near,
    Past,
}

/// What was told last: of a certificate that ends then, and how near that was.
#[derive(Default)]
pub(super) struct EndTold(Mutex<Option<(i64, Nearness)>>);

impl EndTold {
    /// Tells the log, if there is something that it does not say yet: the certificate in `file` is valid until
    /// `not_after`, and it is `now`, both in seconds since 1970.
    pub(super) fn tell(&self, file: &Path, not_after: i64, now: i64) {
        let end = rfc3339(u64::try_from(not_after).unwrap_or(0).saturating_mul(1000));
        let file = file.display();
        match self.due(not_after, now) {
            Some(Nearness::Past) => tracing::error!(
                "the certificate in tls.certificate has expired, at {end}: clients and other brokers refuse it; put a new one into {file}, it is taken without a restart"
            ),
            Some(Nearness::Near) => tracing::warn!(
                "the certificate in tls.certificate expires at {end}, and is refused from then on; put a new one into {file} before, it is taken without a restart"
            ),
            Some(Nearness::Far) | None => {}
        }
    }

    /// How near the end is, if that was not told of this certificate. A clock that is set back says nothing anew.
    fn due(&self, not_after: i64, now: i64) -> Option<Nearness> {
        let nearness = match not_after.saturating_sub(now) {
            ..=0 => Nearness::Past,
            1..NEAR => Nearness::Near,
            _ => Nearness::Far,
        };
        let mut told = self.0.lock();
        let is_known = told.is_some_and(|(end, before)| end == not_after && before >= nearness);
        if is_known {
            return None;
        }
        *told = Some((not_after, nearness));
        Some(nearness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_once_before_it_and_once_when_it_has_come() {
        let told = EndTold::default();
        let end = 2_000_000_000;
        let at = |now| told.due(end, now).filter(|one| *one != Nearness::Far);
        assert_eq!(at(end - NEAR), None);
        assert_eq!(at(end - NEAR + 1), Some(Nearness::Near));
        assert_eq!(at(end - 1), None, "told already");
        assert_eq!(at(end), Some(Nearness::Past));
        assert_eq!(at(end + 1), None);
        assert_eq!(at(end - 1), None, "a clock that was set back");
        // A new certificate has its own end, and may have it soon too.
        assert_eq!(told.due(end + 60, end + 1), Some(Nearness::Near));
        assert_eq!(told.due(end + 60, end + 60), Some(Nearness::Past));
        assert_eq!(told.due(end + 61, end + 61), Some(Nearness::Past));
    }
}
