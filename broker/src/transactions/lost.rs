//! Transactions that lanes hold open and no coordinator knows: they were lost with a coordinator's state, or begun by a
//! version that forgot how they ended. Readers of what is committed wait behind them until somebody ends them by hand.
//!
//! Lanes are asked first, then all coordinators, then the lanes again. A coordinator knows a transaction from before its
//! first batch until its lane has the marker. So what is open before and after, and unknown in between, is lost.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kera_coordinator::transactions::{OpenThere, Partition};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, StreamId, StreamletId};
use kera_protocol::partition::partition_of;
use kera_protocol::v1;
use kera_streamlet::Streamlet;

use super::marks::settle_here;
use super::{LIST_WITHIN, check_answered};
use crate::clock::now_ms;
use crate::coordination::{Coordination, TRANSACTIONS_STREAM};
use crate::data::catalog::Stream;
use crate::others;
use crate::shared::Shared;

/// Open transactions in one question to coordinators.
const MOST_ASKED: usize = 10_000;

/// Which open transactions are meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Which {
    /// Only in this stream.
    pub stream: Option<StreamId>,
    /// Only in this partition of it.
    pub partition: Option<u32>,
    /// Only of this producer.
    pub producer: Option<i64>,
}

/// An open transaction in a lane.
#[derive(Clone, Debug)]
struct Unended {
    owner: u32,
    partition: Partition,
    lane: v1::TransactionLane,
    waiting_records: u64,
    open: v1::LaneTransaction,
}

impl Unended {
    /// Names the transaction; stays the same when the lane gets another owner.
    fn key(&self) -> (Partition, i64, u64) {
        (self.partition, self.open.producer, self.open.first_ordinal)
    }

    fn question(&self) -> v1::LaneUnended {
        v1::LaneUnended {
            stream: self.partition.0.as_bytes().to_vec().into(),
            partition: self.partition.1,
            transaction: Some(self.open),
        }
    }

    fn told(&self, shared: &Shared) -> v1::LostTransaction {
        let stream = shared.data.catalog.get(self.partition.0);
        let last_ms = Some(self.open.last_append_ms).filter(|ms| *ms > 0);
        v1::LostTransaction {
            producer: self.open.producer,
            epoch: self.open.epoch,
            partition: Some(v1::TransactionPartition {
                stream: stream.map_or_else(String::new, |stream| stream.name()),
                partition: self.partition.1,
                streamlet: self.lane.streamlet,
                lane: self.lane.lane,
                owner: self.owner,
            }),
            first_ordinal: self.open.first_ordinal,
            waiting_records: self.waiting_records,
            silent_ms: last_ms.map(|ms| now_ms().saturating_sub(ms)),
        }
    }
}

/// The open transactions of lanes that this broker owns.
pub(crate) fn list_unended(
    shared: &Shared,
    request: &v1::ListUnendedRequest,
) -> Result<v1::ListUnendedResponse, WireError> {
    let streams = match request.stream.is_empty() {
        true => shared.data.catalog.all(),
        false => vec![shared.data.catalog.of_id(&request.stream)?],
    };
    let mut lanes = Vec::new();
    for stream in streams {
        for streamlet in stream.streamlets.iter() {
            if !shared.data.directory.serves(stream.id(), streamlet.id()) {
                continue;
            }
            for (lane, _, head) in streamlet.bounds() {
                let open = open_in(&streamlet, lane, request.producer);
                if !open.is_empty() {
                    let stable = streamlet.stable(lane).unwrap_or(head);
                    lanes.push(v1::UnendedInLane {
                        lane: Some(v1::TransactionLane {
                            stream: stream.id().as_bytes().to_vec().into(),
                            streamlet: streamlet.id().0,
                            lane: lane.0,
                            owner_epoch: streamlet.epoch().0,
                        }),
                        waiting_records: head.saturating_sub(stable),
                        open,
                    });
                }
            }
        }
    }
    Ok(v1::ListUnendedResponse { lanes })
}

