//! gRPC channels, one for each broker.

use std::collections::HashMap;
use std::time::Duration;

use kera_rpc::{ClientTls, Login, RpcError, Way, check_address};
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

use crate::connector::channel;

/// A broker with calls under way that says nothing for so long is asked whether it lives, and given as
/// long again to answer.
const SILENCE: Duration = Duration::from_secs(3);

/// Channels to brokers by address, each connected with its first call and again when it was lost. To be
/// used within a tokio runtime.
#[derive(Debug)]
pub struct Channels {
    connect_within: Duration,
    way: Mutex<Way>,
    known: Mutex<HashMap<String, Channel>>,
}

impl Channels {
    /// None yet; `connect_within` bounds each attempt to connect.
    pub fn new(connect_within: Duration) -> Self {
        Self {
            connect_within,
            way: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// The same with TLS, if there is one.
    pub fn with_tls(self, tls: Option<ClientTls>) -> Self {
        self.use_tls(tls);
        self
    }

    /// The same as a user, if there is one.
    pub fn with_login(self, login: Option<Login>) -> Self {
        self.way.lock().login = login;
        self
    }

    /// Connects with `tls` from now on; calls under way go on over the connections that they have.
    pub fn use_tls(&self, tls: Option<ClientTls>) {
        // In this order, so that no channel of before is kept.
        self.way.lock().tls = tls;
        self.known.lock().clear();
    }

    /// The channel to the broker at `address`, HOST:PORT.
    ///
    /// # Errors
    /// [`RpcError::BadAddress`].
    pub fn to(&self, address: &str) -> Result<Channel, RpcError> {
        if let Some(channel) = self.known.lock().get(address) {
            return Ok(channel.clone());
        }
        check_address(address)?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| RpcError::BadAddress(address.to_owned()))?
            .connect_timeout(self.connect_within)
            .http2_keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE)
            .tcp_nodelay(true);
        let way = self.way.lock();
        let channel = channel(&way, endpoint, address);
        self.known
            .lock()
            .insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}
