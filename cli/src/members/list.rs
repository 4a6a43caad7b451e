//! The brokers of a cluster, each asked itself.

use kera_protocol::v1;

use super::answering::answering;
use super::compared::{self, ComparedView};
use super::view::BrokerView;
use crate::connect::{ConnectArgs, Control};
use crate::failure::Failure;
use crate::output::{Out, Table, count, of_state, rounded_bytes};

/// The brokers of the cluster behind `connect`, and its controller; `None` if that broker is in none.
pub(crate) async fn brokers(
    connect: &ConnectArgs,
) -> Result<Option<(Vec<BrokerView>, Option<u32>)>, Failure> {
    let Ok((control, answer)) = answering(connect).await else {
        return Ok(None);
    };
    let (brokers, _) = ask_each(answer.brokers, (answer.answered_by, &control)).await;
    Ok(Some((brokers, answer.controller)))
}

/// The brokers, and what each tells of itself when it is asked.
pub(crate) async fn ask_each(
    brokers: Vec<v1::ClusterBroker>,
    answered: (u32, &Control),
) -> (Vec<BrokerView>, Vec<ComparedView>) {
    let mut brokers: Vec<_> = brokers.into_iter().map(BrokerView::new).collect();
    let told = compared::ask(&brokers, answered).await;
    for one in &told {
        let Some(reason) = one.silence(&told) else {
            continue;
        };
        let of = brokers.iter_mut();
        for broker in of.filter(|broker| broker.broker_id == one.broker_id()) {
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
        ">replicas",
        ">held",
        ">to come",
        "role",
    ])
    .styled(1, of_state);
    for broker in brokers {
        let role = match controller == Some(broker.broker_id) {
            true => "controller",
            false => broker.role,
        };
        let or_dash = |text: &str| match text {
            "" => "-".to_owned(),
            text => text.to_owned(),
        };
        table.row([
            broker.broker_id.to_string(),
            broker.state_text(),
            // A replica store has one for other brokers alone.
            or_dash(match broker.is_replica_store() {
                true => &broker.replication,
                false => &broker.address,
            }),
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
