//! `kera cluster status`.

use std::process::ExitCode;

use kera_protocol::v1;
use serde::Serialize;

use super::compared::{self, ComparedView};
use super::health::{Health, Looked};
use super::{StatusArgs, answering};
use crate::connect::{ConnectArgs, Control};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, Table, count, print_json, rounded_bytes};

/// A cluster, as it is shown.
#[derive(Serialize)]
struct View {
    health: Health,
    cluster: String,
    store: String,
    controller: Option<u32>,
    answered_by: u32,
    brokers: Vec<BrokerView>,
    streams: u32,
    streamlets: u64,
    groups: u64,
    under_replicated_groups: u64,
    /// Of these, those that have as many copies as the living brokers can hold.
    limited_groups: u64,
    /// Copies that a group can have at the living brokers.
    most_copies: u32,
    /// Streams that are to have more than that.
    limited_streams: u32,
    /// Of copies that are to come to some broker.
    to_come_bytes: u64,
    stranded: Vec<StrandedView>,
    /// How far each broker has compared the copies of what it owns.
    compared: Vec<ComparedView>,
}

/// A broker of a cluster.
#[derive(Serialize)]
pub(crate) struct BrokerView {
    pub(crate) broker_id: u32,
    pub(crate) state: &'static str,
    pub(crate) address: String,
    pub(crate) replication: String,
    pub(crate) kafka: Option<String>,
    pub(crate) host: String,
    pub(crate) rack: Option<String>,
    pub(crate) version: String,
    pub(crate) streamlets: u64,
    pub(crate) share: u64,
    pub(crate) bytes: u64,
    pub(crate) copies: u64,
    /// Of closed groups of which it has a copy, its own among them, and of those that are to come.
    pub(crate) held_bytes: u64,
    pub(crate) to_come_bytes: u64,
    /// Why it does not answer although it has its lease, if so.
    pub(crate) silent: Option<String>,
}

/// A streamlet whose owner is gone.
#[derive(Serialize)]
pub(super) struct StrandedView {
    pub(super) stream: String,
    pub(super) streamlet: u32,
    pub(super) owner: u32,
    pub(super) needs: String,
    brokers: Vec<u32>,
}

fn told(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl BrokerView {
    pub(crate) fn new(broker: v1::ClusterBroker) -> Self {
        Self {
            state: state_name(broker.state()),
            broker_id: broker.id,
            address: broker.address,
            replication: broker.replication_address,
            kafka: told(broker.kafka_address),
            host: broker.host,
            rack: told(broker.rack),
            version: broker.version,
            streamlets: broker.streamlets,
            share: broker.share,
            bytes: broker.bytes,
            copies: broker.copies,
            held_bytes: broker.held_bytes,
            to_come_bytes: broker.to_come_bytes,
            silent: None,
        }
    }

    /// It has its lease, and did not answer just now.
    pub(super) fn silenced(&mut self, reason: String) {
        self.state = "SILENT";
        self.silent = Some(reason);
    }

    /// The state, with how far it has come where that changes.
    pub(crate) fn state_text(&self) -> String {
        match self.state {
            "PARTIAL" => format!("PARTIAL {}/{}", self.streamlets, self.share),
            "DRAINING" => format!("DRAINING, {} left", count(self.streamlets)),
            state => state.to_owned(),
        }
    }
}

fn state_name(state: v1::BrokerState) -> &'static str {
    match state {
        v1::BrokerState::Unknown => "UNKNOWN",
        v1::BrokerState::Gone => "GONE",
        v1::BrokerState::Joining => "JOINING",
        v1::BrokerState::Partial => "PARTIAL",
        v1::BrokerState::Normal => "NORMAL",
        v1::BrokerState::Draining => "DRAINING",
        v1::BrokerState::Drained => "DRAINED",
    }
}

/// The brokers of the cluster behind `connect`, and its controller; `None` if that broker is in none.
pub(crate) async fn brokers(
    connect: &ConnectArgs,
) -> Result<Option<(Vec<BrokerView>, Option<u32>)>, Failure> {
    let Ok((control, answer)) = answering(connect).await else {
        return Ok(None);
    };
    let (brokers, _) = asked(answer.brokers, (answer.answered_by, &control)).await;
    Ok(Some((brokers, answer.controller)))
}

/// The brokers, and what each tells of itself when it is asked.
async fn asked(
    brokers: Vec<v1::ClusterBroker>,
    answered: (u32, &Control),
) -> (Vec<BrokerView>, Vec<ComparedView>) {
    let mut brokers: Vec<_> = brokers.into_iter().map(BrokerView::new).collect();
    let told = compared::ask(&brokers, answered).await;
    for (broker, one) in brokers.iter_mut().zip(&told) {
        if let Some(reason) = one.silence(&told) {
            broker.silenced(reason.to_owned());
        }
    }
    (brokers, told)
}

