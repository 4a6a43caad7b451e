//! Random lives of a streamlet against a simple model: whatever the order of appends, retries,
//! rolls, growths, trims, failures and crashes, every acknowledged record is read exactly once and
//! in order, nothing else is made up, and no ordinal ever means two records.

mod support;

use std::sync::atomic::Ordering;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{CrashPlan, Fault};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::Settings;
use proptest::collection::vec;
use proptest::prelude::*;
use support::client::Client;
use support::model::Model;
use support::{Machine, Node, settings};

const LANES: u32 = 2;
const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Send {
        client: usize,
        lane: u32,
        count: u64,
        size: usize,
    },
    Retry {
        client: usize,
        lane: u32,
        which: usize,
    },
    Disconnect {
        client: usize,
    },
    GoOn {
        client: usize,
    },
    LocalWriter,
    Flush,
    Work,
    AgeOut,
    CloseAll,
    ReleaseIdle,
    Trim {
        lane: u32,
        part: u64,
    },
    Grow {
        commit: bool,
    },
    Slow(bool),
    Settle(usize),
    FailRecords(usize),
    Check,
    Inject(Fault),
    Heal,
    Kill {
        keep: usize,
    },
    PowerLoss {
        seed: u64,
        keep: usize,
    },
}

fn steps(crashes: u32, faults: u32, power: bool) -> impl Strategy<Value = Vec<Step>> {
    let send = (
        0..CLIENTS,
        0..LANES * 2,
        1..6u64,
        prop_oneof![8..200usize, 1000..3500usize],
    )
        .prop_map(|(client, lane, count, size)| Step::Send {
            client,
            lane,
            count,
            size,
        });
    let fault = prop_oneof![
        (0..100_000u64).prop_map(|bytes| Fault::NoSpaceAfter { bytes }),
        (1..5u64).prop_map(|nth| Fault::FailWrite { nth }),
        (1..5u64, 0..5000usize).prop_map(|(nth, bytes)| Fault::ShortWrite { nth, bytes }),
        (1..3u64).prop_map(|nth| Fault::FailSync { nth }),
    ];
    let crash = (any::<u64>(), 0..4usize, Just(power)).prop_map(|(seed, keep, power)| {
        if power && seed % 2 == 0 {
            Step::PowerLoss { seed, keep }
        } else {
            Step::Kill { keep }
        }
    });
    let step = prop_oneof![
        24 => send,
        4 => (0..CLIENTS, 0..LANES * 2, 0..4usize).prop_map(|(client, lane, which)| Step::Retry { client, lane, which }),
        1 => (0..CLIENTS).prop_map(|client| Step::Disconnect { client }),
        4 => (0..CLIENTS).prop_map(|client| Step::GoOn { client }),
        10 => Just(Step::LocalWriter),
        2 => Just(Step::Flush),
        4 => Just(Step::Work),
        1 => Just(Step::AgeOut),
        1 => Just(Step::CloseAll),
        1 => Just(Step::ReleaseIdle),
        2 => (0..LANES * 2, 0..100u64).prop_map(|(lane, part)| Step::Trim { lane, part }),
        1 => any::<bool>().prop_map(|commit| Step::Grow { commit }),
        1 => any::<bool>().prop_map(Step::Slow),
        1 => (1..4usize).prop_map(Step::Settle),
        1 => (1..3usize).prop_map(Step::FailRecords),
        3 => Just(Step::Check),
        crashes => crash,
        faults.max(1) => prop_oneof![2 => fault.prop_map(Step::Inject), 1 => Just(Step::Heal)]
            .prop_map(move |step| if faults == 0 { Step::LocalWriter } else { step }),
    ];
    vec(step, 1..120)
}

struct Life {
    machine: Machine,
    node: Option<Node>,
    clients: Vec<Client>,
    model: Model,
    settings: Settings,
    /// Bits that every power loss flips.
    flips: u32,
    /// A start was refused: an operator must look.
    refused: bool,
}

impl Life {
    fn new(ack: AckPolicy, lossy: bool) -> Self {
        let mut machine = Machine::fault(1);
        machine.limits.prepare_at = 0.6;
        machine.limits.keep_chunks = 1;
        machine.pool_bytes = 4 << 20;
        let settings = Settings {
            lanes: LANES,
            segment_size: 20_000,
            segments_per_group: 2,
            group_max_age_ms: 1,
            ..settings(ack)
        };
        let node = machine.create(settings.clone());
        let clients = (0..CLIENTS)
            .map(|n| Client::new((n > 0).then_some(n as i64)))
            .collect();
        Self {
            machine,
            node: Some(node),
            clients,
            model: Model::new(lossy, LANES),
            settings,
            flips: 0,
            refused: false,
        }
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("a running node")
    }

