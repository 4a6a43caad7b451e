//! What transactions that have not ended commit of a group.

use kera_protocol::v1;
use serde::Serialize;

use super::view::LaneView;
use crate::output::{Table, count};

/// A position that counts once its transaction is committed. What lies below it goes to no other member until then.
#[derive(Serialize)]
pub(super) struct HeldView {
    lease: u64,
    producer_id: i64,
    from_ordinal: u64,
    next_ordinal: u64,
}

impl HeldView {
    pub(super) fn new(held: &v1::HeldPosition) -> Self {
        Self {
            lease: held.lease,
            producer_id: held.producer_id,
            from_ordinal: held.from_ordinal,
            next_ordinal: held.next_ordinal,
        }
    }
}

/// `None` where no transaction commits positions of the group.
pub(super) fn table(lanes: &[LaneView]) -> Option<Table> {
    let mut table = Table::new(&[
        ">streamlet",
        ">lane",
        ">held from",
        ">to",
        ">lease",
        "until the transaction ends of producer",
    ])
    .keys(2);
    let held = lanes
        .iter()
        .flat_map(|lane| lane.held.iter().map(move |held| (lane, held)));
    let mut any = false;
    for (lane, held) in held {
        any = true;
        table.row([
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            count(held.from_ordinal),
            count(held.next_ordinal),
            held.lease.to_string(),
            held.producer_id.to_string(),
        ]);
    }
    any.then_some(table)
}
