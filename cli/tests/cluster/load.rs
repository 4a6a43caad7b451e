//! Producers and consumers at every streamlet of a cluster, and the judgement of what they saw.

use std::time::{Duration, Instant};

use kera_history::{Event, Expectations, Report, check};
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::Plan;
use crate::common::{PATIENCE, finish, home, kera};
use crate::consuming::Members;
use crate::finale;
use crate::producing::Producers;
use crate::runs::judge;
use crate::world::{KEYED, LANES, ORDERED, PINNED, SHARED, STREAMLETS, World};

/// Records after which producers go slowly: consumers have to read all of them in the end.
const BUDGET: u64 = 60_000;

/// All clients of a run.
pub struct Load {
    pub world: World,
    producers: Producers,
    members: Members,
    home: TempDir,
    title: String,
}

impl Load {
    /// Makes the streams, with a copy at each of three brokers, and begins.
    pub async fn start(title: &str, bootstrap: &str, seed: u64) -> Self {
        let home = home();
        let path = home.path().join("history.jsonl");
        let world = World::new(&path, title, bootstrap, false);
        world.set_budget(BUDGET);
        create_streams(bootstrap, seed).await;
        world.learn_streams().await;
        world.recorder().record(Event::LanesGrown {
            stream: KEYED,
            lanes: LANES * 2,
        });
        world.recorder().record(Event::BrokerStarted);
        let producers = Producers::start(&world, seed);
        let members = Members::of(&world, seed, &[ORDERED, ORDERED, SHARED, SHARED]);
        Self {
            world,
            producers,
            members,
            home,
            title: title.to_owned(),
        }
    }

    /// Everything goes on, comes to an end, is read, and is as it was promised.
    pub async fn finish(self) -> Report {
        let world = self.world;
        world.acknowledged_everywhere().await;
        let sent = self.producers.finish().await;
        eprintln!("all is sent");
        let drained = finale::drain(&world).await;
        eprintln!("{sent} records, groups have read them: {drained:?}");
        self.members.finish().await;
        finale::read_everything(&world, &Plan { trims: false }).await;
        let complaints = world.complaints();
        let history = world.finish();
        let expectations = Expectations {
            complete: true,
            ..Expectations::default()
        };
        let report = check(&history, &expectations).expect("the history can be judged");
        let verdicts = [judge(&report, sent), drained, complaints];
        let failed: Vec<_> = verdicts.into_iter().filter_map(Result::err).collect();
        if !failed.is_empty() {
            let kept = self.home.keep();
            eprintln!(
                "{report}\n{}: the history is in {}",
                self.title,
                kept.display()
            );
            panic!("{}; {}", report.headline(), failed.join("; "));
        }
        report
    }
}

/// What acknowledgements promise, of one stream this and of the other that, as the seed says. No fault takes the
/// shared memory of a machine, so all that is acknowledged must be there in the end.
const ACKS: [&str; 2] = ["memory", "written"];

async fn create_streams(bootstrap: &str, seed: u64) {
    let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
    for stream in [KEYED, PINNED] {
        let mut words = vec!["stream", "create", World::stream_name(stream)];
        // An attempt whose answer was lost may have made it.
        words.push("--if-not-exists");
        words.extend(["--streamlets", &streamlets, "--lanes", &lanes]);
        let by_producer = stream == PINNED;
        words.extend(["--lane-by", if by_producer { "producer" } else { "key" }]);
        // Small, so that segments and groups roll all the time.
        words.extend(["--segment-size", "64KiB", "--segments-per-group", "4"]);
        words.extend(["--replicas", "3", "--min-insync-replicas", "2"]);
        let ack = ACKS[(seed as usize + stream as usize) % ACKS.len()];
        words.extend(["--ack", ack]);
        // Longer than any run, and shorter than a clock jumps.
        words.extend(["--retention-time", "1h"]);
        until(bootstrap, &words).await;
    }
    let lanes = (LANES * 2).to_string();
    let keyed = World::stream_name(KEYED);
    until(bootstrap, &["stream", "alter", keyed, "--lanes", &lanes]).await;
}

/// Runs a client command until it succeeds: brokers that serve may not have heard of each other yet.
async fn until(bootstrap: &str, words: &[&str]) {
    let begin = Instant::now();
    loop {
        let finished = block_in_place(|| {
            let mut command = kera();
            command.args(words).env("KERA_BOOTSTRAP", bootstrap);
            finish(command, b"")
        });
        if finished.status.success() {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "kera {}: {}",
            words.join(" "),
            finished.stderr
        );
        sleep(Duration::from_millis(100)).await;
    }
}
