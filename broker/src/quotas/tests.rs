//! One client, several connections.

use std::time::Duration;

use kera_metadata::Quota;
use kera_metadata::quota::{Limit, QuotaEntity, Whom};

use super::*;
use crate::config::BrokerConfig;
use crate::principal::Principal;
use meter::Metered;

const RATE: usize = 1000;

fn of_users(rates: &[(Whom, usize)], revision: u64) -> QuotasRecord {
    let quotas = rates.iter().map(|(whom, rate)| Quota {
        entity: QuotaEntity {
            user: Some(whom.clone()),
            ..QuotaEntity::default()
        },
        limits: [(
            QuotaKind::ProducerByteRate,
            Limit::new(*rate as f64).unwrap(),
        )]
        .into(),
    });
    QuotasRecord {
        quotas: quotas.collect(),
        revision,
    }
}

fn quotas_of(record: &QuotasRecord) -> Quotas {
    let capacity = Capacity::of(&BrokerConfig::default().objectives);
    Quotas::new(Some(record), capacity)
}

fn named(name: &str) -> Whom {
    Whom::Name(name.to_owned())
}

fn meter(quotas: &Arc<Quotas>, user: &str) -> Meter {
    Meter::new(quotas.clone(), &Principal::User(user.into()))
}

#[test]
fn connections_of_a_user_share_a_bucket_and_other_users_have_their_own() {
    let quotas = Arc::new(quotas_of(&of_users(&[(Whom::Default, RATE)], 1)));
    let now = Instant::now();
    let (mut one, mut two) = (meter(&quotas, "ann"), meter(&quotas, "ann"));
    two.set_client("another id of the same user");
    let mut other = meter(&quotas, "bob");
    // A bucket is looked up with the machine's clock: times from here on are later ones.
    let later = now + Duration::from_secs(60);
    assert_eq!(
        one.charge_at(Metered::Appends, RATE, || later),
        Duration::ZERO
    );
    let wait = two.charge_at(Metered::Appends, RATE, || later);
    assert_eq!(wait, Duration::from_secs(1));
    assert!(two.waits_at(Metered::Appends, || later));
    assert!(
        !one.waits_at(Metered::Appends, || later),
        "it was told nothing"
    );
    assert!(!other.waits_at(Metered::Appends, || later));
    assert_eq!(
        other.charge_at(Metered::Appends, RATE, || later),
        Duration::ZERO
    );
    // Nothing limits reads.
    assert_eq!(
        one.charge_at(Metered::Reads, 9 * RATE, || later),
        Duration::ZERO
    );
    // A new connection of the same user waits for the debt as well.
    let mut anew = meter(&quotas, "ann");
    assert!(anew.waits_at(Metered::Appends, || later));
    assert!(!anew.waits_at(Metered::Appends, || later + Duration::from_secs(1)));
    assert!(!two.waits_at(Metered::Appends, || later + Duration::from_secs(1)));
    let throttled = quotas
        .throttled
        .get_or_create_owned(&labels(QuotaKind::ProducerByteRate));
    assert_eq!(throttled.get(), 2);
}

#[test]
fn a_quota_that_changes_counts_for_connections_that_wait() {
    let quotas = Arc::new(quotas_of(&of_users(&[(named("ann"), RATE)], 1)));
    let mut one = meter(&quotas, "ann");
    let later = Instant::now() + Duration::from_secs(60);
    let wait = one.charge_at(Metered::Appends, 11 * RATE, || later);
    assert_eq!(wait, Duration::from_secs(10));
    let soon = later + Duration::from_secs(2);
    assert!(one.waits_at(Metered::Appends, || soon));
    // Older news count for nothing.
    quotas.take(&of_users(&[(named("ann"), 9 * RATE)], 1));
    assert!(one.waits_at(Metered::Appends, || soon));
    // Eight times as much: what eight seconds owed is worked off in one.
    quotas.take(&of_users(&[(named("ann"), 8 * RATE)], 2));
    assert!(one.waits_at(Metered::Appends, || soon));
    assert!(!one.waits_at(Metered::Appends, || soon + Duration::from_secs(1)));
    one.charge_at(Metered::Appends, 99 * RATE, || soon);
    assert!(one.waits_at(Metered::Appends, || soon));
    quotas.take(&of_users(&[], 3));
    assert!(!one.waits_at(Metered::Appends, || soon), "none is left");
}

