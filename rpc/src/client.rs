//! Finding brokers and streams.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::brokers::Brokers;
use crate::channels::{Channels, check_address};
use crate::data::{ConnectOptions, DataConnection, FrameSink};
use crate::error::{ChangeError, ConnectionError, RpcError, error_of_status, wire_error_of_status};
use crate::meta::StreamMeta;
use crate::refusals::Refusals;
use crate::retry::RetryPolicy;
use crate::v1::consumers_client::ConsumersClient;
use crate::v1::streams_client::StreamsClient;
use crate::v1::transactions_client::TransactionsClient;

/// Where clients look for a broker unless told otherwise.
pub const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:7600";

/// How long one broker is given for an answer that costs it next to nothing; then another is asked. A
/// broker that was stopped keeps its connections and says nothing.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How long a broker that ended a call is given to say whether TLS is why. It answers at once unless it was stopped.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// How a [`Client`] behaves.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// When to try a call again.
    pub retry: RetryPolicy,
    /// For data connections; its connect timeout also holds for control calls.
    pub connect: ConnectOptions,
}

/// Reaches brokers: control calls over gRPC, data connections, and a cache of streams. Cheap to
/// clone; clones share everything. To be used within a tokio runtime.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) brokers: Brokers,
    /// Brokers that coordinate consumer groups, by group.
    coordinators: Mutex<HashMap<Coordinated, Arc<str>>>,
    pub(crate) options: ClientOptions,
    channels: Channels,
    pub(crate) streams: Mutex<HashMap<String, Arc<StreamMeta>>>,
    /// What brokers have said of TLS.
    tls: Mutex<Refusals>,
    data: Mutex<HashMap<String, Arc<DataConnection>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("brokers", &self.inner.brokers)
            .finish_non_exhaustive()
    }
}

/// What a broker coordinates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Coordinated {
    Group(String),
    TransactionalId(String),
}

impl Client {
    /// A client of the brokers at `bootstrap`: one or more HOST:PORT, separated by commas. Nothing
    /// is connected before it is needed.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`] if one is not HOST:PORT.
    pub fn new(bootstrap: &str, options: ClientOptions) -> Result<Self, RpcError> {
        let bootstrap: Vec<String> = bootstrap
            .split(',')
            .map(|address| address.trim().to_owned())
            .collect();
        for address in &bootstrap {
            check_address(address)?;
        }
        Ok(Self {
            inner: Arc::new(Inner {
                brokers: Brokers::new(bootstrap),
                coordinators: Mutex::default(),
                channels: Channels::new(options.connect.connect_timeout)
                    .with_tls(options.connect.tls.clone())
                    .with_login(options.connect.login.clone()),
                options,
                streams: Mutex::default(),
                tls: Mutex::default(),
                data: Mutex::default(),
            }),
        })
    }