    fn pump(&self) {
        for lane in self.node().streamlet.describe() {
            let _ = lane;
        }
        self.node().streamlet.write_out();
        self.node().streamlet.mark();
        self.node().env.pump.drain();
    }

    fn step(&mut self, step: &Step) {
        self.machine.now_ms += 1;
        let now_ms = self.machine.now_ms;
        self.node.as_mut().expect("a running node").now_ms = now_ms;
        let node = self.node.as_ref().expect("a running node");
        match step {
            Step::Send {
                client,
                lane,
                count,
                size,
            } => {
                let settings = node.streamlet.settings();
                let lane = lane % settings.lanes;
                self.clients[*client].send(
                    node,
                    &mut self.model,
                    lane,
                    *count,
                    *size,
                    settings.lane_generation,
                );
            }
            Step::Retry {
                client,
                lane,
                which,
            } => self.clients[*client].retry(node, &mut self.model, *lane, *which),
            Step::Disconnect { client } => self.clients[*client].disconnect(&mut self.model),
            Step::GoOn { client } => self.clients[*client].go_on_everywhere(node, &mut self.model),
            Step::LocalWriter => self.pump(),
            Step::Flush => {
                node.streamlet.write_out();
                node.streamlet.mark();
            }
            Step::Work => drop(node.work()),
            Step::AgeOut => drop(node.streamlet.age_out(now_ms + 10)),
            Step::CloseAll => drop(node.streamlet.close_all(now_ms)),
            Step::ReleaseIdle => drop(node.streamlet.release_idle(now_ms, 0)),
            Step::Trim { lane, part } => {
                let bounds = node.streamlet.bounds();
                if let Some((lane, start, head)) = bounds.get(*lane as usize).copied() {
                    let to = start + (head - start) / 100 * part;
                    let _ = node.streamlet.trim(lane, to);
                }
            }
            Step::Grow { commit } => self.grow(*commit),
            Step::Slow(slow) => self.machine.store.set_slow(*slow),
            Step::Settle(count) => self.machine.store.settle(*count),
            Step::FailRecords(count) => self.machine.store.fail(*count),
            Step::Check => self.model.check(node),
            Step::Inject(fault) => self.fault().inject(fault.clone()),
            Step::Heal => self.heal(),
            Step::Kill { keep } => self.crash(|machine, node| machine.kill(node, *keep)),
            Step::PowerLoss { seed, keep } => {
                let plan = CrashPlan {
                    random_flips: self.flips,
                    ..CrashPlan::power_loss(*seed)
                };
                self.crash(|machine, node| drop(machine.power_loss(node, *keep, &plan)));
            }
        }
    }

    fn fault(&self) -> &kera_log_segments::io::fault::FaultIo {
        self.machine.fault.as_ref().expect("a fault engine")
    }

    fn heal(&self) {
        self.fault().heal();
        self.node().env.disk_full.store(false, Ordering::Relaxed);
    }

    /// At most twice, so that each new lane is fed by one old one.
    fn grow(&mut self, commit: bool) {
        let node = self.node.as_ref().expect("a running node");
        let now = node.streamlet.settings();
        if now.lanes >= LANES * 2 {
            return;
        }
        let Some(cuts) = node.streamlet.cut_lanes() else {
            return;
        };
        // Between cut and record, clients go on trying.
        self.clients
            .iter_mut()
            .for_each(|client| client.go_on_everywhere(node, &mut self.model));
        self.pump();
        let node = self.node.as_ref().expect("a running node");
        let settled = node.streamlet.growth_settled(&cuts);
        node.env.pump.drain();
        if commit && settled {
            let (lanes, generation) = (now.lanes * 2, now.lane_generation + 1);
            node.finish_growth(lanes, generation);
            (self.settings.lanes, self.settings.lane_generation) = (lanes, generation);
            let cuts: Vec<(LaneId, Ordinal)> =
                cuts.iter().map(|cut| (cut.lane, cut.ordinal)).collect();
            self.model.grown(generation, lanes, &cuts);
        } else {
            node.streamlet.abort_growth();
        }
    }

