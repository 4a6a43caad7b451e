//! What a producer makes of batches whose fate is open: their sequences are given to no other batch, so that
//! no acknowledged record is taken for one that is stored already, and none is stored twice.

mod fake;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fake::{Action, Broker};
use kera_producer::{Delivery, ProduceError, Producer, Record, RecordPlace};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

/// Refusals after which a batch is sent again, and those after which it is not, as brokers give them before
/// they look whether a batch is stored already.
const MAY_PASS: [ErrorCode; 9] = [
    ErrorCode::NotOwner,
    ErrorCode::StorageFull,
    ErrorCode::StorageError,
    ErrorCode::Overloaded,
    ErrorCode::Timeout,
    ErrorCode::ShuttingDown,
    ErrorCode::NotEnoughCopies,
    ErrorCode::UnknownStream,
    ErrorCode::UnknownLane,
];
const FOR_GOOD: [ErrorCode; 6] = [
    ErrorCode::BatchTooLarge,
    ErrorCode::CorruptBatch,
    ErrorCode::InvalidBatch,
    ErrorCode::UnsupportedCompression,
    ErrorCode::InvalidArgument,
    ErrorCode::Internal,
];

/// A value of which a batch holds one.
fn text(number: usize) -> String {
    format!("{number:08}{:-<600}", "")
}

/// Acknowledged, one record that `first` and then `after` befall, another one: whether the one in the middle
/// counts as uncertain, and what is stored.
async fn one_between(first: Action, after: Action, deadline: Duration) -> (bool, Vec<String>) {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().deadline(deadline).build().await.unwrap();
    let send = |value: &'static str| {
        let sent = producer.append(&Record::of_value(value.as_bytes()));
        sent.unwrap()
    };
    send("good").await.unwrap();
    let mut seen = 0;
    broker.script(move |_, _| {
        seen += 1;
        match seen {
            1 => first,
            _ => after,
        }
    });
    let error = send("bad").await.unwrap_err();
    broker.behave();
    send("good").await.unwrap();
    let stored = broker.values().remove(&(0, 0)).unwrap();
    (error.is_uncertain(), stored)
}

