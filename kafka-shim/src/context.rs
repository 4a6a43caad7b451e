//! What a handler knows of the request beside its body.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kafka_protocol::protocol::StrBytes;
use kera_broker::Shared;
use kera_broker::config::{ListenerName, Security};
use kera_broker::metrics::{Counter, Histogram, Labels, Metrics};
use kera_broker::principal::Principal;

use crate::apis::Api;
use crate::fetch::SessionRoom;
use crate::reply_room::{ReplyRoom, Turns};
use crate::shares::ShareSessions;

/// A listener as clients are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenerInfo {
    /// Host that clients are to connect to.
    pub(crate) advertised_host: String,
    /// Port that clients are to connect to.
    pub(crate) advertised_port: i32,
    /// Its place in the configuration: clients are told other brokers' listeners of the same place.
    pub(crate) number: usize,
    /// Its name in the configuration, if it has one: then other brokers' listeners of the same name.
    pub(crate) name: Option<ListenerName>,
    /// What a client needs here.
    pub(crate) security: Security,
}

/// Settings of the Kafka side.
#[derive(Clone, Debug)]
pub(crate) struct KafkaSettings {
    /// Longest reply to a request other than Fetch, in bytes.
    pub(crate) max_reply_bytes: usize,
    /// Whose turn it is to answer with much.
    pub(crate) turns: Turns,
    /// Partitions of fetch sessions, of all connections.
    pub(crate) sessions: SessionRoom,
    /// What is counted of requests, by number of their API.
    pub(crate) requests: HashMap<i16, RequestMetrics>,
}

/// What is counted of the requests of one API.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics {
    labels: Labels,
    count: Counter,
    /// From the first answer on: a scrape tells no times of APIs that nobody uses.
    seconds: OnceLock<Histogram>,
}

impl RequestMetrics {
    /// Of the API of this name.
    pub(crate) fn new(metrics: &Metrics, api: &str) -> Self {
        let labels = vec![("api", api.to_owned())];
        Self {
            count: metrics.kafka_requests.get_or_create_owned(&labels),
            labels,
            seconds: OnceLock::new(),
        }
    }

    /// A request's turn has come.
    pub(crate) fn taken(&self) {
        self.count.inc();
    }

    /// A request is answered whose turn came then.
    pub(crate) fn answered(&self, metrics: &Metrics, taken: Instant) {
        let family = &metrics.kafka_request_seconds;
        let seconds = || family.get_or_create_owned(&self.labels);
        let seconds = self.seconds.get_or_init(seconds);
        seconds.observe(taken.elapsed().as_secs_f64());
    }
}

/// A request's surroundings.
#[derive(Clone)]
pub(crate) struct Ctx {
    /// The broker.
    pub(crate) shared: Arc<Shared>,
    /// Where the client connected.
    pub(crate) listener: Arc<ListenerInfo>,
    /// Settings.
    pub(crate) settings: Arc<KafkaSettings>,
    /// The client's name for itself.
    pub(crate) client_id: Option<StrBytes>,
    /// Who the client is.
    pub(crate) principal: Principal,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// Share sessions of the connection.
    pub(crate) shares: Arc<ShareSessions>,
    /// What is asked for: the rights that it needs. Of a connection's own requests each names its API.
    pub(crate) api: &'static Api,
    /// Of the request's reply.
    pub(crate) room: Arc<ReplyRoom>,
}

impl Ctx {
    /// Partitions of a topic whose creator names no number.
    pub(crate) fn default_partitions(&self) -> i32 {
        i32::try_from(self.shared.live().kafka.default_partitions).unwrap_or(i32::MAX)
    }

    /// Longest request, in bytes.
    pub(crate) fn max_request_bytes(&self) -> usize {
        usize::try_from(self.shared.live().kafka.max_request_bytes).unwrap_or(usize::MAX)
    }
}