    fn crash(&mut self, how: impl FnOnce(&mut Machine, Node)) {
        let node = self.node.take().expect("a running node");
        self.clients
            .iter_mut()
            .for_each(|client| client.disconnect(&mut self.model));
        how(&mut self.machine, node);
        self.machine.store.set_slow(false);
        let (node, recovery) = match self.machine.try_recover(self.settings.clone()) {
            Ok(recovered) => recovered,
            Err(error) => {
                // A flipped version looks like a newer format: nothing is touched.
                assert!(
                    self.flips > 0 && error.kind() == std::io::ErrorKind::InvalidData,
                    "{error}"
                );
                self.refused = true;
                return;
            }
        };
        if !self.model.lossy {
            assert!(
                recovery.gaps.is_empty(),
                "nothing shown may be lost: {recovery:?}"
            );
        }
        self.node = Some(node);
        self.model
            .check(self.node.as_ref().expect("a running node"));
    }

    /// All failures over: everything sent is acknowledged soon, and survives one more crash.
    fn end(&mut self) {
        self.heal();
        self.machine.store.fail(0);
        self.machine.store.set_slow(false);
        for _ in 0..20 {
            let node = self.node.as_ref().expect("a running node");
            self.clients
                .iter_mut()
                .for_each(|client| client.go_on_everywhere(node, &mut self.model));
            self.pump();
            self.node().work();
            // A full disk that repair met has space again.
            self.heal();
            if self.clients.iter().all(|client| client.waiting() == 0) {
                break;
            }
        }
        let waiting: Vec<_> = self.clients.iter().map(Client::waiting).collect();
        assert_eq!(waiting, [0; CLIENTS], "some batches are never acknowledged");
        let node = self.node.as_ref().expect("a running node");
        self.model.check(node);
        assert!(
            node.streamlet.close_all(node.now_ms) || {
                node.work();
                node.streamlet.close_all(node.now_ms)
            }
        );
        node.streamlet.release_idle(node.now_ms + 1_000_000, 0);
        self.model.check(node);
        self.crash(|machine, node| machine.kill(node, 0));
    }
}

fn live(ack: AckPolicy, lossy: bool, steps: &[Step]) {
    live_with(ack, lossy, 0, steps);
}

fn live_with(ack: AckPolicy, lossy: bool, flips: u32, steps: &[Step]) {
    let mut life = Life {
        flips,
        ..Life::new(ack, lossy)
    };
    life.model.flipped = flips > 0;
    for step in steps {
        life.step(step);
        if life.refused {
            return;
        }
    }
    life.end();
}

/// Cases per property; `KERA_CASES` for long runs.
fn config() -> ProptestConfig {
    let cases = std::env::var("KERA_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(128);
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    }
}

/// Found by the first property below: a group that is not recorded, one without a batch, and one with records. The last
/// one must not be written before the first one counts.
#[test]
fn a_group_without_a_batch_lets_no_later_one_overtake_those_before_it() {
    let send = |client| Step::Send {
        client,
        lane: 1,
        count: 1,
        size: 8,
    };
    let steps = [
        send(3),
        Step::CloseAll,
        Step::Kill { keep: 0 },
        Step::FailRecords(1),
        send(0),
        Step::AgeOut,
        // What it sends again was stored before: the group that is begun for it stays empty.
        Step::GoOn { client: 3 },
        Step::AgeOut,
        send(0),
        Step::Grow { commit: false },
        Step::Kill { keep: 0 },
    ];
    live(AckPolicy::Written, false, &steps);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn written_survives_kills(steps in steps(3, 0, false)) {
        live(AckPolicy::Written, false, &steps);
    }

    #[test]
    fn written_survives_kills_and_a_failing_disk(steps in steps(2, 4, false)) {
        live(AckPolicy::Written, false, &steps);
    }

    #[test]
    fn synced_survives_power_loss(steps in steps(3, 0, true)) {
        live(AckPolicy::Synced, false, &steps);
    }

    #[test]
    fn synced_survives_power_loss_and_a_failing_disk(steps in steps(2, 4, true)) {
        live(AckPolicy::Synced, false, &steps);
    }

    #[test]
    fn memory_never_uses_an_ordinal_twice(steps in steps(3, 2, false)) {
        live(AckPolicy::Memory, true, &steps);
    }

    #[test]
    fn written_never_uses_an_ordinal_twice_over_power_loss(steps in steps(3, 2, true)) {
        live(AckPolicy::Written, true, &steps);
    }

    #[test]
    fn a_flipped_bit_is_never_served(steps in steps(6, 0, true)) {
        live_with(AckPolicy::Written, true, 3, &steps);
    }
}