/// What is open in a lane, oldest first; of one producer, unless that is -1.
fn open_in(streamlet: &Streamlet, lane: LaneId, producer: i64) -> Vec<v1::LaneTransaction> {
    let open = streamlet.open_transactions(lane).unwrap_or_default();
    if open.is_empty() {
        return Vec::new();
    }
    let active = streamlet.active_producers(lane, now_ms());
    let last_ms: BTreeMap<i64, u64> = active.iter().map(|one| (one.id, one.last_ms)).collect();
    let open = open.into_iter();
    let open = open.filter(|(id, ..)| producer < 0 || *id == producer);
    open.map(|(producer, epoch, first_ordinal)| v1::LaneTransaction {
        producer,
        epoch: epoch.into(),
        first_ordinal,
        last_append_ms: last_ms.get(&producer).copied().unwrap_or(0),
    })
    .collect()
}

/// Which of these open transactions the coordinators of this broker know.
///
/// # Errors
/// The question makes no sense.
pub(crate) fn find(
    shared: &Shared,
    request: &v1::FindTransactionsRequest,
) -> Result<v1::FindTransactionsResponse, WireError> {
    let asked = request.open.iter().map(|asked| {
        let stream = StreamId::from_slice(&asked.stream)?;
        let open = asked.transaction?;
        let open = OpenThere {
            producer: open.producer,
            epoch: i16::try_from(open.epoch).ok()?,
            first: open.first_ordinal,
        };
        Some(((stream, asked.partition), open))
    });
    let asked: Option<Vec<_>> = asked.collect();
    let asked = asked.ok_or_else(|| {
        let text = "the request names an open transaction that cannot be one";
        WireError::new(ErrorCode::InvalidArgument, text)
    })?;
    let mut known = vec![false; asked.len()];
    let mut coordinators = Vec::new();
    for host in shared.coordination.transaction_hosts() {
        // While it reads its state it knows nothing yet.
        let Some(of_host) = host.knows(&asked) else {
            continue;
        };
        for (known, here) in known.iter_mut().zip(of_host) {
            *known |= here;
        }
        if Coordination::still_coordinates(shared, &host) {
            coordinators.push(host.streamlet().0);
        }
    }
    Ok(v1::FindTransactionsResponse {
        known,
        coordinators,
    })
}

/// What the other brokers answer that own lanes of these streams, asked at once.
async fn ask_owners<T, F>(
    shared: &Shared,
    streams: &[Arc<Stream>],
    ask: impl Fn(u32) -> F,
) -> Result<Vec<T>, WireError>
where
    F: Future<Output = Result<T, WireError>>,
{
    let owners = streams.iter().flat_map(|of| shared.other_owners(of));
    let owners: BTreeSet<u32> = owners.collect();
    futures::future::try_join_all(owners.into_iter().map(ask)).await
}

/// All that is open, at all owners.
async fn unended(shared: &Shared, which: Which) -> Result<Vec<Unended>, WireError> {
    let stream = which.stream.map(|stream| stream.as_bytes().to_vec());
    let request = v1::ListUnendedRequest {
        stream: stream.unwrap_or_default().into(),
        producer: which.producer.unwrap_or(-1),
    };
    let mut lists = vec![(shared.data.directory.me(), list_unended(shared, &request)?)];
    if shared.data.directory.is_shared() {
        let streams = match which.stream {
            Some(stream) => shared.data.catalog.get(stream).into_iter().collect(),
            None => shared.data.catalog.all(),
        };
        let asked = ask_owners(shared, &streams, |broker| {
            let request = request.clone();
            async move {
                let mut stub = others::lanes(shared, broker)?;
                let answer = stub.list_unended(request);
                let list = others::answer(broker, LIST_WITHIN, answer).await?;
                Ok((broker, list))
            }
        });
        lists.extend(asked.await?);
    }
    let mut all = Vec::new();
    for (owner, list) in lists {
        for of_lane in list.lanes {
            let lane = of_lane.lane.unwrap_or_default();
            let Some(partition) = partition_in(shared, &lane) else {
                continue;
            };
            if which.partition.is_some_and(|wanted| wanted != partition.1) {
                continue;
            }
            all.extend(of_lane.open.into_iter().map(|open| Unended {
                owner,
                partition,
                lane: lane.clone(),
                waiting_records: of_lane.waiting_records,
                open,
            }));
        }
    }
    Ok(all)
}

