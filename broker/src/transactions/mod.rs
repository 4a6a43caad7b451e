//! Transactions between coordinators and the lanes and groups that take part in them, here and at other brokers.
//!
//! | module | what it is |
//! |---|---|
//! | `grant` | a coordinator tells the owners of lanes that batches may come |
//! | `verify` | an owner that was told nothing asks the coordinator |
//! | `join` | an owner makes its lanes parts of a transaction, for clients that leave that to brokers |
//! | `native` | what native producers ask, and programs that end prepared transactions |
//! | `by_prefix` | what earlier runs of a stream engine left open is aborted |
//! | `positions` | a transaction commits positions of a native consumer group |
//! | `finish` | a coordinator has decided transactions ended wherever they have parts |
//! | `lost` | what lanes hold open and no coordinator knows, until an operator ends it |
//! | `settle` | until markers stay whatever fails, a coordinator has those written again that lanes lose |
//! | `marks` | an owner ends them: markers in lanes, and the end of what groups keep aside |
//! | `tools` | operators look at transactions, and abort them |
//!
//! A coordinator is a state machine of [`kera_coordinator::transactions`], hosted by [`crate::coordination`]. What a lane
//! does is in [`kera_streamlet::transactions`].

mod by_prefix;
mod finish;
mod grant;
mod join;
pub(crate) mod lost;
mod marks;
mod native;
mod positions;
mod settle;
pub(crate) mod tools;
mod under_way;
mod verify;
mod watched;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::transactions::{Fault, Filter, Listed, Part, Reply, Request};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, StreamId, StreamletId};
use kera_protocol::partition::place_of;
use kera_protocol::v1;
use kera_streamlet::Streamlet;
use tokio::time::Instant;

use crate::coordination::{Coordination, CoordinatorKind, Host, TRANSACTIONS_STREAM};
use crate::data::catalog::stream_id;
use crate::shared::Shared;

pub(crate) use by_prefix::abort_by_prefix;
pub use finish::drive;
#[cfg(test)]
pub(crate) use finish::finish;
pub use grant::{grant, grant_here};
pub(crate) use join::add_for;
pub use join::{add_parts, join_lanes};
pub use lost::{Which, end_lost};
pub(crate) use marks::durable;
pub use marks::{end_here, settle_here};
pub(crate) use native::{add, end, forget, heartbeat, id_of, init, list_open, prepare};
pub(crate) use positions::send_positions;
pub use settle::drive as settle;
pub use under_way::Transactions;
pub use verify::{BatchLane, Open, check_id, verify, verify_batch, verify_here};
pub(crate) use verify::{check_append, verify_append};

/// How long another broker is given.
const ASK_WITHIN: Duration = Duration::from_secs(2);
/// Likewise, to list its transactions.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// Between looks whether the transaction before has ended.
const LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(50);

/// Puts a request to the coordinator of its transactional id, which is here, again until the transaction before has ended;
/// for so long at most.
///
/// # Errors
/// As of [`Coordination::call`].
async fn ask_once_ended(
    shared: &Arc<Shared>,
    request: Request,
    within: Duration,
) -> Result<Reply, WireError> {
    let id = request.id().unwrap_or_default().to_owned();
    let deadline = Instant::now() + within;
    let mut pause = LOOK;
    loop {
        let any = AnyRequest::Transaction(request.clone());
        let reply = match shared.coordination.call(shared, &id, any).await? {
            AnyReply::Transaction(reply) => reply,
            other => return Err(mismatch(&other)),
        };
        match reply {
            Reply::Refused(Fault::Ending) if Instant::now() < deadline => {
                // Something may have been decided.
                shared.transactions.look();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_LOOK);
            }
            reply => return Ok(reply),
        }
    }
}

fn mismatch(reply: &impl std::fmt::Debug) -> WireError {
    tracing::error!(?reply, "a coordinator answered another question");
    let text = "the coordinator answered another question; see the broker's log";
    WireError::new(ErrorCode::Internal, text)
}

/// Transactions that this broker coordinates and that are open or ending and not prepared, and when the oldest began.
pub(crate) fn open(shared: &Shared) -> (usize, Option<u64>) {
    count(shared, Host::open_transactions)
}

/// Likewise those that are prepared, and when the oldest was.
pub(crate) fn prepared(shared: &Shared) -> (usize, Option<u64>) {
    count(shared, Host::prepared_transactions)
}

/// When the time of the transaction was over that this broker coordinates and that is longest overdue.
pub(crate) fn due_ms(shared: &Shared) -> Option<u64> {
    let hosts = shared.coordination.transaction_hosts();
    hosts
        .iter()
        .filter_map(|host| host.transactions_due_ms())
        .min()
}

fn count(shared: &Shared, of: impl Fn(&Host) -> (usize, Option<u64>)) -> (usize, Option<u64>) {
    let hosts = shared.coordination.transaction_hosts();
    let counts = hosts.iter().map(|host| of(host));
    counts.fold((0, None), |(count, oldest), (more, since)| {
        (count + more, oldest.into_iter().chain(since).min())
    })
}

