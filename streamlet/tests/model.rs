//! The lock order and the races of a streamlet under a model checker that owns every interleaving:
//! appends, rolls, closing, growth, trim, repair and reads on several threads.
//!
//! Built and run with `RUSTFLAGS="--cfg kera_shuttle"`; see the `shuttle` target of the Makefile.
//! Every mutex checks its rank at each lock, so a wrong order fails in whichever schedule takes it.
#![cfg(kera_shuttle)]

mod support;

use std::sync::Arc;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Fault;
use kera_log_segments::sync::{Ordering, Rank, mutex, pause};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::{AppendError, AppendSpec, Appended, Outcome, Settings};
use shuttle::thread;
use support::batches::{ids_of, stamped};
use support::{LANE, Machine, Node, settings};

use kera_protocol::batch::BatchHeader;
use kera_streamlet::{LaneReadSpec, Located};

/// Schedules of each kind tried by each test; `KERA_SCHEDULES` for long runs.
fn schedules() -> usize {
    std::env::var("KERA_SCHEDULES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000)
}

/// Random schedules, and such that switch threads rarely but at the worst points.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let again = test.clone();
    shuttle::check_random(move || test(), schedules());
    shuttle::check_pct(move || again(), schedules(), 3);
}

/// So small that a group takes four batches.
fn tiny(ack: AckPolicy) -> Settings {
    Settings {
        lanes: 2,
        segment_size: 4 * 1024,
        segments_per_group: 2,
        group_max_age_ms: 1,
        ..settings(ack)
    }
}

/// A producer of `batches` batches of one record each; sends again what is lost or refused for now.
/// Returns where its records were acknowledged.
fn produce(node: &Node, producer: i64, lane: u32, batches: i32) -> Vec<(LaneId, Ordinal, u64)> {
    let mut acknowledged = Vec::new();
    for sequence in 0..batches {
        let id = producer as u64 * 1000 + sequence as u64;
        let placed = append(
            node,
            lane,
            &stamped(producer, 0, sequence, id..id + 1, 1500),
        );
        acknowledged.push((placed.lane, placed.base_ordinal, id));
    }
    acknowledged
}

