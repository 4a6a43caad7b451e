//! The `TransactionTools` service: what operators ask of transactions, and how they end one.

use std::sync::Arc;
use std::time::Duration;

use kera_grpc::serve::Caller;
use kera_grpc::v1::transaction_tools_server::TransactionTools;
use kera_metadata::access::Kind;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::{page_of, status};
use crate::access::may_see;
use crate::admin;
use crate::others;
use crate::shared::Shared;
use crate::transactions::{Which, end_lost, lost, tools};

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

    async fn end(&self, request: v1::EndPreparedRequest) -> Result<bool, WireError> {
        let id = request.transactional_id;
        let Some(broker) = self.elsewhere(&id, request.local).await? else {
            return tools::end_prepared(&self.shared, &id, request.commit).await;
        };
        let mut stub = others::transaction_tools(&self.shared, broker)?;
        let request = v1::EndPreparedRequest {
            transactional_id: id,
            commit: request.commit,
            local: true,
        };
        let ended = others::answer(broker, ANSWER_WITHIN, stub.end_prepared(request)).await?;
        Ok(ended.repeated)
    }

    async fn end_what_is_lost(
        &self,
        request: v1::EndLostRequest,
    ) -> Result<Vec<v1::LostTransaction>, WireError> {
        let refused = |text: &str| Err(WireError::new(ErrorCode::InvalidArgument, text));
        if request.producer < 0 {
            return refused(
                "the request names no producer: give the producer id that the list shows",
            );
        }
        if request.partition.is_some() && request.stream.is_empty() {
            return refused("the request names a partition and no stream that it is of");
        }
        let stream = match request.stream.is_empty() {
            true => None,
            false => Some(admin::named(&self.shared, &request.stream)?.id()),
        };
        let which = Which {
            stream,
            partition: request.partition,
            producer: Some(request.producer),
        };
        end_lost(&self.shared, which, request.commit, 0).await
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

/// Which of a page's lost transactions the caller may see: those in streams that it may see.
async fn lost_for(shared: &Shared, caller: Option<&Caller>) -> (Vec<v1::LostTransaction>, String) {
    match lost::list(shared).await {
        Ok(mut lost) => {
            lost.retain(|one| {
                let partition = one.partition.as_ref();
                let stream = partition.map_or("", |partition| &partition.stream);
                may_see(shared, caller, (Kind::Stream, stream))
            });
            (lost, String::new())
        }
        Err(error) => (Vec::new(), error.to_string()),
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
        let (lost, lost_unknown) = match request.local || !request.after.is_empty() {
            true => Default::default(),
            false => lost_for(&self.shared, caller.as_ref()).await,
        };
        Ok(Response::new(v1::ListTransactionsResponse {
            transactions,
            more,
            answered,
            lost,
            lost_unknown,
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

    async fn end_prepared(
        &self,
        request: Request<v1::EndPreparedRequest>,
    ) -> Result<Response<v1::EndPreparedResponse>, Status> {
        let ended = self.end(request.into_inner()).await;
        let repeated = ended.map_err(status)?;
        Ok(Response::new(v1::EndPreparedResponse { repeated }))
    }

    async fn end_lost(
        &self,
        request: Request<v1::EndLostRequest>,
    ) -> Result<Response<v1::EndLostResponse>, Status> {
        let ended = self.end_what_is_lost(request.into_inner()).await;
        let ended = ended.map_err(status)?;
        Ok(Response::new(v1::EndLostResponse { ended }))
    }
}
