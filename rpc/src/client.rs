//! Finding brokers and streams.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::error::ErrorCode;
use kera_protocol::v1::{self, CallMethod};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::brokers::Brokers;
use crate::call_links::CallLinks;
use crate::control_call::ControlCall;
use crate::data::{ConnectOptions, DataConnection, FrameSink};
use crate::error::{ChangeError, ConnectionError, RpcError};
use crate::meta::StreamMeta;
use crate::refusals::Refusals;
use crate::retry::RetryPolicy;
use crate::way::check_address;

/// Where clients look for a broker unless told otherwise.
pub const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:7600";

/// How long one broker is given for an answer that costs it next to nothing; then another is asked. A
/// broker that was stopped keeps its connections and says nothing.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How a [`Client`] behaves.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// When to try a call again.
    pub retry: RetryPolicy,
    /// For data connections; its connect timeout also holds for control calls.
    pub connect: ConnectOptions,
}

/// Reaches brokers: control calls, data connections, and a cache of streams. Cheap to clone; clones share
/// everything. To be used within a tokio runtime.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) brokers: Brokers,
    /// Brokers that coordinate consumer groups, by group.
    coordinators: Mutex<HashMap<Coordinated, Arc<str>>>,
    pub(crate) options: ClientOptions,
    pub(crate) calls: CallLinks,
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
                calls: CallLinks::new(&options.connect),
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

    /// Makes a control call that any broker answers, with retries by the client's policy, moving on through the
    /// brokers known when one does not answer: `client.call(v1::ListStreamsRequest::default())`.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn call<R: ControlCall>(&self, request: R) -> Result<R::Reply, RpcError> {
        self.call_any(None, &request, |_| ()).await
    }

    /// Makes a call that changes something, at any broker as [`call`](Self::call) does.
    ///
    /// # Errors
    /// What the last attempt came to, and whether an earlier one may have made the change.
    pub async fn change<R: ControlCall>(&self, request: R) -> Result<R::Reply, ChangeError> {
        let attempts = Attempts::default();
        let changed = self.call_any(None, &request, |error| attempts.note(error));
        changed.await.map_err(|error| attempts.ended(error))
    }

    /// Deletes a stream: the one that has the name now. What arrives late, as a connection was cut off, deletes no other one that
    /// was made under its name since. An earlier broker deletes what has the name when it hears of it.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn delete_stream(&self, name: &str) -> Result<(), ChangeError> {
        let found = self.refresh(name).await?;
        let request = v1::DeleteStreamRequest {
            name: name.to_owned(),
            id: found.id.as_bytes().to_vec().into(),
        };
        self.change(request).await?;
        self.forget(name);
        Ok(())
    }

    /// Makes a call at any broker, each of which is given `within` to answer; `failed` hears of each attempt that
    /// failed.
    pub(crate) async fn call_any<R: ControlCall>(
        &self,
        within: Option<Duration>,
        request: &R,
        failed: impl Fn(&RpcError),
    ) -> Result<R::Reply, RpcError> {
        let (retry, failed) = (self.inner.options.retry, &failed);
        retry
            .run_told(
                || Some(self.waits_for(R::METHOD)),
                || async move {
                    let address = self.bootstrap();
                    let answer = self.call_at(&address, within, request).await;
                    answer.inspect_err(failed)
                },
            )
            .await
    }

    /// Makes a call once at the broker at `address`.
    pub(crate) async fn call_at<R: ControlCall>(
        &self,
        address: &str,
        within: Option<Duration>,
        request: &R,
    ) -> Result<R::Reply, RpcError> {
        let answer = self.inner.calls.call(address, within, request).await;
        self.finish(address, answer)
    }

    /// Makes a call once at the broker in use.
    ///
    /// # Errors
    /// [`RpcError`].
    pub async fn call_once<R: ControlCall>(
        &self,
        within: Duration,
        request: R,
    ) -> Result<R::Reply, RpcError> {
        self.call_at(&self.bootstrap(), Some(within), &request)
            .await
    }

    /// Makes a call at the broker that coordinates `group`, with retries by the client's policy. A coordinator that
    /// does not answer `within` is looked up anew, as is one that says that it is none.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn group_call<R: ControlCall>(
        &self,
        group: &str,
        within: Duration,
        request: R,
    ) -> Result<R::Reply, RpcError> {
        self.group_call_anew(group, within, || request.clone())
            .await
    }

    /// As [`group_call`](Self::group_call); each attempt makes its request anew.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn group_call_anew<R: ControlCall>(
        &self,
        group: &str,
        within: Duration,
        request: impl Fn() -> R,
    ) -> Result<R::Reply, RpcError> {
        let of = Coordinated::Group(group.to_owned());
        self.coordinator_call(of, within, request, |_| ()).await
    }

    /// Makes a call that changes something of `group`, as [`group_call`](Self::group_call) does.
    ///
    /// # Errors
    /// What the last attempt came to, and whether an earlier one may have made the change.
    pub async fn group_change<R: ControlCall>(
        &self,
        group: &str,
        within: Duration,
        request: R,
    ) -> Result<R::Reply, ChangeError> {
        let attempts = Attempts::default();
        let of = Coordinated::Group(group.to_owned());
        let failed = |error: &RpcError| attempts.note(error);
        let changed = self.coordinator_call(of, within, || request.clone(), failed);
        changed.await.map_err(|error| attempts.ended(error))
    }

    /// Makes a call at the broker that coordinates a transactional id, as [`group_call`](Self::group_call) does.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn transaction_call<R: ControlCall>(
        &self,
        id: &str,
        within: Duration,
        request: R,
    ) -> Result<R::Reply, RpcError> {
        self.transaction_change(id, within, request, |_| ()).await
    }

    /// As [`transaction_call`](Self::transaction_call); `failed` hears of each attempt that failed.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn transaction_change<R: ControlCall>(
        &self,
        id: &str,
        within: Duration,
        request: R,
        failed: impl Fn(&RpcError),
    ) -> Result<R::Reply, RpcError> {
        let of = Coordinated::TransactionalId(id.to_owned());
        self.coordinator_call(of, within, || request.clone(), failed)
            .await
    }

    async fn coordinator_call<R: ControlCall>(
        &self,
        of: Coordinated,
        within: Duration,
        request: impl Fn() -> R,
        failed: impl Fn(&RpcError),
    ) -> Result<R::Reply, RpcError> {
        let attempt = || async {
            let address = self.coordinator(&of).await?;
            let request = request();
            let answer = self.inner.calls.call(&address, Some(within), &request);
            let answer = answer.await;
            if let Err(error) = &answer
                && (is_unreached(error) || error.code() == Some(ErrorCode::NotCoordinator))
            {
                self.inner.coordinators.lock().remove(&of);
                // Who named it may hear of no changes any more.
                self.inner.brokers.move_on(&self.bootstrap());
            }
            self.finish(&address, answer).inspect_err(&failed)
        };
        let waits_for = || self.waits_for_coordinator(&of, R::METHOD);
        self.inner.options.retry.run_told(waits_for, attempt).await
    }

    /// What a call to a coordinator waits for; `None` of a method that may wait there for what there is to do.
    fn waits_for_coordinator(&self, of: &Coordinated, method: CallMethod) -> Option<String> {
        let is_at_once = matches!(
            method,
            CallMethod::DescribeGroup | CallMethod::ResetGroup | CallMethod::DeleteGroup
        );
        if !is_at_once {
            return None;
        }
        let known = self.inner.coordinators.lock().get(of).cloned();
        Some(match known {
            Some(address) => format!("broker {address} has not answered {method:?} yet"),
            None => self.waits_for(CallMethod::FindCoordinator),
        })
    }

    /// The address of the broker that coordinates it, as last heard; asked for if it is not known.
    async fn coordinator(&self, of: &Coordinated) -> Result<Arc<str>, RpcError> {
        if let Some(address) = self.inner.coordinators.lock().get(of) {
            return Ok(address.clone());
        }
        let asked = self.bootstrap();
        let (group, transactional_id) = match of.clone() {
            Coordinated::Group(group) => (group, String::new()),
            Coordinated::TransactionalId(id) => (String::new(), id),
        };
        let request = v1::FindCoordinatorRequest {
            group,
            transactional_id,
        };
        let found = self.call_at(&asked, Some(ANSWER_WITHIN), &request).await;
        if let Err(error) = &found
            && error.code() == Some(ErrorCode::NotCoordinator)
        {
            // It cannot know; another may.
            self.inner.brokers.move_on(&asked);
        }
        let address = match found?.address.as_str() {
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
    pub(crate) fn waits_for(&self, method: CallMethod) -> String {
        format!(
            "broker {} has not answered {method:?} yet",
            self.bootstrap()
        )
    }

    /// After a broker was not reached another is used.
    fn finish<T>(&self, address: &str, mut answer: Result<T, RpcError>) -> Result<T, RpcError> {
        match &mut answer {
            Err(error) if is_unreached(error) => {
                self.inner.brokers.move_on(address);
                if let RpcError::Connection(error) = error {
                    self.judge(address, error);
                }
            }
            _ => self.inner.tls.lock().taken(),
        }
        answer
    }

    /// Says whether a refusal is final: by all brokers of the bootstrap list, and for a while if it comes after they had
    /// let the client in.
    fn judge(&self, address: &str, error: &mut ConnectionError) {
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

/// True if another broker should be asked: this one was not reached, or is about to stop.
fn is_unreached(error: &RpcError) -> bool {
    match error {
        RpcError::Connection(_) => true,
        RpcError::Broker(error) => error.code == ErrorCode::ShuttingDown,
        RpcError::BadAddress(_) | RpcError::BadAnswer(_) => false,
    }
}

/// Attempts to make one change.
#[derive(Default)]
struct Attempts {
    /// What the first came to that may have made it.
    first: Mutex<Option<RpcError>>,
}

impl Attempts {
    fn note(&self, error: &RpcError) {
        if error.is_uncertain() && error.is_retryable() {
            self.first.lock().get_or_insert_with(|| error.clone());
        }
    }

    /// The last of them came to `error`, which needs no other if it is uncertain itself.
    fn ended(&self, error: RpcError) -> ChangeError {
        let first = self.first.lock().take();
        ChangeError {
            earlier: first.filter(|_| !error.is_uncertain()),
            error,
        }
    }
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

    #[tokio::test]
    async fn whoever_waits_is_told_for_which_call() {
        let client = Client::connect_to("a:1").unwrap();
        let told = client.waits_for(CallMethod::DescribeStream);
        assert_eq!(told, "broker a:1 has not answered DescribeStream yet");
        let of = Coordinated::Group("g".to_owned());
        let of_group = |method| client.waits_for_coordinator(&of, method);
        assert_eq!(of_group(CallMethod::Acquire), None, "it waits for records");
        let finding = "broker a:1 has not answered FindCoordinator yet";
        assert_eq!(
            of_group(CallMethod::DescribeGroup).as_deref(),
            Some(finding)
        );
        let known = (of.clone(), Arc::from("b:2"));
        client.inner.coordinators.lock().extend([known]);
        let told = "broker b:2 has not answered DescribeGroup yet";
        assert_eq!(of_group(CallMethod::DescribeGroup).as_deref(), Some(told));
    }
}
