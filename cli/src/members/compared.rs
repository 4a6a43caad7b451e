//! How far the brokers of a cluster have compared the copies of closed groups. Each tells of what it owns,
//! so each is asked itself.

use std::time::Duration;

use futures::future::join_all;
use kera_protocol::v1;
use kera_rpc::Way;
use serde::Serialize;

use super::problem::Problem;
use super::view::BrokerView;
use crate::connect::{Control, control, refused};
use crate::failure::Failure;
use crate::output::{Out, Table, ago, count, rounded_bytes};

/// No broker is waited for longer; all are asked at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What one broker tells.
#[derive(Debug, Serialize)]
pub(crate) struct ComparedView {
    broker_id: u32,
    /// Why it told nothing, if so.
    unknown: Option<String>,
    #[serde(flatten)]
    progress: Option<Progress>,
    /// It has its lease, and did not answer.
    #[serde(skip)]
    is_silent: bool,
    /// What it owns and does not serve, or does not acknowledge appends to.
    troubles: Vec<TroubleView>,
    /// How many that are; the first of them are listed.
    troubles_total: u64,
    /// Other brokers that it does not reach, and why.
    unreachable: Vec<UnreachableView>,
    /// Those that it reaches.
    #[serde(skip)]
    reached: Vec<u32>,
}

/// A streamlet or a lane that does not do what clients wait for.
#[derive(Debug, Serialize)]
struct TroubleView {
    stream: String,
    streamlet: u32,
    lane: Option<u32>,
    reason: String,
    lasted_ms: Option<u64>,
}

/// A broker that another does not reach.
#[derive(Debug, Serialize)]
struct UnreachableView {
    broker_id: u32,
    reason: String,
}

/// How far a broker is. What is counted begins at 0 with each of its starts.
#[derive(Debug, Serialize)]
struct Progress {
    /// Streamlets that it owns.
    streamlets: u64,
    /// Those that it has compared since it has owned them.
    compared: u64,
    /// All were compared since then, so long ago; absent: not all yet.
    whole_ms: Option<u64>,
    /// So long ago it was done with some streamlet.
    last_ms: Option<u64>,
    groups: u64,
    bytes: u64,
    /// Copies found damaged, missing or different, and how many of them were replaced.
    harmed: u64,
    mended: u64,
    /// Groups that have such a copy now.
    unsound: u64,
    /// Groups of which living brokers lack what they are recorded to have, and these brokers.
    missing: u64,
    missing_at: Vec<u32>,
}

impl From<v1::BackgroundDescription> for Progress {
    fn from(told: v1::BackgroundDescription) -> Self {
        Self {
            streamlets: told.scrub_streamlets,
            compared: told.scrub_done,
            whole_ms: told.scrub_whole_ms,
            last_ms: told.scrub_ended_ms,
            groups: told.scrubbed,
            bytes: told.scrubbed_bytes,
            harmed: told.harmed,
            mended: told.mended,
            unsound: told.unsound,
            missing: told.missing,
            missing_at: told.missing_at,
        }
    }
}

/// Asks all brokers at once; the one that has answered already, by its calls. Replica stores own nothing that they
/// could have compared, and are left out.
pub(super) async fn ask(
    brokers: &[BrokerView],
    (answered_by, control): (u32, &Control),
) -> Vec<ComparedView> {
    let asked = brokers.iter().filter(|broker| !broker.is_replica_store());
    let asked = asked.map(|broker| {
        let known = (broker.broker_id == answered_by).then(|| control.clone());
        ask_one(broker, known, &control.way)
    });
    join_all(asked).await
}

async fn ask_one(broker: &BrokerView, known: Option<Control>, way: &Way) -> ComparedView {
    let mut is_silent = false;
    let told = match broker.state {
        "GONE" => Err("it is gone".to_owned()),
        _ if broker.address.is_empty() && known.is_none() => {
            Err("its address is not known".to_owned())
        }
        _ => {
            match tokio::time::timeout(ANSWER_WITHIN, told_at(&broker.address, known, way)).await {
                Ok(told) => told.map_err(|failure| {
                    is_silent = true;
                    // What to do about it stands behind that.
                    let text = failure.text();
                    let text = text.split(';').next().unwrap_or_default();
                    let at = format!("no broker answers at {}: ", broker.address);
                    text.strip_prefix(&at).unwrap_or(text).to_owned()
                }),
                Err(_) => {
                    is_silent = true;
                    Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs()))
                }
            }
        }
    };
    let mut view = ComparedView::new(broker.broker_id, told);
    view.is_silent = is_silent;
    view
}

async fn told_at(
    address: &str,
    known: Option<Control>,
    way: &Way,
) -> Result<v1::DescribeBrokerResponse, Failure> {
    let mut control = match known {
        Some(control) => control,
        None => control(address, way).await?,
    };
    let request = v1::DescribeBrokerRequest {};
    let answer = control.streams.describe_broker(request).await;
    Ok(answer.map_err(|status| refused(&status))?.into_inner())
}

