//! Connections for control calls. Those to one broker are shared by all callers, and carry nothing else: on a connection
//! with appends a heartbeat would wait behind them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{Frame, FrameKind, MAX_CALLS};
use kera_protocol::v1;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::control_call::ControlCall;
use crate::data::{ConnectOptions, DataConnection};
use crate::error::{ConnectionError, RpcError};

/// A broker with calls under way that says nothing for three times as long is lost.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// A connection without calls is closed after so long: most clients call when they begin, and then no more.
const IDLE: Duration = Duration::from_secs(60);
/// What a broker is given beyond the caller's patience before it gives a call up: by then nobody waits.
const GRACE: Duration = Duration::from_secs(1);

/// One connection, or why there is none: told to all who wait for it.
type Link = OnceCell<Result<Arc<DataConnection>, ConnectionError>>;

/// Connections for control calls to brokers, by address. Each is made when it is needed.
pub(crate) struct CallLinks {
    options: ConnectOptions,
    /// More than one where more calls are under way than one may have.
    known: Mutex<HashMap<String, Vec<Arc<Link>>>>,
}

impl CallLinks {
    /// None yet.
    pub(crate) fn new(options: &ConnectOptions) -> Self {
        Self {
            options: ConnectOptions {
                keepalive: options.keepalive.min(KEEPALIVE),
                idle_timeout: Some(IDLE),
                max_pending: MAX_CALLS,
                ..options.clone()
            },
            known: Mutex::default(),
        }
    }

    /// Asks the broker at `address` once. A broker that has not answered `within` counts as lost.
    pub(crate) async fn call<R: ControlCall>(
        &self,
        address: &str,
        within: Option<Duration>,
        request: &R,
    ) -> Result<R::Reply, RpcError> {
        let header = v1::CallRequest {
            method: R::METHOD.into(),
            deadline_ms: within.map_or(0, deadline_ms),
        };
        let body = Bytes::from(request.encode_to_vec());
        // Boxed: every caller's future would have room for all that connecting takes.
        let call: Pin<Box<dyn Future<Output = Result<Frame, RpcError>> + Send + '_>> =
            Box::pin(self.exchange(address, header, body));
        let reply = match within {
            None => call.await?,
            Some(within) => match tokio::time::timeout(within, call).await {
                Ok(reply) => reply?,
                Err(_) => return Err(silent(address, within).into()),
            },
        };
        let told: v1::CallResponse = reply.message().map_err(|error| bad(address, &error))?;
        if told.error != 0 {
            return Err(WireError::from_number(told.error, told.message).into());
        }
        let bytes = reply.body.len();
        if bytes > R::MAX_REPLY_BYTES {
            let most = R::MAX_REPLY_BYTES;
            let text = format!("{bytes} bytes are more than the {most} that it can have");
            return Err(bad(address, &text));
        }
        R::Reply::decode(reply.body).map_err(|error| bad(address, &error))
    }

    async fn exchange(
        &self,
        address: &str,
        header: v1::CallRequest,
        body: Bytes,
    ) -> Result<Frame, RpcError> {
        let (mut number, mut is_anew) = (0, false);
        loop {
            let link = self.link(address, number);
            let connected = link.get_or_init(|| self.connect(address)).await;
            let connection = match connected {
                Ok(connection) => connection,
                Err(error) => {
                    self.forget(address, &link);
                    return Err(error.clone().into());
                }
            };
            if !connection.takes_calls() {
                self.forget(address, &link);
                let text = format!(
                    "broker {address} takes no control calls as frames; a newer broker is needed"
                );
                return Err(WireError::new(ErrorCode::UnsupportedVersion, text).into());
            }
            match connection.begin(FrameKind::Call, &header, body.clone()) {
                Ok(reply) => {
                    let reply = reply.await;
                    if number > 0 && connection.pending() == 0 {
                        self.forget(address, &link);
                    }
                    return Ok(reply?);
                }
                // Its calls are as many as there may be.
                Err(ConnectionError::Full { .. }) => number += 1,
                // It ended before this call, of which nothing was sent.
                Err(error) if connection.is_closed() => {
                    self.forget(address, &link);
                    if is_anew {
                        let (address, reason) = (address.into(), error.to_string().into());
                        return Err(ConnectionError::Connect { address, reason }.into());
                    }
                    is_anew = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn connect(&self, address: &str) -> Result<Arc<DataConnection>, ConnectionError> {
        DataConnection::connect(address, &self.options, None).await
    }

    fn link(&self, address: &str, number: usize) -> Arc<Link> {
        let mut known = self.known.lock();
        let links = match known.get_mut(address) {
            Some(links) => links,
            None => known.entry(address.to_owned()).or_default(),
        };
        if let Some(link) = links.get(number) {
            return link.clone();
        }
        let link = Arc::new(Link::new());
        links.push(link.clone());
        link
    }

    fn forget(&self, address: &str, link: &Arc<Link>) {
        if let Some(links) = self.known.lock().get_mut(address) {
            links.retain(|known| !Arc::ptr_eq(known, link));
        }
    }
}

fn deadline_ms(within: Duration) -> u32 {
    u32::try_from((within + GRACE).as_millis()).unwrap_or(u32::MAX)
}

/// It has not answered in time.
fn silent(address: &str, within: Duration) -> ConnectionError {
    ConnectionError::Lost {
        address: address.into(),
        reason: format!("no answer within {within:?}").into(),
    }
}

fn bad(address: &str, why: &dyn std::fmt::Display) -> RpcError {
    RpcError::BadAnswer(format!("broker {address}: {why}"))
}
