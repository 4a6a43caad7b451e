//! How brokers are reached.

use std::fmt;
use std::time::Duration;

use kera_rpc::{
    Client, ClientOptions, ClientTls, ConnectOptions, DEFAULT_BOOTSTRAP, Login, RetryPolicy,
    RpcError,
};

/// Brokers to begin with, how to connect to them, and how long they are waited for.
#[derive(Clone)]
pub struct Connection {
    bootstrap: String,
    tls: Option<ClientTls>,
    login: Option<Login>,
    timeout: Duration,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("bootstrap", &self.bootstrap)
            .finish_non_exhaustive()
    }
}

impl Default for Connection {
    fn default() -> Self {
        Self::to(DEFAULT_BOOTSTRAP)
    }
}

impl Connection {
    /// To the brokers at HOST:PORT, several separated by commas.
    pub fn to(bootstrap: impl Into<String>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            tls: None,
            login: None,
            timeout: Duration::from_secs(60),
        }
    }

    /// With TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// As a user.
    #[must_use]
    pub fn with_login(mut self, login: Login) -> Self {
        self.login = Some(login);
        self
    }

    /// How long a query goes on without an answer of the brokers that it needs, and an `INSERT` without an acknowledgement, before it fails.
    /// Default 60 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A client for control calls and reading.
    pub(crate) fn client(&self) -> Result<Client, RpcError> {
        self.client_with(self.options())
    }

    /// One for producers, whose own limit on memory holds.
    pub(crate) fn producing_client(&self) -> Result<Client, RpcError> {
        self.client_with(ConnectOptions {
            max_pending: usize::MAX,
            max_queued_bytes: usize::MAX,
            ..self.options()
        })
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            tls: self.tls.clone(),
            login: self.login.clone(),
            ..ConnectOptions::default()
        }
    }

    fn client_with(&self, connect: ConnectOptions) -> Result<Client, RpcError> {
        let options = ClientOptions {
            retry: RetryPolicy::within(self.timeout),
            connect,
        };
        Client::new(&self.bootstrap, options)
    }
}