/// Appends until durable.
fn append(node: &Node, lane: u32, batch: &[u8]) -> Appended {
    loop {
        let mut bytes = batch.to_vec();
        let header = BatchHeader::peek(&bytes).expect("a batch");
        let spec = AppendSpec {
            lane,
            lane_generation: Some(node.streamlet.settings().lane_generation),
            now_ms: node.now_ms,
            essential: false,
        };
        match node.streamlet.append(&mut bytes, &header, spec) {
            Ok(placed) => loop {
                placed.group.pump(&node.env.pump);
                node.env.pump.drain();
                match placed.outcome() {
                    Outcome::Durable => return placed,
                    Outcome::Lost => break,
                    Outcome::Pending => {
                        // The interval at which failures are met that no append meets.
                        node.streamlet.write_out();
                        node.work();
                        pause();
                    }
                }
            },
            Err(
                AppendError::Recovering
                | AppendError::StaleLanes { .. }
                | AppendError::DiskFull
                | AppendError::NoMemory,
            ) => {
                node.env.disk_full.store(false, Ordering::Relaxed);
                node.work();
                pause();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a reader sees of a lane now, in order.
fn read(node: &Node, lane: LaneId) -> Vec<(Ordinal, u64)> {
    let mut at = Located {
        ordinal: node.log_start(lane),
        at: None,
    };
    let mut out: Vec<(Ordinal, u64)> = Vec::new();
    loop {
        let spec = LaneReadSpec {
            lane,
            from: at,
            end_ordinal: u64::MAX,
            max_bytes: 2000,
            cached_only: false,
        };
        let found = match node.streamlet.read(spec) {
            Ok(found) => found,
            Err(kera_streamlet::LaneReadError::OutOfRange { log_start, .. })
                if log_start > at.ordinal =>
            {
                // Trimmed under the reader.
                at = Located {
                    ordinal: log_start,
                    at: None,
                };
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for (ordinal, id) in ids_of(&found.bufs.concat()) {
            assert!(
                ordinal < found.head,
                "ordinal {ordinal} is shown above the head {}",
                found.head
            );
            assert!(
                out.last().is_none_or(|(before, _)| *before < ordinal),
                "ordinal {ordinal} comes late"
            );
            out.push((ordinal, id));
        }
        if found.batches == 0 {
            return out;
        }
        at = found.next;
    }
}

/// All that was acknowledged is there, once, in its place.
fn expect(node: &Node, acknowledged: &[(LaneId, Ordinal, u64)]) {
    for lane in 0..node.streamlet.settings().lanes {
        let lane = LaneId(lane);
        let seen = read(node, lane);
        let start = node.log_start(lane);
        for (_, ordinal, id) in acknowledged
            .iter()
            .filter(|(l, o, _)| *l == lane && *o >= start)
        {
            assert!(
                seen.contains(&(*ordinal, *id)),
                "record {id} at ordinal {ordinal} of lane {lane} is lost: {seen:?}"
            );
        }
        let mut ids: Vec<u64> = seen.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), seen.len(), "a record is there twice: {seen:?}");
    }
}

fn life(ack: AckPolicy, faults: bool) {
    let mut machine = Machine::fault(1);
    machine.limits.prepare_at = 0.5;
    machine.limits.keep_chunks = 1;
    let node = Arc::new(machine.create(tiny(ack)));
    let spawn = |work: fn(&Node) -> Vec<(LaneId, Ordinal, u64)>| {
        let node = node.clone();
        thread::spawn(move || work(&node))
    };
    let mut threads = vec![
        spawn(|node| produce(node, 1, 0, 6)),
        spawn(|node| produce(node, 2, 0, 6)),
        spawn(|node| {
            // Rolls, closings and what else happens off the path.
            for _ in 0..3 {
                node.streamlet.age_out(node.now_ms + 10);
                node.work();
                node.streamlet.write_out();
                node.streamlet.release_idle(node.now_ms, 0);
            }
            Vec::new()
        }),
        spawn(|node| {
            for _ in 0..3 {
                read(node, LANE);
                let _ = node.streamlet.trim(LANE, node.head(LANE) / 2);
            }
            Vec::new()
        }),
        spawn(|node| {
            grow(node);
            produce(node, 3, node.streamlet.settings().lanes - 1, 2)
        }),
    ];
    if faults {
        let fault = machine.fault.clone().expect("a fault engine");
        threads.push(thread::spawn(move || {
            fault.inject(Fault::FailWrite { nth: 3 });
            pause();
            fault.inject(Fault::FailSync { nth: 2 });
            Vec::new()
        }));
    }
    let mut acknowledged = Vec::new();
    for thread in threads {
        acknowledged.extend(thread.join().expect("a thread"));
    }
    expect(&node, &acknowledged);
    assert!(node.work() || node.work());
    while !node.streamlet.close_all(node.now_ms) {
        node.env.pump.drain();
        node.work();
    }
    expect(&node, &acknowledged);
    // Nothing is left half done: the next process finds it all.
    let Ok(node) = Arc::try_unwrap(node) else {
        panic!("a thread still holds the node")
    };
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(Settings {
        lanes: 3,
        lane_generation: 2,
        ..tiny(ack)
    });
    assert!(
        recovery.gaps.is_empty() && recovery.reports.is_empty(),
        "{recovery:?}"
    );
    expect(&node, &acknowledged);
}

fn grow(node: &Node) {
    loop {
        if let Some(cuts) = node.streamlet.cut_lanes() {
            for _ in 0..50 {
                if node.streamlet.growth_settled(&cuts) {
                    node.finish_growth(3, 2);
                    return;
                }
                node.env.pump.drain();
                node.work();
                pause();
            }
            node.streamlet.abort_growth();
        }
        node.work();
        pause();
    }
}

#[test]
fn written() {
    explore(|| life(AckPolicy::Written, false));
}

#[test]
fn synced() {
    explore(|| life(AckPolicy::Synced, false));
}

#[test]
fn written_with_failing_writes() {
    explore(|| life(AckPolicy::Written, true));
}

/// Whoever pumps once, with no lock held, leaves nothing behind: what it was told another would
/// take along is durable when all are done.
fn nothing_is_stranded(ack: AckPolicy) {
    let mut machine = Machine::fault(1);
    let node = Arc::new(machine.create(tiny(ack)));
    let append_some = |producer: i64| {
        let node = node.clone();
        thread::spawn(move || {
            let mut placed = Vec::new();
            for sequence in 0..3 {
                let id = producer as u64 * 10 + sequence as u64;
                let mut batch = stamped(producer, 0, sequence, id..id + 1, 900);
                let appended = node.place(0, &mut batch).expect("a place");
                appended.group.pump(&node.env.pump);
                node.env.pump.drain();
                placed.push(appended);
            }
            placed
        })
    };
    let threads = [append_some(1), append_some(2), append_some(3)];
    let placed = threads.map(|thread| thread.join().expect("a thread"));
    for placed in placed.iter().flatten() {
        assert_eq!(placed.outcome(), Outcome::Durable, "stranded: {placed:?}");
    }
}

#[test]
fn no_range_is_stranded() {
    explore(|| nothing_is_stranded(AckPolicy::Written));
    explore(|| nothing_is_stranded(AckPolicy::Synced));
}

#[test]
#[should_panic(expected = "lock order: Streamlet is asked for while Group is held")]
fn an_inverted_order_is_caught() {
    shuttle::check_random(
        || {
            let (streamlet, group) = (
                Arc::new(mutex(Rank::Streamlet, 0)),
                Arc::new(mutex(Rank::Group, 0)),
            );
            let (s, g) = (streamlet.clone(), group.clone());
            let inverted = thread::spawn(move || {
                let held = g.lock();
                *s.lock() += *held;
            });
            {
                let mut held = streamlet.lock();
                *held += *group.lock();
            }
            inverted.join().expect("a thread");
        },
        schedules(),
    );
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_ranks_the_model_finds_the_deadlock_itself() {
    // So the schedules do reach the interleavings that matter.
    shuttle::check_random(
        || {
            let one = Arc::new(shuttle::sync::Mutex::new(0));
            let other = Arc::new(shuttle::sync::Mutex::new(0));
            let (a, b) = (one.clone(), other.clone());
            let inverted = thread::spawn(move || {
                let held = b.lock().expect("a lock");
                *a.lock().expect("a lock") += *held;
            });
            {
                let mut held = one.lock().expect("a lock");
                *held += *other.lock().expect("a lock");
            }
            inverted.join().expect("a thread");
        },
        schedules(),
    );
}
