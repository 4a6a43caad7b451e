//! Planned hand-overs, one after the other: how long does a streamlet that moves go without
//! acknowledgements?

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_protocol::v1;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

use super::failover::streams;
use super::loops::{Loops, Place, longest_gap};
use super::nodes::{Nodes, Places};
use super::watched::Watching;
use crate::measure::noise::Snapshot;

/// A record to every streamlet each, beside those of the one that moves.
const EVERY: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(60);
/// The streamlet that moves is sent to for so long before and after.
const AROUND: Duration = Duration::from_millis(200);

/// All hand-overs of one cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Milliseconds between the last acknowledgement of the former owner and the first of the new one,
    /// of each hand-over.
    pub gaps_ms: Vec<f64>,
    /// The longest time between two acknowledgements of a streamlet that stays where it is, for as long
    /// as a hand-over takes: what the load alone makes of it.
    pub still_ms: Vec<f64>,
    /// Hand-overs that were refused, as when the controller moves the same streamlet.
    pub refused: usize,
    /// Share of the cores that other processes used.
    pub others: f64,
}

/// So many hand-overs between the brokers of a cluster of three.
pub(super) async fn run(places: &Places, streamlets: u32, moves: u32) -> Result<Taken> {
    let nodes = Nodes::start(places, 3)?;
    let taken = hand_over(&nodes, places, streamlets, moves).await;
    taken.with_context(|| nodes.logs())
}

async fn hand_over(nodes: &Nodes, places: &Places, streamlets: u32, moves: u32) -> Result<Taken> {
    let streams = streams(streamlets);
    for stream in &streams {
        nodes.create(stream)?;
    }
    let watching = Watching::start(nodes.store(), &streams).await?;
    watching.settled(3, PATIENCE).await?;
    let mut loops = Loops::open(&nodes.bootstrap(), &streams).await?;
    loops.begin(EVERY);
    loops.acknowledged_since(Instant::now(), PATIENCE).await?;
    let first = nodes.bootstrap();
    let first = first.split(',').next().context("there is a broker")?;
    let channel = Channel::from_shared(format!("http://{first}"))?
        .connect()
        .await?;
    let mut control = ClustersClient::new(channel);
    let pids = nodes.pids();
    let machine = Snapshot::take(&pids);
    let mut taken = Taken {
        gaps_ms: Vec::new(),
        still_ms: Vec::new(),
        refused: 0,
        others: 0.0,
    };
    let all = loops.places();
    let mut turn = 0;
    while taken.gaps_ms.len() < moves as usize {
        places.interrupt.check()?;
        ensure!(
            taken.refused <= moves as usize,
            "most hand-overs are refused"
        );
        let (place, to) = next(&watching, &all, turn);
        turn += 1;
        let request = v1::MoveStreamletRequest {
            stream: streams[place.0].name.clone(),
            streamlet: place.1,
            to,
            epoch: None,
            passed_on: false,
        };
        let moving = async {
            tokio::time::sleep(AROUND).await;
            let moved = control.move_streamlet(request).await;
            tokio::time::sleep(AROUND).await;
            moved
        };
        let (moved, acked) = loops.beside(place, moving).await?;
        if moved.is_err() {
            taken.refused += 1;
            continue;
        }
        let gap = longest_gap(&acked).context("nothing was acknowledged")?;
        taken.gaps_ms.push(gap.as_secs_f64() * 1e3);
        // The same streamlet again, which stays where it is now.
        let ((), acked) = loops.beside(place, tokio::time::sleep(AROUND * 2)).await?;
        let gap = longest_gap(&acked).context("nothing was acknowledged")?;
        taken.still_ms.push(gap.as_secs_f64() * 1e3);
    }
    taken.others = Snapshot::take(&pids).others_since(&machine);
    loops.finish().await?;
    Ok(taken)
}

/// A streamlet of the broker that owns most, and the broker that owns least: so that the controller has
/// nothing to even out.
fn next(watching: &Watching, all: &[Place], turn: usize) -> (Place, u32) {
    let owners = watching.owners();
    let count = |broker: u32| owners.values().filter(|owner| **owner == broker).count();
    let mut brokers = [1, 2, 3];
    // Each has its turn where they are even.
    brokers.rotate_left(turn % 3);
    let from = brokers
        .into_iter()
        .max_by_key(|broker| count(*broker))
        .unwrap_or(1);
    let to = brokers.into_iter().filter(|broker| *broker != from);
    let to = to.min_by_key(|broker| count(*broker)).unwrap_or(2);
    let owned = |place: &&Place| owners.get(&watching.which(**place)) == Some(&from);
    let mut candidates = all
        .iter()
        .cycle()
        .skip(turn * 7 % all.len().max(1))
        .take(all.len());
    (candidates.find(owned).copied().unwrap_or((0, 0)), to)
}
