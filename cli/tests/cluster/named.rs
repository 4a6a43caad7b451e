//! Stories of owners that change at the worst moment, told by processes on loopback, under load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kera_history::Event;
use kera_log_segments::group::GroupSpec;
use kera_metadata::{GroupRecord, GroupState};
use kera_protocol::ids::GroupId;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clock::Clock;
use crate::common::PATIENCE;
use crate::common::holdings::{LOST, look};
use crate::common::machine::skip;
use crate::etcd::Etcd;
use crate::load::Load;
use crate::local::Local;
use crate::nodes::{BROKERS, LEASE};
use crate::rest::{self, Recorded};
use crate::world::{KEYED, World};

/// A cluster under load.
struct Story {
    cluster: Local,
    load: Load,
    begun: Instant,
}

impl Story {
    /// None, and said so, where there is no etcd.
    async fn begin(name: &str) -> Option<Self> {
        Self::begin_with(name, LEASE).await
    }

    /// The same with other leases.
    async fn begin_with(name: &str, lease: Duration) -> Option<Self> {
        if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
            skip(name, &reason);
            return None;
        }
        let cluster = block_in_place(|| Local::start(BROKERS, lease));
        let load = Load::start(name, &cluster.bootstrap(), 1).await;
        let begun = Instant::now();
        let story = Self {
            cluster,
            load,
            begun,
        };
        story.progress().await;
        Some(story)
    }

    /// More is acknowledged of every streamlet.
    async fn progress(&self) {
        self.load.world.acknowledged_everywhere().await;
        self.tell("all streamlets go on");
    }

    fn tell(&self, what: &str) {
        eprintln!("{:?}: {what}", self.begun.elapsed());
    }

    fn owner(&self) -> (u32, u64) {
        block_in_place(|| self.cluster.owner(World::stream_name(KEYED)))
    }

    fn pause(&mut self, number: u32, paused: bool) {
        self.cluster.pause(number, paused);
        self.tell(&format!("broker {number} stopped: {paused}"));
    }

    /// One more broker; its number.
    fn join(&mut self) -> u32 {
        block_in_place(|| self.cluster.add());
        self.load.world.recorder().record(Event::BrokerStarted);
        self.cluster.brokers.len() as u32
    }

    fn kill(&mut self, number: u32) {
        self.load.world.recorder().record(Event::BrokerKilled);
        block_in_place(|| self.cluster.broker(number).kill());
        self.tell(&format!("broker {number} is killed"));
    }

    fn restart(&mut self, number: u32) {
        block_in_place(|| self.cluster.broker(number).restart());
        self.tell(&format!("broker {number} is back"));
        self.load.world.recorder().record(Event::BrokerStarted);
    }

    /// Waits until somebody else owns the first streamlet; who, and under which epoch.
    async fn owner_after(&self, (before, epoch): (u32, u64)) -> (u32, u64) {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < PATIENCE, "nobody follows broker {before}");
            let now = self.owner();
            if now.0 != before {
                assert!(now.1 > epoch, "epoch {epoch} is followed by {}", now.1);
                self.tell(&format!("broker {} owns the first streamlet", now.0));
                return now;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a broker has nothing but a file of a closed group that it had in its store, under whose id
    /// the group is recorded; the directory of that file.
    async fn has_made_a_file(&self, recorded: &Recorded, broker: u32) -> PathBuf {
        let at = &self.cluster.brokers[broker as usize - 1];
        let status = block_in_place(|| at.json(&["broker", "describe"]));
        let store = status["cluster"]["backup"]["store_id"].as_str();
        let store = store.expect("an id").to_owned();
        let directories = self.cluster.directories();
        let roots = &directories[broker as usize - 1].kept;
        let kept = |record: &GroupRecord| {
            let name = format!("{}.0.log", record.group);
            let below = |root: &PathBuf| root.join(record.stream.to_string());
            let dir = |root| below(root).join(record.streamlet.to_string());
            roots.iter().any(|root| dir(root).join(&name).exists())
        };
        let begin = Instant::now();
        loop {
            let image = block_in_place(|| recorded.image());
            let of_store = |record: &&GroupRecord| {
                let copy = record.copies.iter().find(|copy| copy.broker.0 == broker);
                record.state == GroupState::Closed
                    && copy.is_some_and(|copy| copy.incarnation.store_id.to_string() == store)
            };
            let found = image.groups.iter().filter(of_store).find_map(|record| {
                let dir = at
                    .data_dir()
                    .join("streams")
                    .join(record.stream.to_string());
                let dir = dir.join(record.streamlet.to_string());
                let name = GroupSpec::file_name(record.group, record.generation);
                let alone = dir.join(name).exists() && !kept(record);
                alone.then_some(dir)
            });
            if let Some(dir) = found {
                self.tell(&format!(
                    "broker {broker} has made a file in {}",
                    dir.display()
                ));
                return dir;
            }
            // Where it was removed at once nobody sees it.
            let amiss = block_in_place(|| look(|| recorded.image(), &directories));
            assert!(amiss.lost.is_empty(), "{LOST}: {:#?}", amiss.lost);
            assert!(begin.elapsed() < PATIENCE, "broker {broker} has made none");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a closed group with records is recorded at a broker, of the stream whose owners are asked for.
    async fn has_closed_a_group(&self, recorded: &Recorded, broker: u32) {
        let begin = Instant::now();
        loop {
            let (image, stream) = block_in_place(|| {
                let stream = recorded.stream(World::stream_name(KEYED));
                (recorded.image(), stream)
            });
            let has = |record: &GroupRecord| {
                let mut copies = record.copies.iter();
                let is_of = Some(record.stream) == stream && record.streamlet.0 == 0;
                let is_closed = record.state == GroupState::Closed && record.length > 0;
                is_of && is_closed && copies.any(|copy| copy.broker.0 == broker)
            };
            if image.groups.iter().any(has) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "no group has been closed");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn finish(self) {
        let report = self.load.finish().await;
        eprintln!("{report}");
        self.cluster.nothing_was_missed();
        let (url, brokers) = (self.cluster.store.address(), self.cluster.directories());
        let bootstrap = self.cluster.bootstrap();
        block_in_place(|| rest::is_right(&url, &bootstrap, &brokers));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_stopped_across_its_lease_is_a_zombie_that_harms_nobody() {
    let Some(mut story) = Story::begin("an_owner_stopped_across_its_lease").await else {
        return;
    };
    let first = story.owner();
    story.pause(first.0, true);
    story.owner_after(first).await;
    story.progress().await;
    // It wakes up as the owner that it was.
    story.pause(first.0, false);
    story.progress().await;
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_killed_is_followed_and_so_is_the_one_that_follows() {
    let Some(mut story) = Story::begin("an_owner_killed_is_followed").await else {
        return;
    };
    let first = story.owner();
    story.kill(first.0);
    // Whatever the next owner is in the middle of: recovering lanes, loading groups.
    let second = story.owner_after(first).await;
    story.kill(second.0);
    story.restart(first.0);
    story.progress().await;
    story.restart(second.0);
    story.progress().await;
    story.finish().await;
}

/// What it holds of the streamlets that others own now came as copies to its store, and are files by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_twice_holds_what_is_recorded() {
    let Some(mut story) = Story::begin("a_broker_that_comes_back_twice").await else {
        return;
    };
    let recorded = Recorded::at(&story.cluster.store.address());
    let first = story.owner();
    story.kill(first.0);
    let second = story.owner_after(first).await;
    story.progress().await;
    // Before the other one is back and gets its share: then the streamlet may go before there is a file.
    let dir = story.has_made_a_file(&recorded, second.0).await;
    story.restart(first.0);
    story.progress().await;
    story.kill(second.0);
    story.progress().await;
    // With one file that is not recorded all of its are looked at.
    let stray = dir.join(GroupSpec::file_name(GroupId(999_999), 0));
    std::fs::write(&stray, b"of no group").expect("it is written");
    story.restart(second.0);
    let ends = block_in_place(|| [1, 2, 3].map(|n| (n, story.cluster.rounds(n) + 2)));
    let brokers = story.cluster.directories();
    while block_in_place(|| ends.iter().any(|(n, end)| story.cluster.rounds(*n) < *end)) {
        let amiss = block_in_place(|| look(|| recorded.image(), &brokers));
        assert!(amiss.lost.is_empty(), "{LOST}: {:#?}", amiss.lost);
    }
    assert!(!stray.exists(), "nobody has removed what is not recorded");
    story.tell("all have looked for what is to be given up");
    story.finish().await;
}

/// What it has of the streamlets that others own now are its own files, which it is asked for while it starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_does_not_deny_what_it_has() {
    let Some(mut story) = Story::begin("a_broker_that_comes_back_does_not_deny").await else {
        return;
    };
    let recorded = Recorded::at(&story.cluster.store.address());
    let first = story.owner();
    story.has_closed_a_group(&recorded, first.0).await;
    story.kill(first.0);
    let second = story.owner_after(first).await;
    story.progress().await;
    story.restart(first.0);
    let end = block_in_place(|| story.cluster.rounds(second.0)) + 3;
    while block_in_place(|| story.cluster.rounds(second.0)) < end {
        story.progress().await;
        story.cluster.nothing_was_missed();
    }
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_stopped_while_it_takes_over_is_overtaken() {
    let Some(mut story) = Story::begin("an_owner_stopped_while_it_takes_over").await else {
        return;
    };
    let first = story.owner();
    story.kill(first.0);
    let second = story.owner_after(first).await;
    story.pause(second.0, true);
    story.restart(first.0);
    story.progress().await;
    story.pause(second.0, false);
    story.progress().await;
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_for_longer_than_a_lease_all_waits_and_goes_on_by_itself() {
    let Some(story) = Story::begin("without_etcd_for_longer_than_a_lease").await else {
        return;
    };
    story.cluster.store.pause(true);
    sleep(LEASE + Duration::from_secs(1)).await;
    story.cluster.store.pause(false);
    story.progress().await;
    block_in_place(|| story.cluster.store.kill());
    sleep(Duration::from_secs(1)).await;
    block_in_place(|| story.cluster.store.restart());
    story.progress().await;
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_restarted_one_by_one_cost_no_client_an_error() {
    let Some(mut story) = Story::begin("brokers_restarted_one_by_one").await else {
        return;
    };
    for number in 1..=BROKERS {
        story.load.world.recorder().record(Event::BrokerStopped);
        let status = block_in_place(|| story.cluster.broker(number).stop());
        assert!(status.success(), "broker {number} ended with {status}");
        story.progress().await;
        story.restart(number);
        story.progress().await;
    }
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_joins_and_is_killed_at_once_takes_nothing_with_it() {
    let Some(mut story) = Story::begin("a_broker_that_joins_and_is_killed").await else {
        return;
    };
    let joined = story.join();
    story.kill(joined);
    story.progress().await;
    story.restart(joined);
    story.progress().await;
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_while_it_gets_its_share_takes_nothing_with_it() {
    let Some(mut story) = Story::begin("a_broker_killed_while_it_gets_its_share").await else {
        return;
    };
    let joined = story.join();
    let got = block_in_place(|| story.cluster.owns_something(joined));
    story.tell(&format!("broker {joined} has {got}"));
    story.kill(joined);
    story.progress().await;
    story.restart(joined);
    story.progress().await;
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_brokers_become_five_and_others_three_remain() {
    let Some(mut story) = Story::begin("three_brokers_become_five").await else {
        return;
    };
    for _ in 0..2 {
        let number = story.join();
        block_in_place(|| story.cluster.has_joined(number));
        story.tell(&format!("broker {number} has its share"));
        story.progress().await;
    }
    // Those that were there first: all that is left of them is what the others have.
    for number in 1..=2 {
        block_in_place(|| story.cluster.drain(number));
        story.tell(&format!("broker {number} may be stopped"));
        story.progress().await;
        story.load.world.recorder().record(Event::BrokerStopped);
        let status = block_in_place(|| story.cluster.broker(number).stop());
        assert!(status.success(), "broker {number} ended with {status}");
        story.progress().await;
    }
    story.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_hours_ends_no_lease_and_deletes_nothing() {
    // Long enough for no lease to end because the machine is busy, and far less than the clock jumps.
    let lease = LEASE * 4;
    let Some(story) = Story::begin_with("a_clock_that_jumps_by_hours", lease).await else {
        return;
    };
    let before = story.owner();
    let broker = before.0 as usize - 1;
    for hours in [30, -30, 0, -7, 7] {
        story.cluster.clocks[broker].set(hours * 3_600);
        story.tell(&format!("the owner's clock is {hours} h off"));
        story.progress().await;
        // All of them together are longer than a broker may be silent; retention looks many times.
        sleep(LEASE + Duration::from_secs(1)).await;
        story.progress().await;
    }
    assert_eq!(story.owner(), before, "it was the owner all the time");
    let log = story.cluster.brokers[broker].log();
    assert!(
        log.contains("the machine's clock jumped forward"),
        "it went by another clock"
    );
    story.cluster.clocks[broker].set(0);
    story.finish().await;
}