/// The partition that a lane is; `None` if its stream is not known here.
fn partition_in(shared: &Shared, lane: &v1::TransactionLane) -> Option<Partition> {
    let stream = shared.data.catalog.of_id(&lane.stream).ok()?;
    let streamlets = stream.record.load().config.streamlets;
    let partition = partition_of(StreamletId(lane.streamlet), LaneId(lane.lane), streamlets);
    Some((stream.id(), u32::try_from(partition).ok()?))
}

/// Which of these no coordinator knows. All coordinators have answered.
async fn unknown(shared: &Shared, open: Vec<Unended>) -> Result<Vec<Unended>, WireError> {
    let mut unknown = Vec::new();
    let mut rest = open;
    while !rest.is_empty() {
        let more = rest.split_off(rest.len().min(MOST_ASKED));
        let request = v1::FindTransactionsRequest {
            open: rest.iter().map(Unended::question).collect(),
        };
        let mut answers = vec![find(shared, &request)?];
        if shared.data.directory.is_shared() {
            let streams: Vec<_> = shared
                .data
                .catalog
                .named(TRANSACTIONS_STREAM)
                .into_iter()
                .collect();
            let asked = ask_owners(shared, &streams, |broker| {
                let request = request.clone();
                async move {
                    let mut stub = others::lanes(shared, broker)?;
                    let answer = stub.find_transactions(request);
                    others::answer(broker, LIST_WITHIN, answer).await
                }
            });
            answers.extend(asked.await?);
        }
        let coordinators = answers.iter().flat_map(|answer| &answer.coordinators);
        let answered: BTreeSet<StreamletId> = coordinators.copied().map(StreamletId).collect();
        check_answered(shared, &answered, |_| true)?;
        let is_known = |at: usize| {
            answers
                .iter()
                .any(|answer| answer.known.get(at) == Some(&true))
        };
        let of_these = rest.into_iter().enumerate();
        unknown.extend(
            of_these
                .filter(|(at, _)| !is_known(*at))
                .map(|(_, one)| one),
        );
        rest = more;
    }
    Ok(unknown)
}

/// What was found of open transactions.
struct Looked {
    /// All of them, lost or not.
    open: usize,
    lost: Vec<Unended>,
}

async fn look(shared: &Shared, which: Which) -> Result<Looked, WireError> {
    let open = unended(shared, which).await?;
    let count = open.len();
    let candidates = unknown(shared, open).await?;
    let mut lost = Vec::new();
    if !candidates.is_empty() {
        let candidates: HashSet<_> = candidates.iter().map(Unended::key).collect();
        let again = unended(shared, which).await?.into_iter();
        lost.extend(again.filter(|one| candidates.contains(&one.key())));
    }
    lost.sort_by_key(Unended::key);
    Ok(Looked { open: count, lost })
}

/// The lost transactions of the whole cluster, by partition and producer.
///
/// # Errors
/// A broker does not answer, or a coordinator reads its state.
pub(crate) async fn list(shared: &Shared) -> Result<Vec<v1::LostTransaction>, WireError> {
    let looked = look(shared, Which::default()).await?;
    Ok(looked.lost.iter().map(|one| one.told(shared)).collect())
}

/// How many transactions are open in a stream.
///
/// # Errors
/// An owner of some of its lanes does not answer.
pub(crate) async fn count_open(shared: &Shared, stream: StreamId) -> Result<usize, WireError> {
    let which = Which {
        stream: Some(stream),
        ..Which::default()
    };
    Ok(unended(shared, which).await?.len())
}

