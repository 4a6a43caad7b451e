//! Calls to the other brokers of the cluster.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use kera_grpc::error_of_status;
use kera_grpc::v1::consumers_client::ConsumersClient;
use kera_grpc::v1::lanes_client::LanesClient;
use kera_grpc::v1::streams_client::StreamsClient;
use kera_grpc::v1::transaction_tools_client::TransactionToolsClient;
use kera_grpc::v1::transactions_client::TransactionsClient;
use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::RpcError;
use kera_streamlet::Streamlet;
use tonic::Status;
use tonic::transport::Channel;

use crate::data::catalog::Stream;
use crate::data::directory::Owner;
use crate::shared::Shared;

/// Longest answer accepted: descriptions of streams with thousands of lanes are large.
const MAX_ANSWER_BYTES: usize = 64 << 20;

impl Shared {
    /// The owner of a streamlet, and since when.
    pub fn owner_of(&self, streamlet: &Streamlet) -> Owner {
        let recorded = self
            .data
            .directory
            .owner(streamlet.stream(), streamlet.id());
        recorded.unwrap_or_else(|| Owner {
            broker: self.data.directory.me(),
            epoch: streamlet.epoch(),
        })
    }

    /// The number of the broker that clients are told owns a streamlet. A broker without its lease names
    /// itself nowhere, though it is recorded as the owner for all it knows: most likely another took over.
    pub fn named_owner(&self, streamlet: &Streamlet) -> Option<u32> {
        let owner = self.owner_of(streamlet).broker;
        (owner != self.data.directory.me() || self.data.directory.is_current()).then_some(owner)
    }

    /// The brokers that are recorded to hold copies of a streamlet's groups, by number; none where
    /// brokers share nothing.
    pub fn holders_of(&self, streamlet: &Streamlet) -> Vec<u32> {
        let held = self.cluster_view(|picture| {
            let view = picture.streamlet(streamlet.key())?;
            Some(view.holders.keys().copied().collect())
        });
        held.flatten().unwrap_or_default()
    }

    /// The number of each streamlet's owner, by streamlet.
    pub fn owners_of(&self, stream: &Stream) -> Vec<u32> {
        let streamlets = stream.streamlets.iter();
        streamlets.map(|s| self.owner_of(&s).broker).collect()
    }

    /// The brokers other than this one that own streamlets of a stream.
    pub fn other_owners(&self, stream: &Stream) -> BTreeSet<u32> {
        let mut owners: BTreeSet<u32> = self.owners_of(stream).into_iter().collect();
        owners.remove(&self.data.directory.me());
        owners
    }
}

/// The numbers of the other brokers.
pub fn all(shared: &Shared) -> Vec<u32> {
    let me = shared.data.directory.me();
    let brokers = shared.data.directory.brokers();
    let numbers = brokers.iter().map(|broker| broker.id);
    numbers.filter(|number| *number != me).collect()
}

/// What all other brokers answer, asked at once.
///
/// # Errors
/// That of the first one that does not answer.
pub async fn ask_all<T, F>(shared: &Shared, ask: impl Fn(u32) -> F) -> Result<Vec<T>, WireError>
where
    F: Future<Output = Result<T, WireError>>,
{
    futures::future::try_join_all(all(shared).into_iter().map(ask)).await
}

/// The channel to another broker.
///
/// # Errors
/// [`ErrorCode::NotOwner`], which clients try again after a look for owners, if it does not live.
pub fn channel(shared: &Shared, broker: u32) -> Result<Channel, WireError> {
    let Some(info) = shared.data.directory.broker(broker) else {
        return Err(away(broker, "it is not running"));
    };
    let channel = shared.others.to(&info.address);
    channel.map_err(|error| away(broker, &error.to_string()))
}

/// The service `Streams` of another broker.
///
/// # Errors
/// As [`channel`].
pub fn streams(shared: &Shared, broker: u32) -> Result<StreamsClient<Channel>, WireError> {
    let stub = StreamsClient::new(channel(shared, broker)?);
    Ok(stub.max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The service `Lanes` of another broker.
///
/// # Errors
/// As [`channel`].
pub fn lanes(shared: &Shared, broker: u32) -> Result<LanesClient<Channel>, WireError> {
    let stub = LanesClient::new(channel(shared, broker)?);
    Ok(stub.max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The service `Consumers` of another broker.
///
/// # Errors
/// As [`channel`].
pub fn consumers(shared: &Shared, broker: u32) -> Result<ConsumersClient<Channel>, WireError> {
    let stub = ConsumersClient::new(channel(shared, broker)?);
    Ok(stub.max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The service `TransactionTools` of another broker.
///
/// # Errors
/// As [`channel`].
pub fn transaction_tools(
    shared: &Shared,
    broker: u32,
) -> Result<TransactionToolsClient<Channel>, WireError> {
    let stub = TransactionToolsClient::new(channel(shared, broker)?);
    Ok(stub.max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The service `Transactions` of another broker.
///
/// # Errors
/// As [`channel`].
pub fn transactions(
    shared: &Shared,
    broker: u32,
) -> Result<TransactionsClient<Channel>, WireError> {
    let stub = TransactionsClient::new(channel(shared, broker)?);
    Ok(stub.max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// A call's answer, if it comes `within`.
///
/// # Errors
/// The other broker's refusal, or [`ErrorCode::NotOwner`] if it was not reached in time.
pub async fn answer<T>(
    broker: u32,
    within: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, WireError> {
    match tokio::time::timeout(within, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => match error_of_status("", &status) {
            RpcError::Broker(error) => Err(error),
            _ => Err(away(broker, status.message())),
        },
        Err(_) => Err(away(broker, &format!("no answer within {within:?}"))),
    }
}

fn away(broker: u32, reason: &str) -> WireError {
    WireError::new(
        ErrorCode::NotOwner,
        format!(
            "broker {broker} cannot be asked: {reason}; try again, or see `kera broker list` for who runs"
        ),
    )
}
