//! Settings of consumers and readers to be.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::{LaneKey, Ordinal};
use kera_rpc::{Client, ClientOptions, ConnectOptions, DEFAULT_BOOTSTRAP, RetryPolicy};

use crate::config::{Fetch, FetchSettings, LaneRange, Order, Start};
use crate::consumer::Consumer;
use crate::error::ConsumeError;
use crate::group::{GroupSettings, Rebalance};
use crate::reader::Reader;

/// Smallest memory limit accepted.
const MIN_MEMORY: usize = 64 << 10;
/// Most leases a consumer holds unless told otherwise: all the lanes it is given,
const LANE_LEASES: usize = 4_096;
/// or a few ranges, so that one is processed while others are on their way.
const RANGE_LEASES: usize = 4;

/// What consumers and readers have in common.
#[derive(Clone)]
struct Common {
    bootstrap: String,
    client: Option<Client>,
    stream: String,
    fetch: FetchSettings,
    retry: RetryPolicy,
    connect: ConnectOptions,
}

impl Common {
    fn new() -> Self {
        Self {
            bootstrap: DEFAULT_BOOTSTRAP.to_owned(),
            client: None,
            stream: String::new(),
            fetch: FetchSettings::default(),
            retry: RetryPolicy::default(),
            connect: ConnectOptions::default(),
        }
    }

    fn check(&self) -> Result<Client, ConsumeError> {
        if self.stream.is_empty() {
            return Err(setting("stream", "it is empty: name a stream"));
        }
        if self.fetch.memory_limit < MIN_MEMORY {
            return Err(setting("memory_limit", "it is below 64 KiB: raise it"));
        }
        if self.fetch.fetch_bytes == 0 || self.fetch.fetch_bytes > u32::MAX as usize {
            return Err(setting(
                "fetch_bytes",
                "it must be 1 to 4,294,967,295 bytes",
            ));
        }
        match &self.client {
            Some(client) => Ok(client.clone()),
            None => Ok(Client::new(
                &self.bootstrap,
                ClientOptions {
                    retry: self.retry,
                    connect: self.connect.clone(),
                },
            )?),
        }
    }
}

fn setting(setting: &'static str, reason: impl Into<String>) -> ConsumeError {
    ConsumeError::Setting {
        setting,
        reason: reason.into(),
    }
}

macro_rules! common_settings {
    () => {
        /// Where to find a broker: HOST:PORT, or several separated by commas. Default
        /// 127.0.0.1:7600.
        pub fn bootstrap(mut self, bootstrap: impl Into<String>) -> Self {
            self.common.bootstrap = bootstrap.into();
            self
        }

        /// Uses a client that exists already, in place of a bootstrap address.
        pub fn client(mut self, client: Client) -> Self {
            self.common.client = Some(client);
            self
        }

        /// The stream to read. Required.
        pub fn stream(mut self, name: impl Into<String>) -> Self {
            self.common.stream = name.into();
            self
        }

        /// The rack that this process runs in, as brokers name theirs (`cluster.rack`): what lies in
        /// closed groups is read from a copy in the same rack where there is one, and from its owner
        /// otherwise. Without a rack copies are read only while the owner is away. A reader that is behind asks again
        /// each minute what lies there, and at once when the owner changes. Default none.
        ///
        /// Lanes that a group's members follow in order are read from their owners whatever the rack.
        pub fn rack(mut self, rack: impl Into<String>) -> Self {
            self.common.fetch.rack =
                Some(Arc::from(rack.into())).filter(|r: &Arc<str>| !r.is_empty());
            self
        }

        /// How batches come. Default [`Fetch::Push`].
        pub fn fetch(mut self, fetch: Fetch) -> Self {
            self.common.fetch.fetch = fetch;
            self
        }

        /// Bytes fetched ahead and not yet delivered: what waits here and what brokers may push
        /// without being asked. Default 32 MiB, at least 64 KiB.
        ///
        /// Each lane has a share of it, at least 16 KiB however many there are. Beyond that come, since a
        /// batch is not split, at most one batch of each lane, and what crosses with credit on its way;
        /// with [`Fetch::Pull`], and for ranges, one answer of each lane, of its share or
        /// [`fetch_bytes`](Self::fetch_bytes) if that is less.
        ///
        /// A batch whose records take more than this when they are decompressed is not read:
        /// [`ConsumeError::Undecodable`].
        pub fn memory_limit(mut self, bytes: usize) -> Self {
            self.common.fetch.memory_limit = bytes;
            self
        }

        /// Bytes of one answer or push, unless a single batch is larger. Default 256 KiB.
        pub fn fetch_bytes(mut self, bytes: usize) -> Self {
            self.common.fetch.fetch_bytes = bytes;
            self
        }

        /// Skips batches that cannot be read although they are as they were stored, and tells `hook` of each:
        /// records that do not decode, or take more than the memory limit when they are decompressed. Likewise
        /// groups of batches of which the broker's file is damaged or gone. Without
        /// this they are errors, and reading stands there. Every record is then looked at before its
        /// batch is delivered.
        pub fn skip_damaged(
            mut self,
            hook: impl Fn(&ConsumeError) + Send + Sync + 'static,
        ) -> Self {
            self.common.fetch.on_skip = Some(Arc::new(hook));
            self
        }

        /// How long a request for records waits at the broker. Default 5 s.
        pub fn poll_wait(mut self, wait: Duration) -> Self {
            self.common.fetch.poll_wait = wait;
            self
        }

        /// When control calls are tried again, and for how long. Default 30 s.
        pub fn retry(mut self, retry: RetryPolicy) -> Self {
            self.common.retry = retry;
            self
        }

        /// How data connections behave.
        pub fn connect_options(mut self, options: ConnectOptions) -> Self {
            self.common.connect = options;
            self
        }
    };
}

