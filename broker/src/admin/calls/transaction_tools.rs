//! The `TransactionTools` service: what operators ask of transactions, and how they end one.

use std::sync::Arc;
use std::time::Duration;

use kera_metadata::access::Kind;
use kera_protocol::error::WireError;
use kera_protocol::v1;
use kera_rpc::serve::Caller;
use kera_rpc::v1::transaction_tools_server::TransactionTools;
use tonic::{Request, Response, Status};

use super::{page_of, status};
use crate::access::may_see;
use crate::others;
use crate::shared::Shared;
use crate::transactions::tools;

/// How long another broker is given.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Serves transactions to operators.
pub(super) struct TransactionToolsService {
    shared: Arc<Shared>,
}

impl TransactionToolsService {
    /// A service over the broker's coordinators.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The other broker to ask about an id; `None` if it is this one, or only this one is meant.
    async fn elsewhere(&self, id: &str, local: bool) -> Result<Option<u32>, WireError> {
        if local {
            return Ok(None);
        }
        let broker = tools::coordinator(&self.shared, id).await?;
        Ok(Some(broker).filter(|broker| *broker != self.shared.data.directory.me()))
    }

    async fn describe(
        &self,
        request: v1::DescribeTransactionRequest,
    ) -> Result<v1::DescribeTransactionResponse, WireError> {
        let id = request.transactional_id;
        let Some(broker) = self.elsewhere(&id, request.local).await? else {
            return tools::describe(&self.shared, &id).await;
        };
        let mut stub = others::transaction_tools(&self.shared, broker)?;
        let request = v1::DescribeTransactionRequest {
            transactional_id: id,
            local: true,
        };
        others::answer(broker, ANSWER_WITHIN, stub.describe_transaction(request)).await
    }

    async fn abort(&self, request: v1::AbortTransactionRequest) -> Result<(), WireError> {
        let id = request.transactional_id;
        let Some(broker) = self.elsewhere(&id, request.local).await? else {
            return tools::abort(&self.shared, &id).await;
        };
        let mut stub = others::transaction_tools(&self.shared, broker)?;
        let request = v1::AbortTransactionRequest {
            transactional_id: id,
            local: true,
        };
        others::answer(broker, ANSWER_WITHIN, stub.abort_transaction(request)).await?;
        Ok(())
    }
}

#[tonic::async_trait]
impl TransactionTools for TransactionToolsService {
    async fn list_transactions(
        &self,
        request: Request<v1::ListTransactionsRequest>,
    ) -> Result<Response<v1::ListTransactionsResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let (mut all, answered) = match request.local {
            true => {
                let here = tools::list(&self.shared, request.all).await;
                let (here, of) = here.map_err(status)?;
                let streamlets = of.into_iter().map(|streamlet| streamlet.0).collect();
                (here, Some(v1::AnsweredCoordinators { streamlets }))
            }
            false => {
                let everywhere = tools::list_everywhere(&self.shared, request.all).await;
                (everywhere.map_err(status)?, None)
            }
        };
        all.sort_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
        let all = all.into_iter().filter(|one| {
            let id = one.transactional_id.as_str();
            id > request.after.as_str()
                && may_see(&self.shared, caller.as_ref(), (Kind::TransactionalId, id))
        });
        let (transactions, more) = page_of(all, request.max_transactions);
        Ok(Response::new(v1::ListTransactionsResponse {
            transactions,
            more,
            answered,
        }))
    }

    async fn describe_transaction(
        &self,
        request: Request<v1::DescribeTransactionRequest>,
    ) -> Result<Response<v1::DescribeTransactionResponse>, Status> {
        let described = self.describe(request.into_inner()).await;
        described.map(Response::new).map_err(status)
    }

    async fn abort_transaction(
        &self,
        request: Request<v1::AbortTransactionRequest>,
    ) -> Result<Response<v1::AbortTransactionResponse>, Status> {
        let aborted = self.abort(request.into_inner()).await;
        aborted.map_err(status)?;
        Ok(Response::new(v1::AbortTransactionResponse {}))
    }
}