#[tokio::test]
async fn a_refusal_for_good_after_a_lost_answer_takes_no_sequence_from_the_batch() {
    for code in FOR_GOOD {
        for store in [true, false] {
            let (lost, refused) = (Action::Drop { store }, Action::Refuse(code));
            let (uncertain, stored) = one_between(lost, refused, Duration::from_secs(60)).await;
            assert!(uncertain, "{code} after a lost answer leaves it open");
            let expected: &[&str] = match store {
                true => &["good", "bad", "good"],
                false => &["good", "good"],
            };
            assert_eq!(stored, expected, "{code}");
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_stored_whatever_its_answer_says_keeps_its_sequence() {
    // Long enough for the good records on a busy machine.
    let deadline = Duration::from_secs(3);
    let open = MAY_PASS
        .into_iter()
        .filter(|code| code.placement() == v1::Placement::MayBePlaced);
    let runs: JoinSet<_> = open
        .map(|code| async move {
            let action = Action::StoreAndRefuse(code);
            let run = one_between(action, Action::Refuse(code), deadline).await;
            (code, run)
        })
        .collect();
    for (code, (uncertain, stored)) in runs.join_all().await {
        assert!(uncertain, "{code} leaves it open");
        assert_eq!(stored, ["good", "bad", "good"], "{code}");
    }
}

#[tokio::test]
async fn an_answer_that_says_that_nothing_is_placed_is_believed() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    let send = |value: &'static str| {
        let sent = producer.append(&Record::of_value(value.as_bytes()));
        sent.unwrap()
    };
    // Of this code alone nothing could be told.
    broker.script(|_, _| Action::Deny(ErrorCode::Internal));
    let error = send("refused").await.unwrap_err();
    assert!(!error.is_uncertain(), "{error}");
    broker.behave();
    send("good").await.unwrap();
    let state = broker.state.lock();
    let batch = &state.lanes[&(0, 0)][0];
    let header = kera_protocol::batch::BatchHeader::peek(batch).unwrap();
    let stamp = (header.producer_epoch, header.base_sequence);
    assert_eq!(stamp, (0, 0), "the sequence is free for the next");
}

#[tokio::test]
async fn what_is_behind_a_refused_batch_is_fenced_if_it_may_yet_arrive() {
    let broker = Broker::start(1, 1).await;
    let producer = broker.eager().build().await.unwrap();
    let send = |number| {
        let sent = producer.append(&Record::of_value(text(number).as_bytes()));
        sent.unwrap()
    };
    broker.hold(true);
    let sent = [0, 1, 2].map(send);
    let in_flight = async |batches| {
        while producer.metrics().batches_in_flight != batches {
            tokio::task::yield_now().await;
        }
    };
    in_flight(3).await;
    // The first is refused; once that is heard the connection breaks, and the second stands in its buffer.
    let holding = broker.clone();
    broker.script(move |_, header| match header.base_sequence {
        0 => Action::Refuse(ErrorCode::StorageFull),
        1 => {
            holding.hold(true);
            Action::Late { drop: false }
        }
        _ => Action::Drop { store: false },
    });
    broker.hold(false);
    in_flight(2).await;
    // Then the first is refused for good, and those behind it take its place.
    let mut broken = false;
    broker.script(
        move |_, header| match (header.producer_epoch, header.base_sequence) {
            (0, 0) => Action::Refuse(ErrorCode::InvalidBatch),
            (0, 2) if !std::mem::replace(&mut broken, true) => Action::Drop { store: false },
            _ => Action::Accept,
        },
    );
    broker.hold(false);
    let [first, second, third] = sent;
    let error = first.await.unwrap_err();
    assert!(!error.is_uncertain(), "{error}");
    second.await.unwrap();
    assert_eq!(broker.store_late(), 0, "what comes late is of an old epoch");
    third.await.unwrap();
    producer.flush().await.unwrap_err();
    send(3).await.unwrap();
    let stored = &broker.values()[&(0, 0)];
    assert_eq!(*stored, [1, 2, 3].map(text));
}

/// A broker that misbehaves at random, in the ways that real ones and networks do; a `liar` also says now
/// and then that it has not stored what it has.
fn misbehave(broker: &Broker, seed: u64, liar: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    // Refusals of any kind follow a lost answer: these batches and what their next attempts get.
    let mut planned: HashMap<(i16, u32, i32), Vec<Action>> = HashMap::new();
    broker.script(move |request, header| {
        let batch = (header.producer_epoch, request.lane, header.base_sequence);
        if let Some(next) = planned.get_mut(&batch).and_then(Vec::pop) {
            return next;
        }
        let mut pick = |codes: &[ErrorCode]| *codes.choose(&mut random).unwrap();
        let (passing, lasting) = (pick(&MAY_PASS), pick(&FOR_GOOD));
        match random.random_range(0..24) {
            0 => Action::Drop { store: true },
            1 => Action::Drop { store: false },
            2 | 3 => {
                planned.insert(
                    batch,
                    vec![Action::Refuse(lasting), Action::Refuse(passing)],
                );
                Action::Drop {
                    store: random.random(),
                }
            }
            4 | 5 if passing.placement() == v1::Placement::MayBePlaced => {
                planned.insert(batch, vec![Action::Refuse(lasting)]);
                Action::StoreAndRefuse(passing)
            }
            6 => Action::Refuse(lasting),
            7 => Action::Refuse(passing),
            8 if liar => {
                planned.insert(batch, vec![Action::Deny(lasting)]);
                Action::StoreAndDeny(passing)
            }
            _ => Action::Accept,
        }
    });
}

/// Everything acknowledged is stored where it was said to be, once, and in order; what certainly is not
/// stored is not; and what is uncertain is not stored twice.
fn check(broker: &Broker, fates: &[Result<RecordPlace, ProduceError>]) -> Result<(), String> {
    let stored = broker.values();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for value in stored.values().flatten() {
        *times.entry(value).or_default() += 1;
    }
    for (lane, values) in &stored {
        if !values.is_sorted() {
            return Err(format!("lane {lane:?} is out of order"));
        }
    }
    for (number, fate) in fates.iter().enumerate() {
        let text = text(number);
        let times = times.get(&*text).copied().unwrap_or(0);
        match fate {
            Ok(place) => {
                let lane = &stored[&(place.streamlet.0, place.lane.0)];
                if times != 1 || lane.get(place.ordinal as usize) != Some(&text) {
                    return Err(format!(
                        "record {number} is acknowledged and stored {times} times"
                    ));
                }
            }
            Err(error) if error.is_uncertain() && times > 1 => {
                return Err(format!("record {number} is stored {times} times: {error}"));
            }
            Err(error) if !error.is_uncertain() && times > 0 => {
                return Err(format!("record {number} is stored all the same: {error}"));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// A producer at a broker that misbehaves; the broker, and what became of each record.
async fn run(seed: u64, liar: bool) -> (Arc<Broker>, Vec<Result<RecordPlace, ProduceError>>) {
    let broker = Broker::start(1, 2).await;
    let producer: Producer = broker.eager().linger(Duration::ZERO).build().await.unwrap();
    misbehave(&broker, seed, liar);
    let mut sent: Vec<Delivery> = Vec::new();
    for number in 0..300 {
        let key = (number % 7).to_string();
        let value = text(number);
        let record = Record::keyed(key.as_bytes(), value.as_bytes());
        sent.push(producer.append(&record).unwrap());
        if number % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let _ = producer.flush().await;
    let fates = sent.iter().map(|sent| sent.result().unwrap()).collect();
    (broker, fates)
}

fn seeds(few: u64) -> u64 {
    let seeds = std::env::var("KERA_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(few)
}

#[tokio::test]
async fn whatever_is_lost_or_refused_what_is_acknowledged_is_stored_once_and_in_order() {
    let mut given_up = 0;
    for seed in 0..seeds(20) {
        let (broker, fates) = run(seed, false).await;
        if let Err(wrong) = check(&broker, &fates) {
            panic!("seed {seed}: {wrong}");
        }
        let open =
            |fate: &&Result<_, ProduceError>| fate.as_ref().is_err_and(ProduceError::is_uncertain);
        given_up += fates.iter().filter(open).count();
    }
    assert!(given_up > 0, "batches are given up whose fate is open");
}

#[tokio::test]
async fn the_check_finds_a_broker_that_denies_what_it_has_stored() {
    for seed in 0..20 {
        let (broker, fates) = run(seed, true).await;
        if check(&broker, &fates).is_err() {
            return;
        }
    }
    panic!("nothing was found");
}
