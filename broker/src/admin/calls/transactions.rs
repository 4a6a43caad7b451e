//! The `Transactions` service: each call goes to the coordinator of its transactional id.

use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::transactions_server::Transactions;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::WireError;
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::{page_of, status};
use crate::access::{ANONYMOUS, attempt, may_do, may_see};
use crate::audit::Change;
use crate::shared::Shared;
use crate::transactions;

/// Serves transactions of native producers.
pub(super) struct TransactionsService {
    shared: Arc<Shared>,
}

impl TransactionsService {
    /// A service over the broker's coordinators.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl Transactions for TransactionsService {
    async fn init_transactions(
        &self,
        request: Request<v1::InitTransactionsRequest>,
    ) -> Result<Response<v1::InitTransactionsResponse>, Status> {
        let begun = transactions::init(&self.shared, request.into_inner()).await;
        begun.map(Response::new).map_err(status)
    }

    async fn add_to_transaction(
        &self,
        request: Request<v1::AddToTransactionRequest>,
    ) -> Result<Response<v1::AddToTransactionResponse>, Status> {
        let added = transactions::add(&self.shared, request.into_inner()).await;
        added.map(Response::new).map_err(status)
    }

    async fn prepare_transaction(
        &self,
        request: Request<v1::PrepareTransactionRequest>,
    ) -> Result<Response<v1::PrepareTransactionResponse>, Status> {
        let caller = request.extensions().get::<Caller>();
        let user = caller.and_then(|caller| caller.user.clone());
        let user = user.as_deref().unwrap_or(ANONYMOUS);
        let request = request.into_inner();
        let prepared = transactions::prepare(&self.shared, request, user).await;
        prepared.map(Response::new).map_err(status)
    }

    async fn end_transaction(
        &self,
        request: Request<v1::EndTransactionRequest>,
    ) -> Result<Response<v1::EndTransactionResponse>, Status> {
        let ended = transactions::end(&self.shared, request.into_inner()).await;
        ended.map(Response::new).map_err(status)
    }

    async fn forget_transaction(
        &self,
        request: Request<v1::ForgetTransactionRequest>,
    ) -> Result<Response<v1::ForgetTransactionResponse>, Status> {
        let forgotten = transactions::forget(&self.shared, request.into_inner()).await;
        forgotten.map(Response::new).map_err(status)
    }

    async fn list_open_transactions(
        &self,
        request: Request<v1::ListOpenTransactionsRequest>,
    ) -> Result<Response<v1::ListOpenTransactionsResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let listed = transactions::list_open(&self.shared, &request).await;
        let (listed, answered) = listed.map_err(status)?;
        let listed = listed.into_iter().filter(|open| {
            let id = transactions::id_of(open);
            let thing = (Kind::TransactionalId, id);
            id > request.after.as_str() && may_see(&self.shared, caller.as_ref(), thing)
        });
        let (transactions, more) = page_of(listed, request.max_transactions);
        Ok(Response::new(v1::ListOpenTransactionsResponse {
            transactions,
            more,
            coordinators: answered.into_iter().map(|streamlet| streamlet.0).collect(),
        }))
    }

    async fn heartbeat_transaction(
        &self,
        request: Request<v1::HeartbeatTransactionRequest>,
    ) -> Result<Response<v1::HeartbeatTransactionResponse>, Status> {
        let heard = transactions::heartbeat(&self.shared, request.into_inner()).await;
        heard.map(Response::new).map_err(status)
    }

    async fn abort_transactions(
        &self,
        request: Request<v1::AbortTransactionsRequest>,
    ) -> Result<Response<v1::AbortTransactionsResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let may = |id: &str| {
            let thing = (Kind::TransactionalId, id);
            may_do(&self.shared, caller.as_ref(), Operation::Write, thing)
        };
        let aborted = transactions::abort_by_prefix(&self.shared, &request, may).await;
        let aborted = aborted.map_err(status)?;
        // A call that aborts nothing has no line.
        for one in &aborted.transactions {
            let id = one
                .transaction
                .as_ref()
                .map(|handle| &*handle.transactional_id);
            let change = Change::new(
                "abort_transaction",
                "transactional-id",
                id.unwrap_or_default(),
                "",
            );
            if let Some(attempt) = attempt(&self.shared, caller.as_ref(), change) {
                match one.error {
                    0 => attempt.made(),
                    error => {
                        attempt.end(Err::<&(), _>(&WireError::from_number(error, &one.message)))
                    }
                }
            }
        }
        Ok(Response::new(aborted))
    }
}