/// The transactional ids that this broker coordinates, sorted.
///
/// # Errors
/// [`ErrorCode::CoordinatorLoading`] while a coordinator of this broker is reading its state, or is yet to begin.
pub async fn list(shared: &Arc<Shared>, filter: Filter) -> Result<Vec<Listed>, WireError> {
    Ok(list_coordinated(shared, filter).await?.0)
}

/// As [`list`], and the streamlets of whose coordinators these are all.
async fn list_coordinated(
    shared: &Arc<Shared>,
    filter: Filter,
) -> Result<(Vec<Listed>, BTreeSet<StreamletId>), WireError> {
    let (mut all, mut answered) = (Vec::new(), BTreeSet::new());
    for host in shared.coordination.transaction_hosts() {
        let request = AnyRequest::Transaction(Request::List(filter.clone()));
        let answer = shared.coordination.call_at(shared, &host, request).await;
        let Some(Ok(AnyReply::Transaction(Reply::Listed(listed)))) = answer else {
            continue;
        };
        all.extend(listed);
        // Another broker may have taken it over meanwhile, and knows more.
        if Coordination::still_coordinates(shared, &host) {
            answered.insert(host.streamlet());
        }
    }
    let me = shared.data.directory.me();
    check_answered(shared, &answered, |owner| owner == me)?;
    all.sort_by(|a, b| a.id.cmp(&b.id));
    Ok((all, answered))
}

/// Whether all coordinators have answered whose brokers are `asked`: a list without one of them would be taken for a list of
/// all.
fn check_answered(
    shared: &Shared,
    answered: &BTreeSet<StreamletId>,
    asked: impl Fn(u32) -> bool,
) -> Result<(), WireError> {
    // Without the stream there has been no transaction.
    let Some(stream) = shared.data.catalog.named(TRANSACTIONS_STREAM) else {
        return Ok(());
    };
    let missing = stream.streamlets.iter().filter(|streamlet| {
        !answered.contains(&streamlet.id()) && asked(shared.owner_of(streamlet).broker)
    });
    let missing: Vec<String> = missing.map(|one| one.id().0.to_string()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!(
        "the coordinators of transactions in streamlets {} of {TRANSACTIONS_STREAM} are reading their state, or their brokers are away: try again, and see `kera stream describe {TRANSACTIONS_STREAM}` for who owns them",
        missing.join(", ")
    );
    Err(WireError::new(ErrorCode::CoordinatorLoading, text))
}

/// The streamlets whose coordinators a broker is recorded to have.
fn coordinated_by(shared: &Shared, broker: u32) -> BTreeSet<StreamletId> {
    let stream = shared.data.catalog.named(TRANSACTIONS_STREAM);
    let streamlets = stream.iter().flat_map(|stream| stream.streamlets.iter());
    let owned = streamlets.filter(|streamlet| shared.owner_of(streamlet).broker == broker);
    owned.map(|streamlet| streamlet.id()).collect()
}

/// The coordinator of a transactional id, if it is here.
async fn coordinator_of(shared: &Arc<Shared>, id: &str) -> Option<Arc<Host>> {
    let kind = CoordinatorKind::Transactions;
    let place = shared.coordination.place(shared, kind, id).await.ok()?;
    let hosts = shared.coordination.transaction_hosts();
    let mut hosts = hosts.into_iter();
    hosts.find(|host| host.streamlet() == place.streamlet)
}

/// A lane that takes part, with who owns it.
struct Place {
    broker: u32,
    lane: v1::TransactionLane,
}

/// Where a partition is; `None` if its stream is gone.
fn lane_of(shared: &Shared, stream: StreamId, partition: u32) -> Option<Place> {
    let stream = shared.data.catalog.get(stream)?;
    let record = stream.record.load();
    let (streamlet, lane) = place_of(partition, record.config.streamlets);
    let streamlet = stream.streamlet(streamlet)?;
    let owner = shared.owner_of(&streamlet);
    Some(Place {
        broker: owner.broker,
        lane: v1::TransactionLane {
            stream: stream.id().as_bytes().to_vec().into(),
            streamlet: streamlet.id().0,
            lane: lane.0,
            owner_epoch: owner.epoch.0,
        },
    })
}

/// The streamlet of a lane, if this broker serves it.
fn served(shared: &Shared, lane: &v1::TransactionLane) -> Option<(Arc<Streamlet>, LaneId)> {
    let stream = StreamId::from_slice(&lane.stream)?;
    let streamlet = StreamletId(lane.streamlet);
    if !shared.data.directory.serves(stream, streamlet) {
        return None;
    }
    let streamlet = shared.streamlet(stream, streamlet)?;
    (!streamlet.is_over()).then_some((streamlet, LaneId(lane.lane)))
}

/// A part as it travels.
fn part_of(request: &v1::VerifyTransactionRequest) -> Result<Part, WireError> {
    if request.stream.is_empty() {
        return Ok(Part::Group(request.group.clone()));
    }
    let stream = stream_id(&request.stream)?;
    Ok(Part::Partition(stream, request.partition))
}

/// An epoch of a producer from its travels.
fn epoch_of(epoch: i32) -> Result<i16, WireError> {
    i16::try_from(epoch).map_err(|_| {
        let text = format!("{epoch} is no epoch of a producer");
        WireError::new(ErrorCode::InvalidArgument, text)
    })
}
