//! A broker of three is gone: how long do its streamlets, and those whose copies it kept, go without
//! acknowledgements?

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::loops::{Loops, Place};
use super::nodes::{Nodes, Places, StreamPlan};
use super::watched::Watching;
use crate::measure::noise::Snapshot;
use crate::statistics::Summary;

/// Streamlets of one stream.
const OF_A_STREAM: u32 = 100;
/// A record to every streamlet each.
const EVERY: Duration = Duration::from_millis(250);
/// Longest wait for a state of the cluster.
const PATIENCE: Duration = Duration::from_secs(60);
/// Records are sent for so long before the broker goes.
const BEFORE: Duration = Duration::from_secs(2);

/// How a broker goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    /// SIGKILL.
    Killed,
    /// SIGSTOP: it answers nobody, and nobody is refused; its lease decides.
    Stopped,
}

/// A run. Times are milliseconds since the broker went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Who went.
    pub broker: u32,
    /// It was controller.
    pub controller: bool,
    /// Streamlets that got another owner, of the load's and others.
    pub moved: usize,
    /// The first new owner is recorded: that the broker is gone has been noticed.
    pub noticed_ms: f64,
    /// All new owners are recorded.
    pub recorded_ms: f64,
    /// All groups that were open at the former owner are closed.
    pub closed_ms: f64,
    /// All streamlets acknowledge again.
    pub acknowledged_ms: f64,
    /// Half of the streamlets with another owner acknowledge again.
    pub half_ms: f64,
    /// All streamlets whose owner stayed, and whose groups lost a copy, acknowledge again.
    pub others_ms: f64,
    /// Share of the cores that other processes used.
    pub others: f64,
}

/// The streams of so many streamlets.
pub(super) fn streams(streamlets: u32) -> Vec<StreamPlan> {
    let whole = (0..streamlets / OF_A_STREAM).map(|_| OF_A_STREAM);
    let rest = Some(streamlets % OF_A_STREAM).filter(|rest| *rest > 0);
    let plan = |(number, streamlets): (usize, u32)| StreamPlan {
        name: format!("load{number}"),
        streamlets,
        copies: 3,
    };
    whole.chain(rest).enumerate().map(plan).collect()
}

fn ms_since(moment: Instant, at: Instant) -> f64 {
    at.saturating_duration_since(moment).as_secs_f64() * 1e3
}

/// One run: a fresh cluster of three brokers loses one of them.
pub(super) async fn run(places: &Places, streamlets: u32, end: End, turn: u32) -> Result<Taken> {
    let mut nodes = Nodes::start(places, 3)?;
    let taken = lose(&mut nodes, places, streamlets, end, turn).await;
    taken.with_context(|| nodes.logs())
}

async fn lose(
    nodes: &mut Nodes,
    places: &Places,
    streamlets: u32,
    end: End,
    turn: u32,
) -> Result<Taken> {
    let streams = streams(streamlets);
    for stream in &streams {
        nodes.create(stream)?;
    }
    let watching = Watching::start(nodes.store(), &streams).await?;
    watching.settled(3, PATIENCE).await?;
    let mut loops = Loops::open(&nodes.bootstrap(), &streams).await?;
    loops.begin(EVERY);
    loops.acknowledged_since(Instant::now(), PATIENCE).await?;
    tokio::time::sleep(BEFORE).await;
    places.interrupt.check()?;
    let broker = turn % 3 + 1;
    let controller = watching.controller() == Some(broker);
    let owners = watching.owners();
    let machine = Snapshot::take(&nodes.pids());
    let pids = nodes.pids();
    let gone = Instant::now();
    match end {
        End::Killed => nodes.broker(broker).process.kill(),
        End::Stopped => nodes.broker(broker).process.signal(Signal::STOP)?,
    }
    loops.acknowledged_since(gone, PATIENCE).await?;
    let resumed = loops.resumed(gone);
    let others = Snapshot::take(&pids).others_since(&machine);
    loops.finish().await?;

    let moved = watching.moved_since(gone);
    let moved: Vec<_> = moved.iter().filter(|one| one.from == broker).collect();
    let which: BTreeSet<_> = moved.iter().map(|one| one.which).collect();
    let first = moved
        .iter()
        .map(|one| one.at)
        .min()
        .context("no owner changed")?;
    let last = moved
        .iter()
        .map(|one| one.at)
        .max()
        .context("no owner changed")?;
    let closed = watching.last_close(gone, &which).unwrap_or(last);
    let was_its = |place: &Place| owners.get(&watching.which(*place)) == Some(&broker);
    let times = |its: bool| {
        let chosen = resumed
            .iter()
            .filter(move |(place, _)| was_its(place) == its);
        let times = chosen.map(|(_, at)| ms_since(gone, *at));
        Summary::of(times.collect::<Vec<_>>())
    };
    let its = times(true).context("the broker owned nothing")?;
    let stayed = times(false).context("the broker owned all")?;
    Ok(Taken {
        broker,
        controller,
        moved: moved.len(),
        noticed_ms: ms_since(gone, first),
        recorded_ms: ms_since(gone, last),
        closed_ms: ms_since(gone, closed),
        acknowledged_ms: its.most.max(stayed.most),
        half_ms: its.median,
        others_ms: stayed.most,
        others,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_all_the_streamlets() {
        let count = |streamlets| {
            streams(streamlets)
                .iter()
                .map(|s| s.streamlets)
                .collect::<Vec<_>>()
        };
        assert_eq!(count(1000), [100; 10]);
        assert_eq!(count(130), [100, 30]);
        assert_eq!(count(9), [9]);
    }
}