    /// A client with default options.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn connect_to(bootstrap: &str) -> Result<Self, RpcError> {
        Self::new(bootstrap, ClientOptions::default())
    }

    /// The client's options.
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// HOST:PORT of the broker in use for what any broker can answer: the first of the bootstrap list
    /// until it does not answer, then the next, then brokers that owned streamlets when last heard of.
    pub fn bootstrap(&self) -> Arc<str> {
        self.inner.brokers.current()
    }

    /// The gRPC channel to the broker at `address`, connected with its first call.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn channel(&self, address: &str) -> Result<Channel, RpcError> {
        self.inner.channels.to(address)
    }

    /// The stub of the service `Streams` at the bootstrap broker; for many calls in a row, or for
    /// no retries. See [`streams_call`](Self::streams_call).
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn streams(&self) -> Result<StreamsClient<Channel>, RpcError> {
        Ok(streams_at(self.channel(&self.bootstrap())?))
    }

    /// The stub of the service `Consumers` at the bootstrap broker.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn consumers(&self) -> Result<ConsumersClient<Channel>, RpcError> {
        Ok(consumers_at(self.channel(&self.bootstrap())?))
    }

    /// Calls the service `Streams`, with retries by the client's policy, moving on through the
    /// brokers known when one does not answer:
    /// `client.streams_call(|mut stub| async move { stub.list_streams(request).await })`.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn streams_call<T, F, Fut>(&self, mut call: F) -> Result<T, RpcError>
    where
        F: FnMut(StreamsClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.any_broker_call(None, |channel| call(streams_at(channel)))
            .await
    }

    /// Calls the service `Consumers` at any broker, as [`streams_call`](Self::streams_call) does.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn consumers_call<T, F, Fut>(&self, mut call: F) -> Result<T, RpcError>
    where
        F: FnMut(ConsumersClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.any_broker_call(None, |channel| call(consumers_at(channel)))
            .await
    }

    pub(crate) async fn any_broker_call<T, F, Fut>(
        &self,
        within: Option<Duration>,
        call: F,
    ) -> Result<T, RpcError>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.any_broker_attempts(within, call, |_| ()).await
    }

    /// The same; `failed` hears of each attempt that failed.
    async fn any_broker_attempts<T, F, Fut>(
        &self,
        within: Option<Duration>,
        mut call: F,
        failed: impl Fn(&RpcError),
    ) -> Result<T, RpcError>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let (retry, failed) = (self.inner.options.retry, &failed);
        retry
            .run_told(
                || Some(self.waits_for()),
                || {
                    let address = self.bootstrap();
                    let attempt = self.channel(&address).map(&mut call);
                    async move {
                        let answer = answered(&address, within, attempt?).await;
                        let answer = self.finish(&address, answer).await;
                        answer.inspect_err(failed)
                    }
                },
            )
            .await
    }

    /// Calls the service `Streams` at any broker as [`streams_call`](Self::streams_call) does, to change something.
    ///
    /// # Errors
    /// What the last attempt came to, and whether an earlier one may have made the change.
    pub async fn change_streams<T, F, Fut>(&self, mut call: F) -> Result<T, ChangeError>
    where
        F: FnMut(StreamsClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        // Of the first attempt that may have made the change.
        let first = Mutex::new(None);
        let failed = |error: &RpcError| {
            if error.is_uncertain() && error.is_retryable() {
                first.lock().get_or_insert_with(|| error.clone());
            }
        };
        let changed = self.any_broker_attempts(None, |channel| call(streams_at(channel)), failed);
        changed.await.map_err(|error| ChangeError {
            // An error that is uncertain itself needs no other.
            earlier: first.into_inner().filter(|_| !error.is_uncertain()),
            error,
        })
    }

    /// Calls the service `Consumers` at the broker that coordinates `group`, with retries by the client's
    /// policy. A coordinator that does not answer `within` is looked up anew, as is one that says that it
    /// is none.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn group_call<T, F, Fut>(
        &self,
        group: &str,
        within: Duration,
        mut call: F,
    ) -> Result<T, RpcError>
    where
        F: FnMut(ConsumersClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let of = Coordinated::Group(group.to_owned());
        self.coordinator_call(of, within, |channel| call(consumers_at(channel)))
            .await
    }

    /// Calls the service `Transactions` at the broker that coordinates a transactional id, as
    /// [`group_call`](Self::group_call) does.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn transaction_call<T, F, Fut>(
        &self,
        id: &str,
        within: Duration,
        mut call: F,
    ) -> Result<T, RpcError>
    where
        F: FnMut(TransactionsClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let of = Coordinated::TransactionalId(id.to_owned());
        self.coordinator_call(of, within, |channel| call(transactions_at(channel)))
            .await
    }

    /// Calls the service `Transactions` at any broker, as [`streams_call`](Self::streams_call) does.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn transactions_call<T, F, Fut>(&self, mut call: F) -> Result<T, RpcError>
    where
        F: FnMut(TransactionsClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.any_broker_call(None, |channel| call(transactions_at(channel)))
            .await
    }

    async fn coordinator_call<T, F, Fut>(
        &self,
        of: Coordinated,
        within: Duration,
        call: F,
    ) -> Result<T, RpcError>
    where
        F: FnMut(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let retry = self.inner.options.retry;
        let call = Mutex::new(call);
        // Some of these calls wait at the coordinator for what there is to do.
        retry
            .run_told(
                || None,
                || async {
                    let address = self.coordinator(&of).await?;
                    let channel = self.channel(&address)?;
                    let under_way = (*call.lock())(channel);
                    let answer = answered(&address, Some(within), under_way).await;
                    if let Err(error) = &answer
                        && (is_unreached(error) || error.code() == Some(ErrorCode::NotCoordinator))
                    {
                        self.inner.coordinators.lock().remove(&of);
                        // Who named it may hear of no changes any more.
                        self.inner.brokers.move_on(&self.bootstrap());
                    }
                    self.finish(&address, answer).await
                },
            )
            .await
    }

    /// The address of the broker that coordinates it, as last heard; asked for if it is not known.
    async fn coordinator(&self, of: &Coordinated) -> Result<Arc<str>, RpcError> {
        if let Some(address) = self.inner.coordinators.lock().get(of) {
            return Ok(address.clone());
        }
        let asked = self.bootstrap();
        let mut stub = ConsumersClient::new(self.channel(&asked)?);
        let (group, transactional_id) = match of.clone() {
            Coordinated::Group(group) => (group, String::new()),
            Coordinated::TransactionalId(id) => (String::new(), id),
        };
        let request = v1::FindCoordinatorRequest {
            group,
            transactional_id,
        };
        let found = async {
            match stub.find_coordinator(request).await {
                // A broker from before there were several coordinates every group itself.
                Err(status) if is_unknown_call(&status) => {
                    Ok(tonic::Response::new(v1::FindCoordinatorResponse::default()))
                }
                found => found,
            }
        };
        let found = answered(&asked, Some(ANSWER_WITHIN), found).await;
        if let Err(error) = &found
            && error.code() == Some(ErrorCode::NotCoordinator)
        {
            // It cannot know; another may.
            self.inner.brokers.move_on(&asked);
        }
        let found = self.finish(&asked, found).await?;
        let address = match found.address.as_str() {
            "" => asked,
            address => {
                check_address(address)?;
                self.inner.brokers.heard_of(std::iter::once(address));
                Arc::from(address)
            }
        };
        let mut coordinators = self.inner.coordinators.lock();
        if coordinators.len() >= MAX_COORDINATORS {
            coordinators.clear();
        }
        coordinators.insert(of.clone(), address.clone());
        Ok(address)
    }

    /// What a call that any broker answers waits for.
    pub(crate) fn waits_for(&self) -> String {
        format!("broker {} has not answered yet", self.bootstrap())
    }

    /// After a broker was not reached another is used.
    pub(crate) async fn finish<T>(
        &self,
        address: &str,
        mut answer: Result<T, RpcError>,
    ) -> Result<T, RpcError> {
        match &mut answer {
            Err(error) if is_unreached(error) => {
                self.inner.brokers.move_on(address);
                if let RpcError::Connection(error) = error {
                    self.judge(address, error).await;
                }
            }
            _ => self.inner.tls.lock().taken(),
        }
        answer
    }

    /// Says whether a refusal is final: by all brokers of the bootstrap list, and for a while if it comes after they had
    /// let the client in.
    async fn judge(&self, address: &str, error: &mut ConnectionError) {
        let connect = &self.inner.options.connect;
        if matches!(error, ConnectionError::Lost { .. }) && !self.inner.tls.lock().is_taken() {
            // gRPC does not say that an alert of TLS ended a call, but frames do. Boxed, since every call's future has room for
            // this one.
            let asked = Box::pin(DataConnection::connect(address, connect, None));
            if let Ok(Err(refused @ ConnectionError::Tls { .. })) =
                tokio::time::timeout(PROBE_WITHIN, asked).await
            {
                *error = refused;
            }
        }
        match error {
            ConnectionError::Login { error, .. } => {
                error.is_retryable |= self.inner.brokers.others_may_take(address);
            }
            ConnectionError::Tls { is_final, .. } => {
                let may_pass = self.inner.tls.lock().refused(Instant::now());
                *is_final = !self.inner.brokers.others_may_take(address) && !may_pass;
            }
            _ => {}
        }
    }

    /// A new data connection to the broker at `address`, whose frames go to `sink`.
    ///
    /// # Errors
    /// [`RpcError::Connection`]. A refusal is final once all brokers of the bootstrap list refuse the client.
    pub async fn connect_data(
        &self,
        address: &str,
        sink: Option<Arc<dyn FrameSink>>,
    ) -> Result<Arc<DataConnection>, RpcError> {
        check_address(address)?;
        let connected = DataConnection::connect(address, &self.inner.options.connect, sink).await;
        match connected {
            Ok(connection) => {
                self.inner.tls.lock().taken();
                Ok(connection)
            }
            Err(ConnectionError::Login { address, mut error }) if !error.is_retryable => {
                error.is_retryable = self.another_may_take(&address).await;
                Err(ConnectionError::Login { address, error }.into())
            }
            Err(ConnectionError::Tls {
                address, reason, ..
            }) => {
                let may_pass = self.inner.tls.lock().refused(Instant::now());
                let is_final = !may_pass && !self.another_may_take(&address).await;
                Err(ConnectionError::Tls {
                    address,
                    reason,
                    is_final,
                }
                .into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a broker of the bootstrap list lets the client in that the one at `address` refuses, or cannot be asked: it may
    /// have heard of the user already. Each is asked with a connection of its own, since one that is open says nothing of
    /// what counts now.
    async fn another_may_take(&self, address: &str) -> bool {
        for other in self.inner.brokers.listed() {
            if *other == *address {
                continue;
            }
            let asked = DataConnection::connect(&other, &self.inner.options.connect, None).await;
            match asked {
                Err(ConnectionError::Login { error, .. }) if !error.is_retryable => {}
                Err(ConnectionError::Tls { .. }) => {}
                _ => return true,
            }
        }
        false
    }

    /// The shared data connection to the broker at `address`, for
    /// [`DataConnection::call`]; connected anew if it was lost.
    ///
    /// # Errors
    /// [`RpcError::Connection`].
    pub async fn data(&self, address: &str) -> Result<Arc<DataConnection>, RpcError> {
        if let Some(connection) = self.inner.data.lock().get(address)
            && !connection.is_closed()
        {
            return Ok(connection.clone());
        }
        let connection = self.connect_data(address, None).await?;
        let mut known = self.inner.data.lock();
        // Another task may have been faster: one connection is enough.
        if let Some(other) = known.get(address)
            && !other.is_closed()
        {
            return Ok(other.clone());
        }
        known.insert(address.to_owned(), connection.clone());
        Ok(connection)
    }
}

/// Most groups and transactional ids whose coordinators are remembered.
const MAX_COORDINATORS: usize = 1024;
/// Descriptions of streams with thousands of lanes and groups are large.
const MAX_ANSWER_BYTES: usize = 64 << 20;

pub(crate) fn streams_at(channel: Channel) -> StreamsClient<Channel> {
    StreamsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn consumers_at(channel: Channel) -> ConsumersClient<Channel> {
    ConsumersClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES)
}

fn transactions_at(channel: Channel) -> TransactionsClient<Channel> {
    TransactionsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES)
}

/// A call's answer, taken apart; with a limit, one that takes longer counts as none.
pub(crate) async fn answered<T>(
    address: &str,
    within: Option<Duration>,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, RpcError> {
    let answer = match within {
        None => call.await,
        Some(within) => match tokio::time::timeout(within, call).await {
            Ok(answer) => answer,
            Err(_) => {
                return Err(ConnectionError::Lost {
                    address: address.into(),
                    reason: format!("no answer within {within:?}").into(),
                }
                .into());
            }
        },
    };
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| error_of_status(address, &status))
}

/// True if another broker should be asked: this one was not reached, or is about to stop.
fn is_unreached(error: &RpcError) -> bool {
    match error {
        RpcError::Connection(_) => true,
        RpcError::Broker(error) => error.code == ErrorCode::ShuttingDown,
        RpcError::BadAddress(_) | RpcError::BadAnswer(_) => false,
    }
}

/// True if the broker does not have the call.
fn is_unknown_call(status: &Status) -> bool {
    status.code() == Code::Unimplemented && wire_error_of_status(status).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_checked_at_once() {
        for bad in [
            "",
            "host",
            "host:",
            ":7600",
            "host:0",
            "host:70000",
            "a:1,b",
        ] {
            assert!(
                matches!(Client::connect_to(bad), Err(RpcError::BadAddress(_))),
                "{bad}"
            );
        }
        let client = Client::connect_to("a:1, [::1]:2").unwrap();
        assert_eq!(&*client.bootstrap(), "a:1");
    }
}
