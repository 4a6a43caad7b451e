use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;
use crate::config::BrokerConfig;
use crate::start::Broker;

const LIMIT: usize = 4 << 20;
/// Larger than a step, and than all steps together.
const BATCH: usize = 3 << 20;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A broker whose connections hold as much that waits to be sent as they should, all of it the first one's.
async fn crowd(dir: &tempfile::TempDir) -> (Broker, Claims) {
    let mut config = BrokerConfig {
        data_dir: dir.path().join("data"),
        ..BrokerConfig::default()
    };
    config.server.listen = "127.0.0.1:0".into();
    config.http.listen = None;
    config.memory.pool = 32 << 20;
    config.server.max_in_flight_bytes = LIMIT as u64;
    config.server.send_timeout = Duration::from_secs(120);
    let broker = Broker::start(config).await.expect("the broker starts");
    let mut first = claims(&broker);
    first.hold_outgoing(LIMIT, 0);
    (broker, first)
}

fn claims(broker: &Broker) -> Claims {
    Claims::new(broker.shared().data.clone(), &Principal::Anonymous)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_take_nothing_hold_a_part_of_the_limit_beside_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (broker, mut first) = crowd(&dir).await;
    let data = &broker.shared().data;
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut others: Vec<Claims> = (0..100).map(|_| claims(&broker)).collect();
    let mut served = 0;
    for other in &mut others {
        if other.claim_room(0, &waker) > 0 {
            served += 1;
            other.hold_outgoing(BATCH, 0);
        }
    }
    assert_eq!(served, 1, "one batch is more than all may hold already");
    assert_eq!(
        data.outgoing.load(Ordering::Relaxed),
        (LIMIT + BATCH) as u64
    );
    assert_eq!(data.steps.waiting(), 99);
    assert!(others[1].waits_for_step() && others[1].claim_room(0, &waker) == 0);

    // Once that one is sent it is the turn of the next, and of no other.
    others[0].hold_outgoing(0, BATCH as u64);
    let next = &mut others[1];
    next.begin_work();
    assert_eq!(next.claim_room(0, &waker), MOST_IN_A_CROWD);
    next.hold_outgoing(BATCH, 0);
    others[2].begin_work();
    assert!(others[2].waits_for_step() && data.steps.waiting() == 98);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    drop(others.remove(1));
    assert_eq!(data.steps.waiting(), 97, "one that goes makes room as well");

    // Without a crowd nobody waits.
    first.hold_outgoing(0, LIMIT as u64);
    for other in &mut others {
        other.begin_work();
        assert_eq!(other.claim_room(0, &waker), MOST);
    }
    drop((first, others));
    assert_eq!(data.outgoing.load(Ordering::Relaxed), 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_keeps_others_from_their_turn_has_little_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (broker, _first) = crowd(&dir).await;
    let (mut at_a_step, mut other) = (claims(&broker), claims(&broker));
    let now = Instant::now();
    assert_eq!(at_a_step.claim_room(0, Waker::noop()), MOST_IN_A_CROWD);
    at_a_step.hold_outgoing(BATCH, 0);
    let after = |seconds| now + Duration::from_secs(seconds);
    assert!(!at_a_step.is_unread(now, 0, BATCH));
    assert!(!at_a_step.is_unread(after(29), 0, BATCH), "nobody waits");
    assert_eq!(other.claim_room(0, Waker::noop()), 0);
    assert!(at_a_step.is_unread(after(3), 0, BATCH), "somebody does");
    let read = LEAST_TAKEN;
    assert!(!at_a_step.is_unread(after(3), read, BATCH), "it goes on");
    assert!(!at_a_step.is_unread(after(5), read, BATCH));
    assert!(at_a_step.is_unread(after(6), read, BATCH));
    broker.shutdown().await;
}