/// Users without a quota of their own.
fn each_user() -> QuotaEntity {
    QuotaEntity {
        user: Some(Whom::Default),
        ..QuotaEntity::default()
    }
}

fn limiting(entity: QuotaEntity, kind: QuotaKind, limit: f64) -> Arc<Quotas> {
    Arc::new(quotas_of(&QuotasRecord {
        quotas: vec![Quota {
            entity,
            limits: [(kind, Limit::new(limit).unwrap())].into(),
        }],
        revision: 1,
    }))
}

#[test]
fn time_that_threads_work_is_waited_for_a_second_at_most() {
    // A tenth of a core.
    let quotas = limiting(each_user(), QuotaKind::RequestPercentage, 10.0);
    let (mut one, mut two) = (meter(&quotas, "ann"), meter(&quotas, "ann"));
    let mut other = meter(&quotas, "bob");
    let later = Instant::now() + Duration::from_secs(60);
    let at = |ms: u64| later + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    // What one second allows is there to begin with.
    let charge = |meter: &mut Meter, worked, now: Instant| {
        meter.charge_time_at(worked, || now);
        meter.time_wait_at(|| now)
    };
    assert_eq!(charge(&mut one, ms(100), at(0)), Duration::ZERO);
    assert_eq!(
        charge(&mut one, ms(50), at(0)),
        Duration::from_millis(500),
        "50 ms of work are allowed in 500"
    );
    for metered in Metered::ALL {
        assert!(one.waits_at(metered, || at(499)), "{metered:?}");
        assert!(one.is_waiting(metered) && one.look_at(metered).is_some());
    }
    // What it works while it waits makes it wait no longer, and is owed all the same.
    assert_eq!(charge(&mut one, ms(1), at(499)), ms(1));
    assert!(!one.waits_at(Metered::Appends, || at(500)));
    assert!(
        two.waits_at(Metered::Reads, || at(500)),
        "others of the user"
    );
    assert!(!other.waits_at(Metered::Reads, || at(500)));
    // A second at a time, whatever is owed: a member of a group goes on.
    assert_eq!(
        charge(&mut one, ms(9_000), at(1_000)),
        Duration::from_secs(1)
    );
    assert!(one.waits_at(Metered::Appends, || at(1_999)));
    assert!(!one.waits_at(Metered::Appends, || at(2_000)));
    let mut anew = meter(&quotas, "ann");
    assert!(anew.waits_at(Metered::Time, || at(2_000)));
    assert!(!anew.waits_at(Metered::Time, || at(3_000)));
}

#[test]
fn time_that_many_connections_took_is_over_after_ten_seconds() {
    let quotas = limiting(each_user(), QuotaKind::RequestPercentage, 1.0);
    let begin = Instant::now();
    let mut many: Vec<_> = (0..60).map(|_| meter(&quotas, "ann")).collect();
    for one in &mut many {
        one.charge_time_at(Duration::from_secs(1), || begin);
    }
    let mut later = meter(&quotas, "ann");
    let at = |seconds: u64| begin + Duration::from_secs(seconds);
    assert!(later.waits_at(Metered::Time, || at(8)));
    let mut last = meter(&quotas, "ann");
    assert!(!last.waits_at(Metered::Time, || at(11)));
    // Bytes are all worked off.
    let quotas = limiting(each_user(), QuotaKind::ProducerByteRate, 1.0);
    let mut one = meter(&quotas, "ann");
    assert_eq!(
        one.charge_at(Metered::Appends, 101, || begin),
        Duration::from_secs(100)
    );
}

