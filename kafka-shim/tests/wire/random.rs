//! Random requests of every kind: each gets a reply of its API and version, or its connection ends;
//! nothing panics, and the broker serves others afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};
use kera_protocol::batch::{Compression, ProducerStamp};
use tokio::io::AsyncWriteExt;

use crate::common::{Client, World, batch};
use crate::dice::{Dice, Hints};
use crate::{messages, requests, responses};

/// No answer within this time is none.
const LONG_ENOUGH: Duration = Duration::from_secs(30);
/// Requests that wait for others are not waited for longer than this; who answers later is not
/// looked at.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Panics in this process so far, but those of failing tests. A task's panic ends its connection only, so a test must look.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let in_tests = |at: &std::panic::Location<'_>| at.file().contains("tests/");
            if !info.location().is_some_and(in_tests) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

async fn write(client: &mut Client, request: &[u8]) {
    let length = request.len() as i32;
    // The broker may have closed the connection already.
    let _ = client.stream.write_all(&length.to_be_bytes()).await;
    let _ = client.stream.write_all(request).await;
}

async fn serves(world: &World) {
    let mut client = world.client().await;
    let request = ApiVersionsRequest::default();
    let reply: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &request).await;
    assert_eq!(reply.error_code, 0);
    assert_eq!(
        PANICS.load(Ordering::SeqCst),
        0,
        "something panicked, see above"
    );
}

/// APIs that may wait for what others do.
const WAITING: [i16; 2] = [11, 14];

/// One request to each API in each version, which must be answered in its own form. What is asked of one does not depend
/// on which versions others have.
async fn answered(
    world: &World,
    seed: u64,
    hints: Option<&Hints>,
    answers: &mut BTreeMap<i16, String>,
) {
    for (api_key, version) in messages::all_versions() {
        // Some requests before may have deleted it.
        if world.broker.shared().data.catalog.named("t").is_none() {
            world.topic("t", 3);
        }
        let mut client = world.client().await;
        let own = u64::from(api_key.unsigned_abs()) << 8 | u64::from(version.unsigned_abs());
        let mut dice = Dice::new(seed << 24 | own);
        if let Some(hints) = hints {
            dice = dice.with_hints(hints.clone());
        }
        let request = requests::request(api_key, version, 77, &mut dice);
        write(&mut client, &request).await;
        if api_key == 0 {
            // acks = 0 has no answer: what comes then is the answer to this.
            write(&mut client, &[0, 18, 0, 0, 0, 0, 0, 78, 0xff, 0xff]).await;
        }
        let patience = if WAITING.contains(&api_key) {
            A_MOMENT
        } else {
            LONG_ENOUGH
        };
        match tokio::time::timeout(patience, client.frame()).await {
            Ok(Ok(reply)) if api_key == 0 && reply.get(..4) == Some(&[0, 0, 0, 78]) => {}
            Ok(Ok(reply)) => {
                let (correlation, body) = responses::decode(api_key, version, reply);
                assert_eq!(correlation, 77);
                answers.entry(api_key).or_default().push_str(&body);
            }
            // What is refused with acks = 0 closes the connection.
            _ if api_key == 0 || WAITING.contains(&api_key) => {}
            _ => panic!("API {api_key} version {version}: no answer to {request:02x?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_api_and_version_is_answered_in_its_own_form() {
    count_panics();
    let world = World::start().await;
    for seed in 0..4 {
        answered(&world, seed, None, &mut BTreeMap::new()).await;
    }
    serves(&world).await;
}

/// The same with names and numbers that the broker knows, so that most requests succeed: replies
/// that carry something have more fields to get wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_about_what_is_there_are_answered_in_their_own_form() {
    count_panics();
    let world = World::with(|config| {
        config.kafka.group_initial_rebalance_delay = Duration::ZERO;
    })
    .await;
    world.topic("t", 3);
    let stream = world
        .broker
        .shared()
        .data
        .catalog
        .named("t")
        .expect("the topic");
    let texts = [
        "t",
        "t",
        "t",
        "",
        "1",
        "g",
        "consumer",
        "retention.ms",
        "60000",
    ];
    let records = batch("v", 5, Compression::Gzip, ProducerStamp::NONE);
    let hints = Hints {
        texts: texts.map(str::to_owned).to_vec(),
        bytes: vec![records],
        uuids: vec![stream.id().0],
        numbers: vec![0, 0, -1, 1, 2, 4, 10_000],
    };
    let mut answers = BTreeMap::new();
    for seed in 0..40 {
        answered(&world, seed, Some(&hints), &mut answers).await;
    }
    serves(&world).await;
    // Every API had something to say that was no error, but for those that need a group to be
    // in a certain state, or a share session that was begun, those that need a producer with an open transaction, those that prove who somebody is, the
    // one that sets quotas, of kinds that dice do not name, and the one about controllers' log, which are refused.
    for (api_key, said) in answers.into_iter().filter(|(api_key, _)| {
        ![12, 14, 17, 24, 25, 26, 28, 36, 47, 49, 55, 65, 78, 79].contains(api_key)
    }) {
        assert!(
            said.contains("error_code: 0"),
            "API {api_key} never succeeded: {said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bent_requests_and_plain_noise_hurt_nobody_else() {
    count_panics();
    let world = World::start().await;
    let mut dice = Dice::new(7);
    let all: Vec<_> = messages::all_versions().collect();
    for round in 0..400 {
        let mut client = world.client().await;
        if round % 4 == 0 {
            let noise: Vec<u8> = (0..dice.below(2_000)).map(|_| dice.roll() as u8).collect();
            let _ = client.stream.write_all(&noise).await;
        } else {
            for _ in 0..5 {
                let (api_key, version) = all[dice.below(all.len())];
                let mut request = requests::request(api_key, version, 1, &mut dice);
                // Behind the API and the version, so that most get as far as the body.
                let at = 4 + dice.below(request.len() - 4);
                request[at] = dice.roll() as u8;
                write(&mut client, &request).await;
            }
        }
        // Some go at once, some wait for what comes.
        if round % 3 == 0 {
            let _ = client.stream.shutdown().await;
            let _ = tokio::time::timeout(A_MOMENT, client.frame()).await;
        }
    }
    serves(&world).await;
}