/// Settings of a consumer to be; see [`Consumer::builder`].
#[derive(Clone)]
#[must_use]
pub struct ConsumerBuilder {
    common: Common,
    group: String,
    client_name: String,
    order: Order,
    start: Start,
    session: Duration,
    max_leases: Option<usize>,
    range_bytes: u32,
    commit_interval: Option<Duration>,
    on_rebalance: Option<Arc<crate::group::RebalanceHook>>,
    resume_from: Option<Arc<crate::group::ResumeHook>>,
}

impl ConsumerBuilder {
    pub(crate) fn new() -> Self {
        Self {
            common: Common::new(),
            group: String::new(),
            client_name: "consumer".to_owned(),
            order: Order::default(),
            start: Start::default(),
            session: Duration::from_secs(10),
            max_leases: None,
            range_bytes: 1 << 20,
            commit_interval: Some(Duration::from_secs(1)),
            on_rebalance: None,
            resume_from: None,
        }
    }

    common_settings!();

    /// The consumer group. Required.
    pub fn group(mut self, name: impl Into<String>) -> Self {
        self.group = name.into();
        self
    }

    /// A name for people, shown by `kera group describe`. Default "consumer".
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// How the group shares the stream; the same for all of its members. Default [`Order::Lane`].
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Where the group starts if it does not exist yet. Default [`Start::Earliest`].
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// After this long without a sign of life the leases go to others. Default 10 s; the broker
    /// bounds it, 1 s to 5 min.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = session;
        self
    }

    /// Most leases held at a time. Default 4,096 by lane, 4 without order. Not with [`Order::Key`].
    pub fn max_leases(mut self, leases: usize) -> Self {
        self.max_leases = Some(leases);
        self
    }

    /// Bytes of a range wished for, without order. Default 1 MiB.
    pub fn range_bytes(mut self, bytes: u32) -> Self {
        self.range_bytes = bytes;
        self
    }

    /// Commits by itself, at this interval, what was delivered before the latest call of
    /// [`Consumer::next_batch`]. Default 1 s.
    pub fn auto_commit(mut self, interval: Duration) -> Self {
        self.commit_interval = Some(interval);
        self
    }

    /// Commits only what [`Consumer::commit`] is called for.
    pub fn manual_commit(mut self) -> Self {
        self.commit_interval = None;
        self
    }

    /// Is told of leases that come and go. Called on a background task: return quickly.
    pub fn on_rebalance(mut self, hook: impl Fn(Rebalance<'_>) + Send + Sync + 'static) -> Self {
        self.on_rebalance = Some(Arc::new(hook));
        self
    }

    /// Says where a lease of a lane resumes, given where the group stands there: for applications
    /// that store positions with their results. Ordinals below the group's are ignored. Not with [`Order::Key`].
    pub fn resume_from(
        mut self,
        hook: impl Fn(LaneKey, Ordinal) -> Option<Ordinal> + Send + Sync + 'static,
    ) -> Self {
        self.resume_from = Some(Arc::new(hook));
        self
    }

    /// Joins the group and starts to fetch.
    ///
    /// # Errors
    /// [`ConsumeError::Setting`] for settings that make no sense; [`ConsumeError::Rpc`] if no broker
    /// was reached within the retry policy's deadline, or the group was refused.
    pub async fn open(self) -> Result<Consumer, ConsumeError> {
        let client = self.common.check()?;
        if self.group.is_empty() {
            return Err(setting("group", "it is empty: name a consumer group"));
        }
        let max_leases = self.max_leases.unwrap_or(match self.order {
            Order::Lane | Order::Key => LANE_LEASES,
            Order::None => RANGE_LEASES,
        });
        if max_leases == 0 || max_leases > u32::MAX as usize {
            return Err(setting("max_leases", "it must be at least 1"));
        }
        if self.order == Order::Key && self.max_leases.is_some() {
            let reason = "with the order of keys each member takes its share: leave it out";
            return Err(setting("max_leases", reason));
        }
        if self.order == Order::Key && self.resume_from.is_some() {
            let reason = "with the order of keys a lane has more than one position: commit to the group, or use another order";
            return Err(setting("resume_from", reason));
        }
        let mut fetch = self.common.fetch;
        if self.order == Order::None {
            // One answer brings a whole range.
            fetch.fetch_bytes = fetch.fetch_bytes.max(self.range_bytes as usize);
        }
        let settings = GroupSettings {
            stream: self.common.stream,
            group: self.group,
            client_name: self.client_name,
            order: self.order,
            start: self.start,
            session: self.session,
            fetch: fetch.fetch,
            max_leases,
            range_bytes: self.range_bytes,
            commit_interval: self.commit_interval,
            on_rebalance: self.on_rebalance,
            resume_from: self.resume_from,
        };
        Consumer::open(client, settings, fetch).await
    }
}

