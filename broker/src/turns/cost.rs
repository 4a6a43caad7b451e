//! What requests cost, and how much of that the broker can do.

use kera_metadata::QuotasRecord;
use kera_metadata::quota::{Objective, Whom};

use crate::config::ObjectivesConfig;
use crate::quotas::Metered;

/// Tokens that a broker at its limit works off in a second: a token is a millionth of a second of all that it has.
const FULL: f64 = 1e6;
/// The part of what may be used that is never guaranteed, so that those without an objective go on.
const NEVER_GUARANTEED: f64 = 0.1;
/// While there are objectives one answer brings no more than may be read in so many seconds,
const MOST_OF_AN_ANSWER: f64 = 0.1;
/// or so many bytes, if that is more.
const LEAST_OF_AN_ANSWER: f64 = 65_536.0;
/// Requests a second that an objective guarantees at the least.
const LEAST_REQUESTS: f64 = 1.0;
/// The longest time from request to answer that an objective promises, milliseconds: clients wait for no answer as long.
const MOST_LATENCY_MS: f64 = 60_000.0;

/// What a broker can do, and what of that a request takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    request: f64,
    appended_byte: f64,
    read_byte: f64,
    /// Tokens a second that may be used while there are objectives.
    pub(super) rate: f64,
    /// Milliseconds below which nothing can be promised.
    latency_ms: f64,
}

impl Capacity {
    /// As it is configured.
    pub(crate) fn of(config: &ObjectivesConfig) -> Self {
        Self {
            request: FULL / f64::from(config.requests_per_second),
            appended_byte: FULL / config.append_bytes_per_second as f64,
            read_byte: FULL / config.read_bytes_per_second as f64,
            rate: FULL * f64::from(config.load) / 100.0,
            latency_ms: config.latency.as_secs_f64() * 1e3,
        }
    }

    /// What a request costs that appends or reads so many bytes.
    pub(super) fn cost(&self, metered: Metered, bytes: usize) -> f64 {
        let byte = match metered {
            Metered::Appends => self.appended_byte,
            Metered::Reads => self.read_byte,
            Metered::Time => 0.0,
        };
        self.request + bytes as f64 * byte
    }

    /// What it costs that a request is there, whatever it brings.
    pub(super) fn of_request(&self) -> f64 {
        self.request
    }

    /// Bytes that one answer to a read brings at most, unless its first batch has more.
    pub(super) fn most_read(&self) -> usize {
        let bytes = self.rate * MOST_OF_AN_ANSWER / self.read_byte;
        bytes.max(LEAST_OF_AN_ANSWER) as usize
    }

    /// Tokens a second that an objective guarantees: its bytes may be appended or read.
    pub(super) fn guaranteed(&self, objective: &Objective) -> f64 {
        let byte = self.appended_byte.max(self.read_byte);
        objective.request_rate * self.request + objective.byte_rate * byte
    }

    /// Tokens a second that all objectives together may guarantee.
    pub(super) fn most_guaranteed(&self) -> f64 {
        self.rate * (1.0 - NEVER_GUARANTEED)
    }

    /// Whether this broker can keep the objective of `user` together with the other objectives in `record`.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub(crate) fn admits(&self, record: &QuotasRecord, user: &str) -> Result<(), String> {
        let percent = |tokens: f64| 100.0 * tokens / self.rate;
        let (mut own, mut others) = (None, Vec::new());
        for (name, objective) in objectives(record) {
            match name == user {
                true => own = Some(objective),
                false => others.push((name, self.guaranteed(&objective))),
            }
        }
        let Some(own) = own else { return Ok(()) };
        if own.request_rate < LEAST_REQUESTS {
            return Err(format!(
                "the objective of user {user} has a request rate of {:?} a second, and at least {LEAST_REQUESTS} is to be guaranteed; promise that much, or delete the objective",
                own.request_rate
            ));
        }
        if own.latency_ms < self.latency_ms {
            return Err(format!(
                "the objective of user {user} is {} ms, and at the load that this broker takes one answer in a hundred has more than {} ms (objectives.latency); promise more, or calibrate the broker for less (kera calibrate --latency)",
                own.latency_ms, self.latency_ms
            ));
        }
        if own.latency_ms > MOST_LATENCY_MS {
            return Err(format!(
                "the objective of user {user} is {:?} ms, and an objective is {MOST_LATENCY_MS} ms at most: no client waits longer; promise less, or delete the objective",
                own.latency_ms
            ));
        }
        let (asked, there) = (self.guaranteed(&own), self.most_guaranteed());
        let promised: f64 = others.iter().map(|(_, tokens)| tokens).sum();
        if promised + asked <= there {
            return Ok(());
        }
        others.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let shown = others.iter().take(5);
        let shown =
            shown.map(|(name, tokens)| format!(", user {name} has {:.1} %", percent(*tokens)));
        Err(format!(
            "the objective of user {user} takes {:.1} % of what clients may use of this broker, and {:.1} % are left of the {:.0} % that may be guaranteed{}; promise less, delete an objective, or calibrate the broker (kera calibrate)",
            percent(asked),
            percent((there - promised).max(0.0)),
            percent(there),
            shown.collect::<String>()
        ))
    }
}

