//! Finding brokers and streams.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kera_protocol::v1;
use parking_lot::Mutex;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::data::{ConnectOptions, DataConnection, FrameSink};
use crate::error::{RpcError, error_of_status};
use crate::meta::StreamMeta;
use crate::retry::RetryPolicy;
use crate::v1::consumers_client::ConsumersClient;
use crate::v1::streams_client::StreamsClient;

/// Where clients look for a broker unless told otherwise.
pub const DEFAULT_BOOTSTRAP: &str = "127.0.0.1:7600";

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
    inner: Arc<Inner>,
}

struct Inner {
    bootstrap: Vec<String>,
    /// The bootstrap broker in use; moves on when it cannot be reached.
    current: AtomicUsize,
    options: ClientOptions,
    channels: Mutex<HashMap<String, Channel>>,
    streams: Mutex<HashMap<String, Arc<StreamMeta>>>,
    data: Mutex<HashMap<String, Arc<DataConnection>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("bootstrap", &self.inner.bootstrap)
            .finish_non_exhaustive()
    }
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
                bootstrap,
                current: AtomicUsize::new(0),
                options,
                channels: Mutex::default(),
                streams: Mutex::default(),
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

    /// HOST:PORT of the bootstrap broker in use.
    pub fn bootstrap(&self) -> &str {
        let index = self.inner.current.load(Ordering::Relaxed);
        &self.inner.bootstrap[index % self.inner.bootstrap.len()]
    }

    /// The gRPC channel to the broker at `address`, connected with its first call.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn channel(&self, address: &str) -> Result<Channel, RpcError> {
        if let Some(channel) = self.inner.channels.lock().get(address) {
            return Ok(channel.clone());
        }
        check_address(address)?;
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| RpcError::BadAddress(address.to_owned()))?
            .connect_timeout(self.inner.options.connect.connect_timeout)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
            .connect_lazy();
        self.inner
            .channels
            .lock()
            .insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// The stub of the service `Streams` at the bootstrap broker; for many calls in a row, or for
    /// no retries. See [`streams_call`](Self::streams_call).
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn streams(&self) -> Result<StreamsClient<Channel>, RpcError> {
        Ok(StreamsClient::new(self.channel(self.bootstrap())?)
            .max_decoding_message_size(MAX_ANSWER_BYTES))
    }

    /// The stub of the service `Consumers` at the bootstrap broker.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn consumers(&self) -> Result<ConsumersClient<Channel>, RpcError> {
        Ok(ConsumersClient::new(self.channel(self.bootstrap())?)
            .max_decoding_message_size(MAX_ANSWER_BYTES))
    }

    /// Calls the service `Streams`, with retries by the client's policy, moving on through the
    /// bootstrap brokers when one is not reached:
    /// `client.streams_call(|mut stub| async move { stub.list_streams(request).await })`.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn streams_call<T, F, Fut>(&self, mut call: F) -> Result<T, RpcError>
    where
        F: FnMut(StreamsClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let retry = self.inner.options.retry;
        retry
            .run(|| {
                let attempt = self.streams().map(&mut call);
                async move { self.finish(attempt?.await) }
            })
            .await
    }

    /// Calls the service `Consumers`, as [`streams_call`](Self::streams_call) does.
    ///
    /// # Errors
    /// What the last attempt returned.
    pub async fn consumers_call<T, F, Fut>(&self, mut call: F) -> Result<T, RpcError>
    where
        F: FnMut(ConsumersClient<Channel>) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let retry = self.inner.options.retry;
        retry
            .run(|| {
                let attempt = self.consumers().map(&mut call);
                async move { self.finish(attempt?.await) }
            })
            .await
    }

    /// Takes a call's answer apart; after a lost connection the next bootstrap broker is used.
    fn finish<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, RpcError> {
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => {
                let error = error_of_status(self.bootstrap(), &status);
                if matches!(error, RpcError::Connection(_)) {
                    self.inner.current.fetch_add(1, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// The stream called `name`, from the cache if it was asked for before.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn stream(&self, name: &str) -> Result<Arc<StreamMeta>, RpcError> {
        if let Some(meta) = self.inner.streams.lock().get(name) {
            return Ok(meta.clone());
        }
        self.refresh(name).await
    }

    /// The stream called `name`, asked for anew, as after `STALE_LANES` or `NOT_OWNER`.
    ///
    /// # Errors
    /// [`RpcError`], with code `UNKNOWN_STREAM` if there is none.
    pub async fn refresh(&self, name: &str) -> Result<Arc<StreamMeta>, RpcError> {
        let request = v1::GetStreamRequest {
            name: name.to_owned(),
        };
        let answer = self
            .streams_call(|mut stub| {
                let request = request.clone();
                async move { stub.get_stream(request).await }
            })
            .await;
        match answer {
            Ok(info) => {
                let meta = Arc::new(StreamMeta::from_info(info, self.bootstrap())?);
                self.inner
                    .streams
                    .lock()
                    .insert(name.to_owned(), meta.clone());
                Ok(meta)
            }
            Err(error) => {
                self.forget(name);
                Err(error)
            }
        }
    }

    /// Drops the stream called `name` from the cache.
    pub fn forget(&self, name: &str) {
        self.inner.streams.lock().remove(name);
    }

    /// A new data connection to the broker at `address`, whose frames go to `sink`.
    ///
    /// # Errors
    /// [`RpcError::Connection`].
    pub async fn connect_data(
        &self,
        address: &str,
        sink: Option<Arc<dyn FrameSink>>,
    ) -> Result<Arc<DataConnection>, RpcError> {
        check_address(address)?;
        Ok(DataConnection::connect(address, &self.inner.options.connect, sink).await?)
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

/// Descriptions of streams with thousands of lanes and groups are large.
const MAX_ANSWER_BYTES: usize = 64 << 20;

fn check_address(address: &str) -> Result<(), RpcError> {
    let valid = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0));
    if valid {
        Ok(())
    } else {
        Err(RpcError::BadAddress(address.to_owned()))
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
        assert_eq!(client.bootstrap(), "a:1");
    }
}