/// Settings of a reader to be; see [`Reader::builder`].
#[derive(Clone)]
#[must_use]
pub struct ReaderBuilder {
    common: Common,
    start: Start,
    follow: bool,
    lanes: Option<Vec<(u32, u32)>>,
    ranges: Option<Vec<LaneRange>>,
}

impl ReaderBuilder {
    pub(crate) fn new() -> Self {
        Self {
            common: Common::new(),
            start: Start::default(),
            follow: true,
            lanes: None,
            ranges: None,
        }
    }

    common_settings!();

    /// Where to start in each lane. Default [`Start::Earliest`].
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Whether to wait for new records, or to end at the durable head as it is when the reader is
    /// opened. Default true.
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Reads only these (streamlet, lane). Default: all, also those added later when following.
    pub fn lanes(mut self, lanes: impl IntoIterator<Item = (u32, u32)>) -> Self {
        self.lanes = Some(lanes.into_iter().collect());
        self
    }

    /// Reads only these parts of lanes: no position is looked up, and nothing behind their ends is fetched. It takes the place of
    /// [`start`](Self::start), [`follow`](Self::follow) and [`lanes`](Self::lanes).
    ///
    /// A part that begins below the first record that is stored begins there; what lies between counts as
    /// [`Metrics::skipped_records`](crate::Metrics::skipped_records).
    pub fn ranges(mut self, ranges: impl IntoIterator<Item = LaneRange>) -> Self {
        self.ranges = Some(ranges.into_iter().collect());
        self
    }

    /// Looks up the positions and starts to fetch.
    ///
    /// # Errors
    /// [`ConsumeError::Setting`] for settings that make no sense; [`ConsumeError::UnknownLane`];
    /// [`ConsumeError::Rpc`] if no broker was reached within the retry policy's deadline.
    pub async fn open(self) -> Result<Reader, ConsumeError> {
        let client = self.common.check()?;
        if self.lanes.as_ref().is_some_and(Vec::is_empty) {
            return Err(setting("lanes", "none is chosen: name at least one"));
        }
        if let Some(ranges) = self.ranges {
            let mut named: Vec<_> = ranges.iter().map(|r| (r.streamlet, r.lane)).collect();
            named.sort_unstable();
            if named.is_empty() {
                return Err(setting("ranges", "there is none: name at least one"));
            }
            if named.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(setting(
                    "ranges",
                    "a lane is named twice: name one part of it",
                ));
            }
            return Reader::open_ranges(client, self.common.stream, self.common.fetch, &ranges)
                .await;
        }
        Reader::open(
            client,
            self.common.stream,
            self.common.fetch,
            self.start,
            self.follow,
            self.lanes,
        )
        .await
    }
}