/// The users that have an objective.
pub(super) fn objectives(record: &QuotasRecord) -> impl Iterator<Item = (&str, Objective)> {
    record.quotas.iter().filter_map(|quota| {
        let Some(Whom::Name(name)) = &quota.entity.user else {
            return None;
        };
        Some((name.as_str(), quota.objective()?))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kera_metadata::Quota;
    use kera_metadata::quota::{Limit, QuotaEntity, QuotaKind};

    use super::*;

    fn capacity() -> Capacity {
        Capacity::of(&ObjectivesConfig {
            requests_per_second: 1000,
            append_bytes_per_second: 1_000_000,
            read_bytes_per_second: 4_000_000,
            load: 50,
            latency: Duration::from_millis(4),
        })
    }

    fn record(objectives: &[(&str, [f64; 3])]) -> QuotasRecord {
        let quotas = objectives.iter().map(|(name, values)| {
            let limits = QuotaKind::OBJECTIVE.into_iter().zip(values);
            let limits = limits.map(|(kind, value)| (kind, Limit::new(*value).unwrap()));
            let entity = QuotaEntity {
                user: Some(Whom::Name((*name).to_owned())),
                ..QuotaEntity::default()
            };
            let limits = limits.collect();
            Quota { entity, limits }
        });
        let (quotas, revision) = (quotas.collect(), 1);
        QuotasRecord { quotas, revision }
    }

    #[test]
    fn a_request_costs_its_part_of_what_the_broker_can_do() {
        let capacity = capacity();
        // A thousandth of a second for the request, and a thousandth for a thousandth of the bytes.
        assert_eq!(capacity.cost(Metered::Appends, 0), 1000.0);
        assert_eq!(capacity.cost(Metered::Appends, 1000), 2000.0);
        assert_eq!(capacity.cost(Metered::Reads, 4000), 2000.0);
        assert_eq!(capacity.cost(Metered::Time, 4000), 1000.0);
    }

    #[test]
    fn one_answer_brings_no_more_than_may_be_read_in_a_tenth_of_a_second() {
        // Of 4,000,000 bytes a second half may be read.
        assert_eq!(capacity().most_read(), 200_000);
    }

    #[test]
    fn what_cannot_be_met_beside_the_others_is_refused_with_the_reason() {
        let capacity = capacity();
        let admits = |all: &[(&str, [f64; 3])]| capacity.admits(&record(all), "ann");
        // Of 500,000 tokens 450,000 may be guaranteed: 200 requests and 250,000 bytes take just that.
        admits(&[("ann", [4.0, 200.0, 250_000.0])]).unwrap();
        let much = admits(&[("ann", [4.0, 200.0, 251_000.0])]).unwrap_err();
        assert!(
            much.contains("takes 90.2 %") && much.contains("90.0 % are left"),
            "{much}"
        );
        let beside = [
            ("ann", [4.0, 200.0, 50_000.0]),
            ("bob", [9.0, 100.0, 150_000.0]),
        ];
        let beside = admits(&beside).unwrap_err();
        assert!(
            beside.contains("40.0 % are left") && beside.contains("user bob has 50.0 %"),
            "{beside}"
        );
        for few in [0.999, 1e-300, 5e-324] {
            let few = admits(&[("ann", [4.0, few, 1.0])]).unwrap_err();
            assert!(few.contains("at least 1 "), "{few}");
        }
        let soon = admits(&[("ann", [3.9, 1.0, 1.0])]).unwrap_err();
        assert!(soon.contains("objectives.latency"), "{soon}");
        admits(&[("ann", [60_000.0, 1.0, 1.0])]).unwrap();
        for late in [60_000.1, 1e300] {
            let late = admits(&[("ann", [late, 1.0, 1.0])]).unwrap_err();
            assert!(late.contains("60000 ms at most"), "{late}");
        }
        // A user without an objective is always admitted.
        admits(&[("bob", [1.0, 9000.0, 9.0])]).unwrap();
    }
}
