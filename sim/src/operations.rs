//! What operators do: they have streamlets moved, and brokers drained and taken out. Whatever comes of it, clients must
//! not notice.

use std::fmt::Display;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kera_grpc::Channels;
use kera_grpc::v1::clusters_client::ClustersClient;
use kera_history::{Event, Lane};
use kera_protocol::v1;
use tokio::time::{sleep, timeout};

use crate::brokers::Brokers;
use crate::dice::Dice;
use crate::load::{Load, PATIENCE, on_own};
use crate::os;

/// The operators' machine.
const OPERATOR: u32 = 110;
/// How long one waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(500);

/// What one asks for.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// The first streamlet of a stream is handed to a broker.
    Move { stream: u32, to: u32 },
    /// A broker is drained, or not any more.
    Drain { broker: u32, draining: bool },
}

impl Operation {
    fn undrain(broker: u32) -> Self {
        Self::Drain {
            broker,
            draining: false,
        }
    }
}

/// Asks for it, again and again until that is done or `until` has passed.
pub fn ask(load: &Arc<Load>, operation: Operation, until: Duration) -> JoinHandle<()> {
    let load = load.clone();
    on_own(OPERATOR, "operator", move || async move {
        loop {
            match once(&load, operation).await {
                Ok(()) => return os::log(&format!("done: {operation:?}")),
                Err(why) if os::now() < until => {
                    os::log(&format!("not done yet: {operation:?}: {why}"));
                }
                Err(why) => return os::log(&format!("not done: {operation:?}: {why}")),
            }
            sleep(AGAIN).await;
        }
    })
}

/// Trims a part of a lane of a stream, as `kera stream trim` does.
pub fn trim(load: &Arc<Load>, stream: u32, dice: Dice) -> JoinHandle<()> {
    let load = load.clone();
    on_own(OPERATOR, "trims", move || async move {
        match timeout(2 * ANSWER, trim_once(&load, stream, dice)).await {
            Ok(Ok(what)) => os::log(&format!("trimmed: {what}")),
            Ok(Err(why)) => os::log(&format!("not trimmed: {why}")),
            Err(_) => os::log("not trimmed: no answer"),
        }
    })
}

async fn trim_once(load: &Load, stream: u32, mut dice: Dice) -> Result<String, String> {
    let client = load.client();
    let request = v1::DescribeStreamRequest {
        name: load.name(stream).to_owned(),
        local: false,
    };
    let described = client.call(request).await.map_err(text)?;
    if described.lanes.is_empty() {
        return Err("no lane is told of".to_owned());
    }
    let found = dice.one(&described.lanes);
    let lane = Lane {
        stream,
        streamlet: found.streamlet,
        lane: found.lane,
    };
    // To a record of the older half of its groups: where there are none, a lane begins at the next one.
    let mut groups = found.groups.clone();
    groups.retain(|group| group.end_ordinal > group.first_ordinal);
    groups.truncate(groups.len().div_ceil(2));
    if groups.is_empty() {
        return Err("it has no records".to_owned());
    }
    let group = dice.one(&groups);
    let to = dice.between(group.first_ordinal, group.end_ordinal - 1);
    // It may take effect although its answer is lost.
    load.note_trim(lane, to);
    let request = v1::TrimStreamRequest {
        name: load.name(stream).to_owned(),
        streamlet: Some(lane.streamlet),
        lane: Some(lane.lane),
        to: Some(v1::trim_stream_request::To::Ordinal(to)),
        local: false,
    };
    let answer = client.call(request).await.map_err(text)?;
    for start in &answer.lanes {
        load.record(Event::LogTrimmed {
            lane: Lane {
                stream,
                streamlet: start.streamlet,
                lane: start.lane,
            },
            start: start.log_start,
        });
    }
    Ok(format!("{lane} to {to}"))
}

