//! How far the brokers of a cluster have compared the copies of closed groups. Each tells of what it owns,
//! so each is asked itself.

use std::time::Duration;

use futures::future::join_all;
use kera_protocol::v1;
use serde::Serialize;

use super::status::BrokerView;
use crate::connect::{control, refused};
use crate::failure::Failure;
use crate::output::{Out, Table, ago, count, rounded_bytes};

/// No broker is waited for longer; all are asked at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What one broker tells.
#[derive(Debug, Serialize)]
pub(super) struct ComparedView {
    broker_id: u32,
    /// Why it told nothing, if so.
    unknown: Option<String>,
    #[serde(flatten)]
    progress: Option<Progress>,
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
        }
    }
}

/// Asks all brokers at once.
pub(super) async fn ask(brokers: &[BrokerView]) -> Vec<ComparedView> {
    join_all(brokers.iter().map(ask_one)).await
}

async fn ask_one(broker: &BrokerView) -> ComparedView {
    let told = match broker.state {
        "GONE" => Err("it is gone".to_owned()),
        _ if broker.address.is_empty() => Err("its address is not known".to_owned()),
        _ => match tokio::time::timeout(ANSWER_WITHIN, told_at(&broker.address)).await {
            Ok(told) => told.map_err(|failure| {
                // What to do about it stands behind that.
                let text = failure.text();
                text.split(';').next().unwrap_or_default().to_owned()
            }),
            Err(_) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
        },
    };
    ComparedView::new(broker.broker_id, told)
}

async fn told_at(address: &str) -> Result<v1::DescribeBrokerResponse, Failure> {
    let mut control = control(address).await?;
    let request = v1::DescribeBrokerRequest {};
    let answer = control.streams.describe_broker(request).await;
    Ok(answer.map_err(|status| refused(&status))?.into_inner())
}

impl ComparedView {
    fn new(broker_id: u32, told: Result<v1::DescribeBrokerResponse, String>) -> Self {
        let progress = told.and_then(|told| {
            // Brokers that restart come back with other addresses.
            if told.broker_id != broker_id {
                return Err(format!("broker {} answers in its place", told.broker_id));
            }
            let cluster = told.cluster.and_then(|cluster| cluster.background);
            cluster.ok_or_else(|| "it keeps no copies".to_owned())
        });
        let (unknown, progress) = match progress {
            Ok(background) => (None, Some(background.into())),
            Err(reason) => (Some(reason), None),
        };
        Self {
            broker_id,
            unknown,
            progress,
        }
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
        ">not right",
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
pub(super) fn print(out: &mut Out, all: &[ComparedView]) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    out.bytes(b"\nstreamlets whose copies of closed groups were compared, by owner\n\n")?;
    out.bytes(table(all).render().as_bytes())
}

/// What waits to be put right, in words.
pub(super) fn lacking(all: &[ComparedView]) -> Option<String> {
    let progress = all.iter().filter_map(|one| one.progress.as_ref());
    let unsound: u64 = progress.map(|progress| progress.unsound).sum();
    (unsound > 0).then(|| {
        format!(
            "{} closed groups have a copy that is not right and could not be replaced yet; the log of the broker that waits says which",
            count(unsound)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(words(5), "5 unknown: it keeps no copies");
        let text = lacking(&all).expect("one group waits");
        assert!(text.starts_with("1 closed groups have"), "{text}");
        assert_eq!(lacking(&all[1..]), None);
        let json = serde_json::to_value(&all).expect("JSON");
        assert_eq!(json[0]["whole_ms"], 7_200_000);
        assert_eq!(json[0]["unknown"], serde_json::Value::Null);
        assert_eq!(json[2]["unknown"], "no answer within 2 s");
        assert!(json[2].get("streamlets").is_none(), "{json}");
    }
}