/// The brokers as a table.
pub(crate) fn print_brokers(
    out: &mut Out,
    brokers: &[BrokerView],
    controller: Option<u32>,
) -> Result<(), Failure> {
    let mut table = Table::new(&[
        "broker",
        "state",
        "address",
        "host",
        "rack",
        ">streamlets",
        ">bytes",
        ">copies",
        ">held",
        ">to come",
        "role",
    ]);
    for broker in brokers {
        let role = match controller == Some(broker.broker_id) {
            true => "controller",
            false => "",
        };
        let or_dash = |text: &str| match text {
            "" => "-".to_owned(),
            text => text.to_owned(),
        };
        table.row([
            broker.broker_id.to_string(),
            broker.state_text(),
            or_dash(&broker.address),
            or_dash(&broker.host),
            or_dash(broker.rack.as_deref().unwrap_or_default()),
            count(broker.streamlets),
            rounded_bytes(broker.bytes),
            count(broker.copies),
            rounded_bytes(broker.held_bytes),
            match broker.to_come_bytes {
                0 => "-".to_owned(),
                bytes => rounded_bytes(bytes),
            },
            role.to_owned(),
        ]);
    }
    out.bytes(table.render().as_bytes())
}

pub(super) async fn run(args: StatusArgs) -> Outcome {
    let (control, answer) = answering(&args.connect).await?;
    let answered = (answer.answered_by, &control);
    let (brokers, compared) = asked(answer.brokers, answered).await;
    let stranded: Vec<_> = answer
        .stranded
        .into_iter()
        .map(|one| StrandedView {
            stream: one.stream,
            streamlet: one.streamlet,
            owner: one.owner,
            needs: one.needs,
            brokers: one.brokers,
        })
        .collect();
    let limited = answer.limited_groups.min(answer.under_replicated_groups);
    let health = Health::of(&Looked {
        store: &answer.store,
        controller: answer.controller,
        brokers: &brokers,
        stranded: &stranded,
        told: &compared,
        lacking: (answer.under_replicated_groups - limited, limited),
        limited: (
            answer.limited_streams,
            &answer.limited_stream,
            answer.limited_replicas,
        ),
        most_copies: answer.most_copies,
    });
    let view = View {
        health,
        cluster: crate::broker::uuid(&answer.cluster),
        store: answer.store,
        controller: answer.controller,
        answered_by: answer.answered_by,
        brokers,
        streams: answer.streams,
        streamlets: answer.streamlets,
        groups: answer.groups,
        under_replicated_groups: answer.under_replicated_groups,
        limited_groups: answer.limited_groups,
        most_copies: answer.most_copies,
        limited_streams: answer.limited_streams,
        to_come_bytes: answer.to_come_bytes,
        stranded,
        compared,
    };
    match args.output.json {
        true => print_json(&view)?,
        false => print(&view)?,
    }
    // Its table says which.
    Ok(match view.stranded.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(view: &View) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let controller = match view.controller {
        Some(broker) => format!("broker {broker} is controller"),
        None => "no controller is elected; the metadata store may be away".into(),
    };
    out.line(&view.health.summary)?;
    for text in view.health.others() {
        out.line(text)?;
    }
    out.line(format_args!("cluster {} over {}", view.cluster, view.store))?;
    out.line(format_args!(
        "{} streams of {} streamlets with {} groups; {controller}",
        count(view.streams.into()),
        count(view.streamlets),
        count(view.groups)
    ))?;
    if view.to_come_bytes > 0 {
        out.line(format_args!(
            "{} of copies are on their way to brokers that hold less than others",
            rounded_bytes(view.to_come_bytes)
        ))?;
    }
    out.bytes(b"\n")?;
    print_brokers(&mut out, &view.brokers, view.controller)?;
    compared::print(&mut out, &view.compared)?;
    if !view.stranded.is_empty() {
        let mut table = Table::new(&["stream", ">streamlet", ">owner", "not served until"]);
        for one in &view.stranded {
            table.row([
                one.stream.clone(),
                one.streamlet.to_string(),
                one.owner.to_string(),
                one.needs.clone(),
            ]);
        }
        out.bytes(b"\n")?;
        out.bytes(table.render().as_bytes())?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_tells_how_far_it_has_come() {
        let broker = |state: v1::BrokerState| {
            BrokerView::new(v1::ClusterBroker {
                state: state.into(),
                streamlets: 3,
                share: 12,
                ..Default::default()
            })
            .state_text()
        };
        assert_eq!(broker(v1::BrokerState::Partial), "PARTIAL 3/12");
        assert_eq!(broker(v1::BrokerState::Draining), "DRAINING, 3 left");
        assert_eq!(broker(v1::BrokerState::Normal), "NORMAL");
    }
}