/// Ends the drains of brokers, which must come to pass where nothing is wrong.
pub fn end_drains(load: &Arc<Load>, brokers: Vec<u32>) -> Vec<JoinHandle<()>> {
    let until = os::now() + PATIENCE;
    let asked = brokers
        .into_iter()
        .map(|one| ask(load, Operation::undrain(one), until));
    asked.collect()
}

/// Takes a broker out, as `kera broker drain --empty` and a stop do. Once nothing is wrong any more that must come to its
/// end, unless the cluster says that it cannot.
pub fn remove(load: &Arc<Load>, brokers: &Arc<Brokers>, broker: u32) -> JoinHandle<()> {
    let (load, brokers) = (load.clone(), brokers.clone());
    on_own(OPERATOR, "removes", move || async move {
        let until = load.plan.trouble + PATIENCE;
        loop {
            let why = match remove_once(&load, &brokers, broker).await {
                Ok(Removal::Done) => return os::log(&format!("broker {broker} is taken out")),
                Ok(Removal::Waits(why)) => why,
                Err(why) => why,
                Ok(Removal::Cannot(why)) => {
                    os::log(&format!("broker {broker} is not taken out: {why}"));
                    return drop(ask(&load, Operation::undrain(broker), os::now() + PATIENCE));
                }
            };
            if os::now() > until {
                return load.complain(format!("broker {broker} cannot be taken out: {why}"));
            }
            sleep(AGAIN).await;
        }
    })
}

/// How far it has come.
enum Removal {
    Done,
    Waits(String),
    /// And will not.
    Cannot(String),
}

async fn remove_once(load: &Load, brokers: &Brokers, broker: u32) -> Result<Removal, String> {
    let Some(life) = brokers.life(broker) else {
        return Ok(Removal::Waits("it does not serve".to_owned()));
    };
    let drain = Operation::Drain {
        broker,
        draining: true,
    };
    once(load, drain).await?;
    let told = anywhere(load, async |address| {
        let channel = Channels::new(ANSWER).to(address).map_err(text)?;
        let request = v1::DescribeDrainRequest { broker };
        let told = ClustersClient::new(channel).describe_drain(request).await;
        told.map(|told| told.into_inner()).map_err(text)
    });
    let told = told.await?;
    if !told.stuck_because.is_empty() || !told.kept.is_empty() {
        let why = format!("{}; {:?} stay", told.stuck_because, told.kept);
        return Ok(Removal::Cannot(why));
    }
    let is_empty = told.may_stop && told.copies == 0;
    if is_empty && brokers.retire(broker, life) {
        return Ok(Removal::Done);
    }
    Ok(Removal::Waits(format!("{told:?}")))
}

/// Asks one broker after the other until one answers.
async fn anywhere<T>(
    load: &Load,
    call: impl AsyncFn(&str) -> Result<T, String>,
) -> Result<T, String> {
    let mut why = "no broker answers".to_owned();
    for address in load.bootstrap.split(',') {
        match timeout(ANSWER, call(address)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => why = error,
            Err(_) => why = format!("{address} does not answer"),
        }
    }
    Err(why)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

async fn once(load: &Load, operation: Operation) -> Result<(), String> {
    let done = anywhere(load, async |address| {
        let channel = Channels::new(ANSWER).to(address).map_err(text)?;
        let mut clusters = ClustersClient::new(channel);
        match operation {
            Operation::Move { stream, to } => {
                let request = v1::MoveStreamletRequest {
                    stream: load.name(stream).to_owned(),
                    to,
                    ..v1::MoveStreamletRequest::default()
                };
                clusters.move_streamlet(request).await.map(drop)
            }
            Operation::Drain { broker, draining } => {
                let request = v1::SetDrainingRequest {
                    broker,
                    draining,
                    ..v1::SetDrainingRequest::default()
                };
                clusters.set_draining(request).await.map(drop)
            }
        }
        .map_err(text)
    });
    done.await
}