/// Ends lost transactions, and returns once their markers are durable: which ones.
///
/// # Errors
/// [`ErrorCode::UnknownTransaction`] if none is open, [`ErrorCode::InvalidArgument`] if one is known to its coordinator, or
/// somebody does not answer.
pub async fn end_lost(
    shared: &Arc<Shared>,
    which: Which,
    commit: bool,
    coordinator_epoch: i32,
) -> Result<Vec<v1::LostTransaction>, WireError> {
    let Looked { open, lost } = look(shared, which).await?;
    let producer = which.producer.unwrap_or(-1);
    if open == 0 {
        let text =
            format!("no transaction of producer {producer} is open there: there is nothing to end");
        return Err(WireError::new(ErrorCode::UnknownTransaction, text));
    }
    if lost.is_empty() {
        let text = format!(
            "the transaction of producer {producer} is known to its coordinator, which ends it: `kera transaction list` names it; `kera transaction abort ID` aborts one whose producer is gone, and `kera transaction end ID` ends one that is prepared"
        );
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let mut by_owner: BTreeMap<u32, Vec<&Unended>> = BTreeMap::new();
    for one in &lost {
        by_owner.entry(one.owner).or_default().push(one);
    }
    let asked = by_owner.into_iter().map(|(owner, lost)| async move {
        let lanes = lost
            .iter()
            .map(|one| end_of(one, commit, coordinator_epoch));
        let request = v1::SettleTransactionsRequest {
            lanes: lanes.collect(),
        };
        let answer = settle_at(shared, owner, request).await;
        (lost, answer)
    });
    let (mut ended, mut failed) = (Vec::new(), Vec::new());
    for (lost, answer) in futures::future::join_all(asked).await {
        let lanes = answer.as_ref().map_or(&[][..], |answer| &answer.lanes);
        for (at, one) in lost.into_iter().enumerate() {
            let told = one.told(shared);
            match lanes.get(at).is_some_and(|lane| lane.served && lane.ended) {
                true => ended.push(told),
                false => failed.push(told.partition.unwrap_or_default()),
            }
        }
    }
    tracing::info!(
        producer,
        commit,
        lanes = ended.len(),
        "a lost transaction was ended by hand"
    );
    let Some(first) = failed.first() else {
        return Ok(ended);
    };
    let text = format!(
        "stream {} partition {} and {} more could not be told yet, {} partitions were: their owner changes, or too few replicas acknowledge; try again, and see `kera stream describe {}`",
        first.stream,
        first.partition,
        failed.len() - 1,
        ended.len(),
        first.stream
    );
    Err(WireError::new(ErrorCode::NotOwner, text))
}

fn end_of(lost: &Unended, commit: bool, coordinator_epoch: i32) -> v1::LaneToSettle {
    v1::LaneToSettle {
        lane: Some(lost.lane.clone()),
        with_open: false,
        ended: vec![v1::TransactionEndedBefore {
            transaction: Some(v1::ProducerTransaction {
                producer: lost.open.producer,
                epoch: lost.open.epoch,
                number: 0,
            }),
            epoch_after: lost.open.epoch,
            commit,
            coordinator_epoch,
            // That one, and none that may begin meanwhile.
            before: lost.open.first_ordinal + 1,
        }],
        by_hand: true,
    }
}

async fn settle_at(
    shared: &Arc<Shared>,
    owner: u32,
    request: v1::SettleTransactionsRequest,
) -> Result<v1::SettleTransactionsResponse, WireError> {
    if owner == shared.data.directory.me() {
        return settle_here(shared, request).await;
    }
    let mut stub = others::lanes(shared, owner)?;
    let answer = stub.settle_transactions(request);
    others::answer(owner, LIST_WITHIN, answer).await
}

/// Refuses that a stream acknowledges in memory from now on while transactions are open there.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if there are some, or an owner does not answer.
pub(crate) async fn check_none_open(shared: &Shared, stream: &Stream) -> Result<(), WireError> {
    let open = count_open(shared, stream.id()).await?;
    if open == 0 {
        return Ok(());
    }
    let text = format!(
        "stream {}: {open} transactions are open in its lanes, and ack = memory promises nothing that they need: wait until they have ended, or end them; `kera transaction list` names them",
        stream.name()
    );
    Err(WireError::new(ErrorCode::InvalidArgument, text))
}
