use futures::FutureExt;
use kera_metadata::{
    Incarnation, LiveBroker, LiveState, Membership, MemoryCluster, MetadataStore, StreamConfig,
    StreamRecord, StreamletRecord, Write,
};
use kera_protocol::ids::Epoch;
use parking_lot::Mutex;
use uuid::Uuid;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

const AT_ONCE: Timing = Timing {
    grace: Duration::ZERO,
    unseen: Duration::ZERO,
    back: Duration::ZERO,
    settle: Duration::ZERO,
    moved: Duration::ZERO,
    rest: Duration::from_millis(10),
    lost: NEVER,
    look: Duration::from_millis(20),
};

/// Owners that hand over by recording the new owner, unless they are to refuse.
struct Owners {
    cluster: Arc<MemoryCluster>,
    refusals: Mutex<usize>,
    asked: Mutex<Vec<Move>>,
}

impl HandOvers for Owners {
    fn ask(&self, one: Move) -> BoxFuture<'static, Result<(), String>> {
        self.asked.lock().push(one);
        let refused = {
            let mut left = self.refusals.lock();
            let refused = *left > 0;
            *left -= usize::from(refused);
            refused
        };
        let cluster = self.cluster.clone();
        async move {
            if refused {
                return Err("the owner has no time".into());
            }
            let read = cluster.streamlet(one.stream, one.streamlet);
            let old = read.map_err(|e| e.to_string())?.ok_or("gone")?;
            if (old.owner, old.epoch) != (one.from, one.epoch) {
                return Err("not as planned".into());
            }
            let new = StreamletRecord {
                owner: one.to,
                epoch: (old.epoch.0 + 1).into(),
                ..old.clone()
            };
            let transaction =
                Transaction::new(vec![Compare::epoch(&old)], vec![Write::PutStreamlet(new)]);
            let outcome = cluster.commit_async(transaction).await;
            outcome.map(|_| ()).map_err(|e| e.to_string())
        }
        .boxed()
    }
}

