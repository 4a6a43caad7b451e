//! A producer's settings.

use std::time::Duration;

pub use kera_protocol::batch::Compression;
use kera_protocol::batch::MAX_BATCH_BYTES;
use kera_rpc::{Client, ClientOptions, ConnectOptions, DEFAULT_BOOTSTRAP, RetryPolicy};

use crate::Producer;
use crate::error::BuildError;
use crate::settings::Settings;

/// Batches of one lane that may be under way: as many as a broker remembers of a producer.
pub const MAX_IN_FLIGHT_BATCHES: usize = 16;
/// Longest deadline accepted.
const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest that brokers can be told to let a transaction be open.
const LONGEST_TRANSACTION: Duration = Duration::from_secs(24 * 24 * 3600);
/// Smallest batch size accepted.
const MIN_BATCH_BYTES: usize = 1 << 10;

/// Settings of a producer to be; see [`Producer::builder`].
#[derive(Clone, Debug)]
pub struct ProducerBuilder {
    bootstrap: String,
    client: Option<Client>,
    connect: ConnectOptions,
    settings: Settings,
}

impl ProducerBuilder {
    pub(crate) fn new() -> Self {
        Self {
            bootstrap: DEFAULT_BOOTSTRAP.to_owned(),
            client: None,
            connect: ConnectOptions::default(),
            settings: Settings {
                stream: String::new(),
                batch_bytes: 128 << 10,
                linger: Duration::from_millis(1),
                memory_limit: 64 << 20,
                in_flight_batches: MAX_IN_FLIGHT_BATCHES,
                compression: Compression::None,
                deadline: Duration::from_secs(30),
                idempotent: true,
                transactional_id: None,
                transaction_timeout: Duration::from_secs(60),
                transaction_heartbeats: false,
                retry: RetryPolicy::default(),
            },
        }
    }

    /// Where to find a broker: HOST:PORT, or several separated by commas. Default 127.0.0.1:7600.
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: impl Into<String>) -> Self {
        self.bootstrap = bootstrap.into();
        self
    }

    /// Uses a client that exists already, in place of a bootstrap address.
    #[must_use]
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// The stream to append to. Required.
    #[must_use]
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.settings.stream = name.into();
        self
    }

    /// Bytes at which a batch is full and sent, before compression. Default 128 KiB, at least
    /// 1 KiB; the stream's own limit also holds.
    #[must_use]
    pub fn batch_size(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// How long a batch waits for more records before it is sent although not full. Default 1 ms.
    /// Must be below the deadline. With zero it is sent as soon as nothing is under way to its broker, so batches grow by
    /// themselves with the load.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Bytes of all batches that are open, waiting or under way, of all streams that [share](Producer::for_stream) it. Default
    /// 64 MiB.
    #[must_use]
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.settings.memory_limit = bytes;
        self
    }

    /// Batches of one lane that may be under way. Default and most: 16.
    #[must_use]
    pub fn max_in_flight_batches(mut self, batches: usize) -> Self {
        self.settings.in_flight_batches = batches;
        self
    }

    /// How batches are compressed. Default: not at all.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// How long after its first record a batch is given up when no acknowledgement came. Until then
    /// it is sent again after every error that may pass. Default 30 s, at most a day.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Whether the broker recognises batches that are sent again. Default true; without it, errors
    /// may lead to duplicates and to another order.
    #[must_use]
    pub fn idempotent(mut self, idempotent: bool) -> Self {
        self.settings.idempotent = idempotent;
        self
    }

    /// Appends records in transactions, under this id. A producer that begins under an id fences the one before it, and
    /// what that left open is aborted: so each instance of a program has an id of its own, the same after a restart.
    #[must_use]
    pub fn transactional_id(mut self, id: impl Into<String>) -> Self {
        self.settings.transactional_id = Some(id.into());
        self
    }

    /// How long a transaction may be open; the broker aborts it then, unless it is prepared. Default a minute, at most
    /// `transactions.max_timeout` of the brokers, which is 15 minutes if they do not say otherwise.
    #[must_use]
    pub fn transaction_timeout(mut self, timeout: Duration) -> Self {
        self.settings.transaction_timeout = timeout;
        self
    }

    /// Whether the [timeout](Self::transaction_timeout) of a transaction runs from the producer's last sign of life, and not
    /// from its begin: for stream engines, whose transactions are open from one checkpoint to the next, however long that
    /// takes. While a transaction is open the producer sends heartbeats from a task of the runtime. A program that hangs and
    /// does not end keeps its transaction open, and whoever reads what is committed waits for it. Brokers of earlier versions
    /// count from the begin. Default false.
    #[must_use]
    pub fn transaction_heartbeats(mut self, heartbeats: bool) -> Self {
        self.settings.transaction_heartbeats = heartbeats;
        self
    }

    /// Pauses between attempts. Their deadline is that of control calls, not of batches.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.settings.retry = retry;
        self
    }

    /// How connections behave; not used together with [`client`](Self::client).
    #[must_use]
    pub fn connect(mut self, connect: ConnectOptions) -> Self {
        self.connect = connect;
        self
    }

    /// Looks up the stream, opens the producer and starts its background task. To be called within a
    /// tokio runtime, which the producer uses from then on.
    ///
    /// # Errors
    /// [`BuildError`] if a setting is not usable, the stream does not exist or no broker answers
    /// within the retry policy's deadline.
    pub async fn build(self) -> Result<Producer, BuildError> {
        let wrong = |name, reason: &str| {
            Err(BuildError::Setting {
                name,
                reason: reason.to_owned(),
            })
        };
        let settings = self.settings;
        settings.check_stream()?;
        if !(MIN_BATCH_BYTES..=MAX_BATCH_BYTES).contains(&settings.batch_bytes) {
            return wrong("batch_size", "use 1 KiB to 64 MiB");
        }
        if settings.memory_limit < settings.batch_bytes {
            return wrong("memory_limit", "it is below batch_size");
        }
        if !(1..=MAX_IN_FLIGHT_BATCHES).contains(&settings.in_flight_batches) {
            return wrong("max_in_flight_batches", "use 1 to 16");
        }
        if settings.deadline.is_zero() || settings.deadline > LONGEST_DEADLINE {
            return wrong("deadline", "use more than zero and at most a day");
        }
        if settings.linger >= settings.deadline {
            return wrong("linger", "it is not below the deadline");
        }
        if settings.transactional_id.as_deref() == Some("") {
            return wrong("transactional_id", "it is empty");
        }
        if settings.transactional_id.is_some() && !settings.idempotent {
            return wrong("idempotent", "transactions need it");
        }
        let timeout_ms = settings.transaction_timeout.as_millis();
        if !(1..=LONGEST_TRANSACTION.as_millis()).contains(&timeout_ms) {
            return wrong("transaction_timeout", "use a millisecond to 24 days");
        }
        let client = match self.client {
            Some(client) => client,
            None => {
                let connect = ConnectOptions {
                    max_pending: usize::MAX,
                    max_queued_bytes: usize::MAX,
                    ..self.connect
                };
                Client::new(
                    &self.bootstrap,
                    ClientOptions {
                        retry: settings.retry,
                        connect,
                    },
                )?
            }
        };
        Producer::open(client, settings).await
    }
}
