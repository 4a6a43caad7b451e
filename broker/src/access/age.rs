//! How old the rules of access are that this broker knows: how long ago the metadata store last confirmed them.
//!
//! While etcd is away nobody hears of rules that others made. With `acl.max_age` such rules count for a time only.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};

use crate::clock::now_ms;

/// The store is asked at least so often in the greatest age.
const LOOKS: u32 = 4;
/// And at least this often.
const LOOK_EVERY_MOST: Duration = Duration::from_secs(60);

/// When the rules were confirmed last, by a clock.
pub(super) struct Age {
    most: Duration,
    confirmed_ms: AtomicU64,
    /// Somebody has been refused because of it, and nothing was confirmed since.
    told: AtomicBool,
    clock: fn() -> u64,
}

impl Age {
    /// Confirmed now. `clock` tells milliseconds and never goes back.
    pub(super) fn new(most: Duration, clock: fn() -> u64) -> Self {
        Self {
            most,
            confirmed_ms: AtomicU64::new(clock()),
            told: AtomicBool::new(false),
            clock,
        }
    }

    /// By the steady clock.
    pub(super) fn steady(most: Duration) -> Self {
        Self::new(most, now_ms)
    }

    /// Now, as [`Self::confirm`] takes it.
    pub(super) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// What is known was read from the store, which was asked at `asked`.
    pub(super) fn confirm(&self, asked: u64) {
        self.confirmed_ms.fetch_max(asked, Ordering::Relaxed);
        if !self.is_over() && self.told.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "the metadata store confirms the rules of access again; requests are served as they allow"
            );
        }
    }

    /// How long ago that was.
    pub(super) fn age(&self) -> Duration {
        let confirmed = self.confirmed_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now().saturating_sub(confirmed))
    }

    /// The rules count no more.
    pub(super) fn is_over(&self) -> bool {
        self.age() > self.most
    }

    /// Why a request is refused that rules would decide about.
    pub(super) fn refusal(&self) -> WireError {
        let (age, most) = (self.age().as_secs(), self.most.as_secs());
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                age_s = age,
                max_age_s = most,
                "the metadata store has not confirmed the rules of access for longer than acl.max_age: until it answers only users in acl.super_users are served"
            );
        }
        let text = format!(
            "the rules of access that this broker knows are {age} s old and count for {most} s (acl.max_age): its metadata store does not answer; try again, and see that etcd is there"
        );
        WireError::new(ErrorCode::Overloaded, text)
    }

    /// How often the store is to be asked.
    pub(super) fn look_every(&self) -> Duration {
        (self.most / LOOKS).min(LOOK_EVERY_MOST)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use kera_metadata::access::{ANY, Kind, Operation, Pattern, Permission};
    use kera_metadata::{Rule, RulesRecord};

    use super::super::{Access, Who};
    use super::*;
    use crate::audit::Audit;
    use crate::config::{AclConfig, BrokerConfig, Listener};
    use crate::principal::Principal;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(1_000) };
    }

    fn clock() -> u64 {
        NOW.get()
    }

    fn later(by: Duration) {
        NOW.set(NOW.get() + by.as_millis() as u64);
    }

    const MOST: Duration = Duration::from_secs(60);

    /// Rules by which ann may read the stream, and a super user.
    fn access(max_age: Duration) -> Access {
        let config = AclConfig {
            enabled: true,
            super_users: vec!["User:admin".to_owned()],
            max_age,
            ..BrokerConfig::default().acl
        };
        let mut access = Access::new(&config, Some(&record()), Audit::off());
        if access.age.is_some() {
            access.age = Some(Age::new(max_age, clock));
        }
        access
    }

    fn record() -> RulesRecord {
        let rule = Rule {
            kind: Kind::Stream,
            name: "s".to_owned(),
            pattern: Pattern::Literal,
            principal: "User:ann".to_owned(),
            host: ANY.to_owned(),
            operation: Operation::Read,
            permission: Permission::Allow,
        };
        RulesRecord {
            rules: vec![rule],
            roles: Vec::new(),
            revision: 7,
        }
    }

    fn reads(access: &Access, user: &str) -> Result<(), WireError> {
        let name: Arc<str> = user.into();
        let who = Who {
            principal: &Principal::of(Some(&name)),
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            via: Listener::Native.into(),
        };
        access.require(who, Operation::Read, (Kind::Stream, "s"))
    }

    #[test]
    fn rules_that_the_store_has_not_confirmed_for_too_long_decide_nothing() {
        let access = access(MOST);
        let before = access.revision();
        later(MOST);
        assert_eq!(reads(&access, "ann"), Ok(()));
        let denied = reads(&access, "bob").expect_err("no rule allows it");
        assert_eq!(denied.code, ErrorCode::NotAuthorized);
        later(Duration::from_millis(1));
        for user in ["ann", "bob"] {
            let refused = reads(&access, user).expect_err("nobody knows");
            assert!(refused.code.is_retryable(), "{refused}");
            assert!(refused.message.contains("acl.max_age"), "{refused}");
        }
        assert_eq!(reads(&access, "admin"), Ok(()), "he needs no rule");
        assert_eq!(access.outdated.get(), 2);
        assert_ne!(access.revision(), before, "what was allowed is asked again");
        assert_eq!(access.age(), Some(MOST + Duration::from_millis(1)));

        let asked = access.asks();
        later(Duration::from_secs(1));
        access.confirm(&record(), asked);
        assert_eq!(
            access.age(),
            Some(Duration::from_secs(1)),
            "since it was asked"
        );
        assert_eq!(reads(&access, "ann"), Ok(()));
        assert_eq!(access.revision(), before);
    }

    #[test]
    fn an_answer_that_was_long_on_its_way_makes_nothing_younger() {
        let access = access(MOST);
        let asked = access.asks();
        later(MOST + MOST);
        access.confirm(&record(), asked);
        assert!(reads(&access, "ann").is_err());
        // Of two answers the one counts that was asked for later, whichever comes first.
        access.confirm(&record(), access.asks());
        access.confirm(&record(), asked);
        assert_eq!(access.age(), Some(Duration::ZERO));
        // Rules that come by themselves do not say that there are no newer ones.
        later(MOST + MOST);
        access.take(&RulesRecord {
            revision: 8,
            ..record()
        });
        assert!(reads(&access, "ann").is_err());
    }

    #[test]
    fn without_a_greatest_age_rules_count_for_ever() {
        let access = access(Duration::ZERO);
        later(Duration::from_secs(1 << 30));
        assert_eq!(reads(&access, "ann"), Ok(()));
        assert_eq!((access.age(), access.asks()), (None, 0));
    }

    #[test]
    fn the_store_is_asked_often_enough() {
        for most in [10, 60, 3600] {
            let age = Age::new(Duration::from_secs(most), clock);
            assert!(age.look_every() <= age.most / LOOKS);
            assert!(age.look_every() <= LOOK_EVERY_MOST);
        }
    }
}