impl ComparedView {
    pub(crate) fn new(broker_id: u32, told: Result<v1::DescribeBrokerResponse, String>) -> Self {
        let (mut troubles, mut troubles_total) = (Vec::new(), 0);
        let (mut unreachable, mut reached) = (Vec::new(), Vec::new());
        if let Ok(told) = &told
            && told.broker_id == broker_id
        {
            troubles_total = told.troubles_total;
            troubles.extend(told.troubles.iter().map(|one| TroubleView {
                stream: one.stream.clone(),
                streamlet: one.streamlet,
                lane: one.lane,
                reason: one.reason.clone(),
                lasted_ms: one.lasted_ms,
            }));
            for peer in told.cluster.iter().flat_map(|cluster| &cluster.peers) {
                match peer.unreachable.is_empty() {
                    true => reached.push(peer.id),
                    false => unreachable.push(UnreachableView {
                        broker_id: peer.id,
                        reason: peer.unreachable.clone(),
                    }),
                }
            }
        }
        let progress = told.and_then(|told| {
            // Brokers that restart come back with other addresses.
            if told.broker_id != broker_id {
                return Err(format!("broker {} answers in its place", told.broker_id));
            }
            let cluster = told.cluster.and_then(|cluster| cluster.background);
            cluster.ok_or_else(|| "it keeps no replicas".to_owned())
        });
        let (unknown, progress) = match progress {
            Ok(background) => (None, Some(background.into())),
            Err(reason) => (Some(reason), None),
        };
        Self {
            broker_id,
            unknown,
            progress,
            is_silent: false,
            troubles,
            troubles_total,
            unreachable,
            reached,
        }
    }

    /// Whose it is.
    pub(super) fn broker_id(&self) -> u32 {
        self.broker_id
    }

    /// Why a broker that has its lease did not answer, if so. That it is not reached from here alone, as through
    /// a forwarded port, is no silence: `all` tell whether others reach it.
    pub(crate) fn silence(&self, all: &[Self]) -> Option<&str> {
        let is_reached = all.iter().any(|one| one.reached.contains(&self.broker_id));
        let silent = self.is_silent && !is_reached;
        self.unknown.as_deref().filter(|_| silent)
    }

    /// What the broker tells that is not as it should be; others know of those that are `away`.
    pub(crate) fn problems(&self, away: &[u32]) -> Vec<Problem> {
        let owner = format!("the log of its owner, broker {}, says more", self.broker_id);
        let of_trouble = |one: &TroubleView| {
            let object = format!("stream {} streamlet {}", one.stream, one.streamlet);
            let (object, problem) = match (one.lane, one.lasted_ms) {
                (Some(lane), Some(ms)) => (
                    format!("{object} lane {lane}"),
                    format!(
                        "has acknowledged nothing for {} s: {}",
                        ms / 1000,
                        one.reason
                    ),
                ),
                _ => (object, format!("is not served: {}", one.reason)),
            };
            Problem {
                object,
                problem,
                advice: owner.clone(),
            }
        };
        let mut problems: Vec<_> = self.troubles.iter().map(of_trouble).collect();
        let untold = self
            .troubles_total
            .saturating_sub(self.troubles.len() as u64);
        if untold > 0 {
            problems.push(Problem {
                object: format!("{} more streamlets or lanes", count(untold)),
                problem: format!("of broker {} are not served", self.broker_id),
                advice: "its log says more".into(),
            });
        }
        let peers = self.unreachable.iter();
        let peers = peers.filter(|peer| !away.contains(&peer.broker_id));
        problems.extend(peers.map(|peer| Problem {
            object: format!("broker {}", self.broker_id),
            problem: format!("does not reach broker {}: {}", peer.broker_id, peer.reason),
            advice: "see to that broker, and to the network between the two".into(),
        }));
        if let Some(progress) = self.progress.as_ref().filter(|one| one.missing > 0) {
            let at: Vec<_> = progress.missing_at.iter().map(u32::to_string).collect();
            problems.push(Problem {
                object: format!(
                    "{} closed groups of broker {}",
                    count(progress.missing),
                    self.broker_id
                ),
                problem: format!(
                    "are recorded at brokers that do not have their bytes: {}",
                    at.join(", ")
                ),
                advice: "they are built again from the replicas that are left; check the disks of those brokers".into(),
            });
        }
        if let Some(progress) = self.progress.as_ref().filter(|one| one.unsound > 0) {
            problems.push(Problem {
                object: format!(
                    "{} closed groups of broker {}",
                    count(progress.unsound),
                    self.broker_id
                ),
                problem: "have a bad replica that could not be replaced yet".into(),
                advice: "its log says which".into(),
            });
        }
        problems
    }
}