#[test]
fn the_time_of_a_client_that_has_proved_nothing_yet_is_nobodys() {
    let quotas = limiting(each_user(), QuotaKind::RequestPercentage, 10.0);
    let mut stranger = Meter::new(quotas.clone(), &Principal::Anonymous);
    stranger.set_nobody();
    let later = Instant::now() + Duration::from_secs(60);
    let second = Duration::from_secs(1);
    stranger.charge_time_at(2 * second, || later);
    assert_eq!(stranger.time_wait_at(|| later), Duration::ZERO);
    assert!(!stranger.waits_at(Metered::Time, || later));
    // From its proof on it is the user's.
    stranger.set_principal(&Principal::User("ann".into()));
    stranger.charge_time_at(second, || later);
    assert_eq!(stranger.time_wait_at(|| later), second);
    assert!(meter(&quotas, "ann").waits_at(Metered::Time, || later));
}

#[test]
fn partitions_are_made_as_long_as_none_are_owed() {
    // One in a million seconds: whoever owes some does so for good.
    let quotas = limiting(each_user(), QuotaKind::ControllerMutationRate, 1e-6);
    let (ann, bob) = (Principal::User("ann".into()), Principal::User("bob".into()));
    assert_eq!(
        quotas.mutate(&ann, "one", 3),
        Ok(()),
        "a topic is made whole"
    );
    let wait = quotas.mutate(&ann, "another", 1).unwrap_err();
    assert!(wait > Duration::from_secs(2_999_000), "{wait:?}");
    assert_eq!(quotas.mutate(&bob, "one", 1), Ok(()));
    assert!(quotas.mutate(&bob, "one", 1).is_err());
    quotas.take(&QuotasRecord {
        quotas: Vec::new(),
        revision: 2,
    });
    assert_eq!(quotas.mutate(&ann, "one", 9), Ok(()));
}

#[test]
fn an_address_opens_so_many_connections_a_second() {
    let any = QuotaEntity {
        ip: Some(Whom::Default),
        ..QuotaEntity::default()
    };
    let quotas = limiting(any, QuotaKind::ConnectionCreationRate, 3.0);
    let one: IpAddr = "10.0.0.1".parse().unwrap();
    let two: IpAddr = "10.0.0.2".parse().unwrap();
    let begin = Instant::now();
    let admitted = (0..20).filter(|_| quotas.admits(one)).count() as f64;
    // The one that empties the bucket may owe a part.
    let most = 3.0 + 1.0 + 3.0 * begin.elapsed().as_secs_f64();
    assert!(admitted >= 3.0 && admitted <= most, "{admitted} of {most}");
    assert!(quotas.admits(two), "another address");
    let mapped: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
    assert!(quotas.admits(mapped), "the same one as IPv6 has it");
}

#[test]
fn buckets_are_bounded_and_a_debt_is_not_forgotten() {
    let quotas = Arc::new(quotas_of(&QuotasRecord {
        quotas: vec![Quota {
            entity: QuotaEntity {
                client: Some(Whom::Default),
                ..QuotaEntity::default()
            },
            limits: [(QuotaKind::ProducerByteRate, Limit::new(1.0).unwrap())].into(),
        }],
        revision: 1,
    }));
    let now = Instant::now() + Duration::from_secs(3600);
    let id = |number: usize| format!("client-{number}");
    let charge = |number: usize, amount: usize| {
        let mut one = meter(&quotas, "ann");
        one.set_client(&id(number));
        one.charge_at(Metered::Appends, amount, || now)
    };
    assert_eq!(charge(0, 100), Duration::from_secs(99));
    for number in 1..MOST_BUCKETS + 100 {
        charge(number, 2);
    }
    let known = quotas.buckets.lock().by_key.len();
    assert!(known <= MOST_BUCKETS + 1, "{known}");
    assert_eq!(charge(0, 1), Duration::from_secs(100));
}