/// Keeps a picture of the store, as brokers do.
async fn follow(
    cluster_view: Arc<ClusterView>,
    cluster: Arc<MemoryCluster>,
    mut stopping: watch::Receiver<bool>,
) {
    let image = cluster.load().unwrap();
    let mut changes = cluster.watch(image.revision);
    cluster_view.load(&image);
    loop {
        tokio::select! {
            changes = changes.recv() => match changes {
                Some(Ok(told)) => cluster_view.apply(&told.changes),
                lost => panic!("the watch ended: {lost:?}"),
            },
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}

/// Brokers over one store, each with a controller that may be elected.
struct World {
    cluster: Arc<MemoryCluster>,
    owners: Arc<Owners>,
    seats: BTreeMap<u32, Arc<Membership>>,
    rulings: BTreeMap<u32, Arc<ControllerMetrics>>,
    cluster_view: Arc<ClusterView>,
    suspects: watch::Sender<Suspects>,
    stop: watch::Sender<bool>,
}

fn live(id: u32) -> LiveBroker {
    let incarnation = Incarnation {
        store_id: Uuid::from_u128(id.into()),
        boot_id: Uuid::nil(),
    };
    LiveBroker {
        host: format!("host{id}"),
        address: format!("host{id}:7600"),
        ..LiveBroker::new(id, incarnation)
    }
}

impl World {
    fn new() -> Self {
        let cluster = Arc::new(MemoryCluster::new());
        let stop = watch::Sender::new(false);
        let cluster_view = Arc::new(ClusterView::default());
        tokio::spawn(follow(
            cluster_view.clone(),
            cluster.clone(),
            stop.subscribe(),
        ));
        Self {
            owners: Arc::new(Owners {
                cluster: cluster.clone(),
                refusals: Mutex::default(),
                asked: Mutex::default(),
            }),
            cluster,
            seats: BTreeMap::new(),
            rulings: BTreeMap::new(),
            cluster_view,
            suspects: watch::Sender::new(Suspects::new()),
            stop,
        }
    }

    fn with(brokers: impl IntoIterator<Item = u32>, timing: Timing) -> Self {
        let mut world = Self::new();
        for id in brokers {
            world.join(id, timing);
        }
        world
    }

    fn join(&mut self, id: u32, timing: Timing) {
        let seat = self.cluster.join(live(id), Duration::from_secs(3)).unwrap();
        let seat = Arc::new(seat);
        let cluster_view = Arc::new(ClusterView::default());
        let following = follow(
            cluster_view.clone(),
            self.cluster.clone(),
            self.stop.subscribe(),
        );
        tokio::spawn(following);
        let metrics = self.rulings.entry(id).or_default().clone();
        let controller = self.controller(&seat, cluster_view, timing, metrics);
        let (elected, valid) = (seat.campaign(), seat.valid());
        tokio::spawn(controller.run(elected, valid, self.stop.subscribe()));
        self.seats.insert(id, seat);
    }

    fn controller(
        &self,
        seat: &Arc<Membership>,
        cluster_view: Arc<ClusterView>,
        timing: Timing,
        metrics: Arc<ControllerMetrics>,
    ) -> Controller {
        let fencing = seat.clone();
        Controller::new(Tools {
            store: self.cluster.clone(),
            cluster_view,
            fence: Box::new(move || fencing.fence()),
            hand_overs: self.owners.clone(),
            suspects: self.suspects.subscribe(),
            allow_same_host: false,
            timing,
            limits: Limits::default(),
            metrics,
        })
    }

    fn create(&self, name: &str, streamlets: u32, replicas: u32, owner: u32) {
        let config = StreamConfig {
            streamlets,
            replicas,
            min_insync_replicas: StreamConfig::default_min_insync_replicas(replicas),
            ..StreamConfig::default()
        };
        let stream = StreamRecord::new(name, config, 0);
        self.cluster.create_stream(stream, owner).unwrap();
    }

    fn streamlets(&self, name: &str) -> Vec<StreamletRecord> {
        let stream = self.cluster.stream_named(name).unwrap().unwrap();
        let mut all = self.cluster.streamlets().unwrap();
        all.retain(|streamlet| streamlet.stream == stream);
        all
    }

    /// Waits until the streamlets of a stream are as wanted.
    async fn until(&self, name: &str, wanted: impl Fn(&[StreamletRecord]) -> bool) {
        let mut owners = self.cluster_view.owners();
        loop {
            owners.borrow_and_update();
            let now = self.streamlets(name);
            if wanted(&now) {
                return;
            }
            let changed = tokio::time::timeout(PATIENCE, owners.changed()).await;
            assert!(changed.is_ok(), "it stays at {now:#?}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn owned(streamlets: &[StreamletRecord], by: u32) -> usize {
    streamlets.iter().filter(|s| s.owner == by).count()
}

#[tokio::test]
async fn brokers_share_evenly_and_a_gone_owner_is_replaced() {
    let world = World::with(1..=3, AT_ONCE);
    world.create("flights", 30, 3, 1);
    world
        .until("flights", |all| (1..=3).all(|id| owned(all, id) == 10))
        .await;
    let before = world.streamlets("flights");
    world.cluster.expire(2);
    world.until("flights", |all| owned(all, 2) == 0).await;
    let after = world.streamlets("flights");
    for (old, new) in before.iter().zip(&after) {
        let moved = old.owner == 2;
        assert_eq!(new.epoch.0, old.epoch.0 + u32::from(moved));
    }
    assert_eq!((owned(&after, 1), owned(&after, 3)), (15, 15));
}

/// The value of a metric of a broker, in a test's text of metrics.
fn metric(world: &World, broker: u32, name: &str) -> f64 {
    let mut registry = prometheus_client::registry::Registry::default();
    world.rulings[&broker].register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in {text}"))
}

#[tokio::test]
async fn a_controller_counts_what_it_does() {
    let world = World::with(1..=3, AT_ONCE);
    world.create("flights", 30, 3, 1);
    world
        .until("flights", |all| (1..=3).all(|id| owned(all, id) == 10))
        .await;
    let controller = world.cluster.controller().borrow().unwrap();
    let others: Vec<u32> = (1..=3).filter(|id| *id != controller).collect();
    world.cluster.expire(others[0]);
    world
        .until("flights", |all| owned(all, others[0]) == 0)
        .await;
    let value = |name: &str| metric(&world, controller, name);
    let counted = async {
        while value("controller_reassigned_streamlets_total") < 10.0
            || value("controller_streamlets_without_owner") > 0.0
            || value("controller_moves_under_way") > 0.0
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.unwrap();
    assert_eq!(value("controller_reassigned_streamlets_total"), 10.0);
    assert_eq!(value("controller_elections_total"), 1.0);
    assert!(value("controller_reassign_duration_seconds_count") >= 1.0);
    assert!(value("controller_last_look_timestamp_seconds") > 0.0);
    let other = |name: &str| metric(&world, others[1], name);
    assert_eq!(other("controller_elections_total"), 0.0);
    assert_eq!(other("controller_last_look_timestamp_seconds"), 0.0);
}

#[tokio::test]
async fn the_controller_itself_may_be_the_one_that_goes() {
    let world = World::with(1..=3, AT_ONCE);
    world.create("flights", 200, 3, 1);
    world
        .until("flights", |all| (1..=3).all(|id| owned(all, id) > 60))
        .await;
    let controller = world.cluster.controller().borrow().unwrap();
    world.cluster.expire(controller);
    world
        .until("flights", |all| owned(all, controller) == 0)
        .await;
    assert_ne!(*world.cluster.controller().borrow(), Some(controller));
}

#[tokio::test]
async fn a_streamlet_with_one_copy_waits_for_its_owner() {
    let world = World::with(1..=3, AT_ONCE);
    world.create("alone", 4, 1, 1);
    world.create("flights", 4, 3, 1);
    world.cluster.expire(1);
    world.until("flights", |all| owned(all, 1) == 0).await;
    let kept = world.streamlets("alone");
    assert!(kept.iter().all(|s| s.owner == 1 && s.epoch == Epoch(1)));
}

#[tokio::test]
async fn a_draining_broker_is_emptied_and_a_failed_hand_over_made_again() {
    let world = World::with(1..=3, AT_ONCE);
    *world.owners.refusals.lock() = 5;
    world.create("flights", 9, 3, 1);
    drain(&world, 1).await;
    let asked = world.owners.asked.lock();
    assert!(asked.len() >= 9 + 5, "the refused ones were asked again");
    assert!(asked.iter().all(|one| one.to != 1));
}

#[tokio::test]
async fn what_was_handed_over_counts_before_the_picture_shows_it() {
    let world = World::new();
    let join = |id| world.cluster.join(live(id), NEVER).unwrap();
    let (seat, _others) = (Arc::new(join(1)), [join(2), join(3)]);
    world.create("flights", 6, 3, 1);
    // From now on the controller receives no changes.
    let cluster_view = Arc::new(ClusterView::default());
    cluster_view.load(&world.cluster.load().unwrap());
    let mut controller = world.controller(&seat, cluster_view, AT_ONCE, Arc::default());
    controller.look_round(world.cluster.living().borrow().clone());
    for made in 0..=4 {
        assert_eq!(owned(&world.streamlets("flights"), 1), 6 - made);
        controller.step(false).await;
        let Some(ended) = controller.asked.join_next().await else {
            assert_eq!(made, 4, "it stops too soon");
            return;
        };
        let (one, outcome) = ended.unwrap();
        controller.ended(one, outcome);
    }
    panic!(
        "a move that is made is made up for by another: {:#?}",
        world.owners.asked.lock()
    );
}

#[tokio::test]
async fn what_somebody_else_moved_is_not_put_right_at_once() {
    let timing = Timing {
        moved: NEVER,
        ..AT_ONCE
    };
    let world = World::with(1..=3, timing);
    world.create("flights", 12, 3, 1);
    // Its own moves do not make it wait.
    world
        .until("flights", |all| (1..=3).all(|id| owned(all, id) == 4))
        .await;
    world.owners.asked.lock().clear();
    // The first half of an exchange: broker 2 owns two more than broker 1.
    let all = world.streamlets("flights");
    let mut of_1 = all.iter().filter(|streamlet| streamlet.owner == 1);
    let old = of_1.next().expect("it has its share");
    let new = StreamletRecord {
        owner: 2,
        epoch: Epoch(old.epoch.0 + 1),
        ..old.clone()
    };
    let moved = Transaction::new(vec![Compare::epoch(old)], vec![Write::PutStreamlet(new)]);
    world.cluster.commit(moved).unwrap();
    world.until("flights", |all| owned(all, 2) == 5).await;
    drain(&world, 3).await;
    let asked = world.owners.asked.lock();
    assert!(
        asked.iter().all(|one| one.cause == Cause::Drain),
        "{asked:#?}"
    );
}

#[tokio::test]
async fn a_suspected_owner_is_replaced_before_its_lease_ends() {
    let timing = Timing {
        back: NEVER,
        ..AT_ONCE
    };
    let world = World::with(1..=3, timing);
    world.create("flights", 6, 3, 1);
    world
        .until("flights", |all| (1..=3).all(|id| owned(all, id) == 2))
        .await;
    world.suspects.send_replace(Suspects::from([2]));
    world.until("flights", |all| owned(all, 2) == 0).await;
    assert!(world.cluster.living().borrow().contains_key(&2));
    // It was a mistake, and the broker gets its share again.
    world.suspects.send_replace(Suspects::new());
    world.until("flights", |all| owned(all, 2) == 2).await;
}

/// Has a broker drain, which takes the controller's attention; what comes before it is seen by then.
async fn drain(world: &World, broker: u32) {
    let draining = LiveBroker {
        state: LiveState::Draining,
        ..live(broker)
    };
    world.seats[&broker].update(draining).unwrap();
    world.until("flights", |all| owned(all, broker) == 0).await;
}

#[tokio::test]
async fn a_broker_that_is_back_in_time_keeps_what_it_owns() {
    let timing = Timing {
        grace: NEVER,
        ..AT_ONCE
    };
    let world = World::with(1..=4, timing);
    world.create("flights", 12, 3, 2);
    world
        .until("flights", |all| (1..=4).all(|id| owned(all, id) == 3))
        .await;
    let before = world.streamlets("flights");
    world.cluster.expire(3);
    drain(&world, 2).await;
    world.cluster.revive(3);
    let now = world.streamlets("flights");
    let same = |(old, new): (&StreamletRecord, &StreamletRecord)| old.owner != 3 || old == new;
    assert!(before.iter().zip(&now).all(same), "{now:#?}");
}

#[tokio::test]
async fn after_an_outage_of_the_store_nobody_is_replaced_at_once() {
    let timing = Timing {
        back: NEVER,
        ..AT_ONCE
    };
    let world = World::with(1..=4, timing);
    world.create("flights", 12, 3, 1);
    world
        .until("flights", |all| (1..=4).all(|id| owned(all, id) == 3))
        .await;
    let before = world.streamlets("flights");
    // Every lease has ended, and three brokers are back before the fourth.
    for id in 1..=4 {
        world.cluster.expire(id);
    }
    for id in [1, 2, 4] {
        world.cluster.revive(id);
    }
    drain(&world, 1).await;
    let now = world.streamlets("flights");
    let same = |(old, new): (&StreamletRecord, &StreamletRecord)| old.owner != 3 || old == new;
    assert!(before.iter().zip(&now).all(same), "{now:#?}");
}

/// Two controllers at once, as after a pause: the older one's transactions are refused.
#[tokio::test]
async fn a_controller_that_is_over_records_nothing() {
    let world = World::with(1..=3, AT_ONCE);
    let fence = world.seats[&1]
        .fence()
        .expect("the first that stood is elected");
    world.cluster.expire(1);
    world.cluster.revive(1);
    let refused = world.cluster.commit(Transaction::new(vec![fence], vec![]));
    assert!(matches!(
        refused,
        Err(MetadataError::Conflict(Conflict::NotController { .. }))
    ));
}