impl Progress {
    fn compared_text(&self) -> String {
        match self.streamlets {
            0 => "owns nothing".into(),
            streamlets if self.compared == streamlets => format!("all {}", count(streamlets)),
            streamlets => format!("{} of {}", count(self.compared), count(streamlets)),
        }
    }
}

fn table(all: &[ComparedView]) -> Table {
    let mut table = Table::new(&[
        "broker",
        "compared",
        "all since",
        "last",
        ">groups",
        ">read",
        ">bad",
        ">replaced",
        ">waiting",
    ]);
    for one in all {
        let id = one.broker_id.to_string();
        match &one.progress {
            Some(progress) => table.row([
                id,
                progress.compared_text(),
                ago(progress.whole_ms, "not yet"),
                ago(progress.last_ms, "not yet"),
                count(progress.groups),
                rounded_bytes(progress.bytes),
                count(progress.harmed),
                count(progress.mended),
                count(progress.unsound),
            ]),
            None => {
                let reason = one.unknown.as_deref().unwrap_or_default();
                table.row([id, format!("unknown: {reason}")]);
            }
        }
    }
    table
}

/// Which streamlets' copies have been compared, broker by broker.
pub(crate) fn print_compared(out: &mut Out, all: &[ComparedView]) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    out.bytes(b"\nstreamlets whose replicas of closed groups were compared, by owner\n\n")?;
    out.bytes(table(all).render().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_and_not_there_is_told_with_its_brokers() {
        let told = |missing, at: &[u32]| {
            let background = v1::BackgroundDescription {
                missing,
                missing_at: at.to_vec(),
                ..Default::default()
            };
            ComparedView::new(2, Ok(described(2, background))).problems(&[])
        };
        assert!(told(0, &[]).is_empty());
        let problems = told(73, &[1, 3]);
        assert_eq!(problems[0].object, "73 closed groups of broker 2");
        assert!(problems[0].problem.ends_with(": 1, 3"), "{problems:?}");
    }

    fn described(
        broker_id: u32,
        background: v1::BackgroundDescription,
    ) -> v1::DescribeBrokerResponse {
        v1::DescribeBrokerResponse {
            broker_id,
            cluster: Some(v1::ClusterDescription {
                background: Some(background),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn each_broker_tells_how_far_it_is_or_why_it_does_not() {
        let whole = v1::BackgroundDescription {
            scrub_streamlets: 4,
            scrub_done: 4,
            scrub_whole_ms: Some(7_200_000),
            scrub_ended_ms: Some(60_000),
            scrubbed: 1_200,
            harmed: 3,
            mended: 2,
            unsound: 1,
            ..Default::default()
        };
        let begun = v1::BackgroundDescription {
            scrub_streamlets: 4,
            scrub_done: 1,
            scrub_ended_ms: Some(60_000),
            ..Default::default()
        };
        let all = [
            ComparedView::new(1, Ok(described(1, whole))),
            ComparedView::new(2, Ok(described(2, begun))),
            ComparedView::new(3, Err("no answer within 2 s".into())),
            ComparedView::new(4, Ok(described(7, Default::default()))),
            ComparedView::new(
                5,
                Ok(v1::DescribeBrokerResponse {
                    broker_id: 5,
                    ..Default::default()
                }),
            ),
        ];
        let rendered = table(&all).render();
        let lines: Vec<_> = rendered.lines().map(str::to_owned).collect();
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "1 all 4 2h 0m ago 60.00 s ago 1,200 0 B 3 2 1");
        assert_eq!(words(2), "2 1 of 4 not yet 60.00 s ago 0 0 B 0 0 0");
        assert_eq!(words(3), "3 unknown: no answer within 2 s");
        assert_eq!(words(4), "4 unknown: broker 7 answers in its place");
        assert_eq!(words(5), "5 unknown: it keeps no replicas");
        let problems = all[0].problems(&[]);
        assert_eq!(problems[0].object, "1 closed groups of broker 1");
        assert!(all[1..].iter().all(|one| one.problems(&[]).is_empty()));
        let reaches = |other| {
            let peer = v1::PeerDescription {
                id: other,
                ..Default::default()
            };
            let mut told = described(9, Default::default());
            if let Some(cluster) = &mut told.cluster {
                cluster.peers.push(peer);
            }
            ComparedView::new(9, Ok(told))
        };
        let mut silent = ComparedView::new(3, Err("no answer within 2 s".into()));
        assert_eq!(silent.silence(&[]), None, "it is gone, and said so");
        silent.is_silent = true;
        assert_eq!(silent.silence(&[reaches(2)]), Some("no answer within 2 s"));
        assert_eq!(silent.silence(&[reaches(3)]), None, "others reach it");
        let json = serde_json::to_value(&all).expect("JSON");
        assert_eq!(json[0]["whole_ms"], 7_200_000);
        assert_eq!(json[0]["unknown"], serde_json::Value::Null);
        assert_eq!(json[2]["unknown"], "no answer within 2 s");
        assert!(json[2].get("streamlets").is_none(), "{json}");
    }
}
