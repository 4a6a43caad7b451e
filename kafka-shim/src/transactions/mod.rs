//! Transactions: Kafka's requests as those of the broker's coordinators, and back.

mod batched;
mod describe;
mod join;
mod markers;
mod offsets;
mod parts;

pub(crate) use describe::{describe_transactions, list_transactions};
pub(crate) use join::{batch_error, joins, to_join};
pub(crate) use markers::write_markers;
pub(crate) use offsets::offset_commit;
pub(crate) use parts::{add_offsets, add_partitions, end};

use kafka_protocol::error::ResponseError;
use kera_coordinator::transactions::{Fault, Init, Reply, Request};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};

use crate::context::Ctx;

/// Puts a request to the coordinator of its transactional id.
///
/// # Errors
/// The coordinator's refusal, or Kafka's number for why it was not asked.
async fn ask(ctx: &Ctx, request: Request) -> Result<Result<Reply, Fault>, ResponseError> {
    let id = request.id().unwrap_or_default().to_owned();
    let coordination = &ctx.shared.coordination;
    let request = AnyRequest::Transaction(request);
    match coordination.call(&ctx.shared, &id, request).await {
        Ok(AnyReply::Transaction(Reply::Refused(fault))) => Ok(Err(fault)),
        Ok(AnyReply::Transaction(reply)) => Ok(Ok(reply)),
        Ok(other) => Err(mismatch(&other)),
        Err(error) => Err(coordinator_error(&error)),
    }
}

/// For a reply of another kind than the request's; a defect, and told as such.
fn mismatch(reply: &impl std::fmt::Debug) -> ResponseError {
    tracing::error!(?reply, "a coordinator answered another question");
    ResponseError::UnknownServerError
}

/// Kafka's name for a coordinator that cannot serve. Clients try again.
fn coordinator_error(error: &WireError) -> ResponseError {
    match error.code {
        ErrorCode::CoordinatorLoading => ResponseError::CoordinatorLoadInProgress,
        ErrorCode::NotCoordinator => ResponseError::NotCoordinator,
        _ => ResponseError::CoordinatorNotAvailable,
    }
}

/// Kafka's names that a client's version of a request knows.
#[derive(Clone, Copy)]
struct Knows {
    /// That it is fenced.
    fenced: bool,
    /// That it may go on once it has aborted.
    abortable: bool,
}

impl Knows {
    const ALL: Self = Self {
        fenced: true,
        abortable: true,
    };

    /// Of a request whose versions from these on do.
    fn of(version: i16, fenced_from: i16, abortable_from: i16) -> Self {
        Self {
            fenced: version >= fenced_from,
            abortable: version >= abortable_from,
        }
    }
}

/// Kafka's name for a refusal.
fn fault_error(fault: Fault, knows: Knows) -> ResponseError {
    use ResponseError as Kafka;
    match fault {
        Fault::InvalidId => Kafka::InvalidRequest,
        Fault::InvalidTimeout => Kafka::InvalidTransactionTimeout,
        Fault::UnknownId => Kafka::TransactionalIdNotFound,
        Fault::OtherProducer => Kafka::InvalidProducerIdMapping,
        Fault::Fenced if knows.fenced => Kafka::ProducerFenced,
        Fault::Fenced => Kafka::InvalidProducerEpoch,
        Fault::Ending => Kafka::ConcurrentTransactions,
        Fault::TooManyParts | Fault::TooManyPrepared if knows.abortable => {
            Kafka::TransactionAbortable
        }
        Fault::NotOpen
        | Fault::TooManyParts
        | Fault::Prepared
        | Fault::TooManyPrepared
        | Fault::Forgotten => Kafka::InvalidTxnState,
        Fault::TooManyIds => Kafka::CoordinatorNotAvailable,
    }
}

impl Ctx {
    /// Checks that the client may do what it asks for under a transactional id.
    fn check_id(&self, id: &str) -> Result<(), ResponseError> {
        match self.may_transactional_id(id) {
            true => Ok(()),
            false => Err(ResponseError::TransactionalIdAuthorizationFailed),
        }
    }
}

/// First version of InitProducerId whose clients know what fenced is.
const FENCED_FROM: i16 = 4;

/// What a transactional producer is told that begins.
pub(crate) struct Begun {
    /// Its producer id and epoch.
    pub(crate) producer: (i64, i16),
    /// Those of the transaction that it has kept, if there is one.
    pub(crate) ongoing: Option<(i64, i16)>,
}

/// InitProducerId of a transactional producer.
pub(crate) async fn init(ctx: &Ctx, version: i16, request: Init) -> Result<Begun, ResponseError> {
    if request.id.is_empty() {
        return Err(ResponseError::InvalidRequest);
    }
    ctx.check_id(&request.id)?;
    if request.two_phase.is_some() {
        // As with Kafka both are told alike: what the broker's settings are is not for clients to find out.
        if !ctx.may_also(
            Operation::TwoPhaseCommit,
            (Kind::TransactionalId, &request.id),
        ) {
            return Err(ResponseError::TransactionalIdAuthorizationFailed);
        }
        if !ctx.shared.live().transactions.two_phase_commit {
            tracing::warn!(
                id = request.id,
                "a producer was refused that asks for two-phase commit: set `transactions.two_phase_commit` to allow it"
            );
            return Err(ResponseError::TransactionalIdAuthorizationFailed);
        }
    }
    let asked = ask(ctx, Request::Init(request)).await?;
    // A transaction that was open is being aborted.
    ctx.shared.transactions.look();
    match asked {
        Ok(Reply::Begun(producer, epoch)) => Ok(Begun {
            producer: (producer, epoch),
            ongoing: None,
        }),
        Ok(Reply::Kept {
            producer,
            epoch,
            ongoing,
        }) => Ok(Begun {
            producer: (producer, epoch),
            ongoing: Some(ongoing),
        }),
        Ok(other) => Err(mismatch(&other)),
        Err(fault) => Err(fault_error(
            fault,
            Knows::of(version, FENCED_FROM, i16::MAX),
        )),
    }
}
