//! What a client may do, by Kafka's names: topics for streams. What each API needs is in the [table of APIs](crate::apis).

use kafka_protocol::error::ResponseError;
use kera_broker::access::Who;
use kera_broker::audit::{Attempt, Change};
use kera_broker::config::{Listener, ListenerName, Via};
use kera_metadata::access::{CLUSTER_NAME, Kind, Operation};
use kera_protocol::error::WireError;

use crate::apis::Api;
use crate::context::Ctx;
use crate::refusal::Refusal;
use crate::topic::{self, TopicRef};

/// What may be done to a topic, as far as Kera does it; of an internal one, whose records are the brokers' own; to a
/// group; to the cluster.
const TOPIC: &[Operation] = &[
    Operation::Read,
    Operation::Write,
    Operation::Create,
    Operation::Delete,
    Operation::Alter,
    Operation::Describe,
    Operation::DescribeConfigs,
    Operation::AlterConfigs,
];
const INTERNAL_TOPIC: &[Operation] = &[Operation::Describe, Operation::DescribeConfigs];
const GROUP: &[Operation] = &[Operation::Read, Operation::Delete, Operation::Describe];
const CLUSTER: &[Operation] = &[
    Operation::Create,
    Operation::Alter,
    Operation::Describe,
    Operation::DescribeConfigs,
    Operation::AlterConfigs,
    Operation::IdempotentWrite,
];

impl Ctx {
    fn who(&self) -> Who<'_> {
        Who {
            principal: &self.principal,
            host: self.peer.ip(),
            via: self.via(),
        }
    }

    /// The listener that the client came in by.
    pub(crate) fn via(&self) -> Via {
        let name = self.listener.name.as_ref();
        Via::new(Listener::Kafka, name.map(ListenerName::as_str))
    }

    /// The client, who may do so, begins to change something.
    pub(crate) fn attempt(&self, change: Change) -> Attempt {
        self.shared.audit.attempt(self.who(), change)
    }

    /// Whether the client may do this. What the table of APIs does not have of the request's own is a defect, and denied.
    pub(crate) fn may_also(&self, operation: Operation, thing: (Kind, &str)) -> bool {
        self.permits(self.api, Some(operation), thing)
    }

    /// Whether the client may do to something what a request of an API does to things of its kind.
    pub(crate) fn may_by(&self, api: &Api, thing: (Kind, &str)) -> bool {
        self.permits(api, api.operation(thing.0), thing)
    }

    fn permits(&self, api: &Api, operation: Option<Operation>, thing: (Kind, &str)) -> bool {
        let access = &self.shared.access;
        match operation.filter(|operation| api.has(thing.0, *operation)) {
            Some(operation) => access.permits(self.who(), operation, thing),
            None if !access.is_enforced() => true,
            None => {
                tracing::error!(api = api.name, kind = %thing.0, ?operation, "the table of APIs has no such right");
                false
            }
        }
    }

    /// Checks that the rules are not too old to decide about the client's requests.
    ///
    /// # Errors
    /// Why nothing can be decided now.
    pub(crate) fn check_age(&self) -> Result<(), WireError> {
        self.shared.access.check_age(self.who())
    }

    /// Whether the client may do what it asks for to a topic.
    pub(crate) fn may_topic(&self, name: &str) -> bool {
        self.may_by(self.api, (Kind::Stream, name))
    }

    /// True of a topic, by name or id, to which the client may not do what the API does; what has no name is for others to
    /// refuse.
    pub(crate) fn is_denied(&self, api: &Api, topic: &TopicRef) -> bool {
        let name = || topic.name(&self.shared);
        self.shared.access.is_enforced()
            && name().is_some_and(|name| !self.may_by(api, (Kind::Stream, &name)))
    }

    /// Whether the client may do what it asks for to a group.
    pub(crate) fn may_group(&self, name: &str) -> bool {
        self.may_by(self.api, (Kind::Group, name))
    }

    /// Whether the client may do what it asks for under a transactional id.
    pub(crate) fn may_transactional_id(&self, id: &str) -> bool {
        self.may_by(self.api, (Kind::TransactionalId, id))
    }

    /// Whether the client may do what it asks for to the cluster.
    pub(crate) fn may_cluster(&self) -> bool {
        self.may_by(self.api, (Kind::Cluster, CLUSTER_NAME))
    }

    /// Whether the client may write with sequence numbers: it may, as at Kafka, if it may write to any topic.
    pub(crate) fn may_write_idempotently(&self) -> bool {
        let access = &self.shared.access;
        let cluster = (Kind::Cluster, CLUSTER_NAME);
        self.api.has(Kind::Cluster, Operation::IdempotentWrite)
            && access.allows(self.who(), Operation::IdempotentWrite, cluster)
            || self.api.has(Kind::Stream, Operation::Write)
                && access.permits_any(self.who(), Operation::Write, Kind::Stream)
    }

    /// Whether the client may make a topic of this name.
    pub(crate) fn may_create(&self, name: &str) -> bool {
        let (access, create) = (&self.shared.access, Operation::Create);
        self.api.has(Kind::Cluster, create)
            && access.allows(self.who(), create, (Kind::Cluster, CLUSTER_NAME))
            || self.may_also(create, (Kind::Stream, name))
    }

    /// Whether the client may see a topic in a list: nothing is counted or told where it may not.
    pub(crate) fn sees_topic(&self, name: &str) -> bool {
        self.sees((Kind::Stream, name))
    }

    /// Likewise a group: whoever may see the cluster sees all of them.
    pub(crate) fn sees_group(&self, name: &str) -> bool {
        self.sees((Kind::Cluster, CLUSTER_NAME)) || self.sees((Kind::Group, name))
    }

    fn sees(&self, thing: (Kind, &str)) -> bool {
        let access = &self.shared.access;
        let is_asked = !access.is_enforced() || self.api.has(thing.0, Operation::Describe);
        is_asked && access.allows(self.who(), Operation::Describe, thing)
    }

    /// Checks that the client may do what it asks for to a topic.
    ///
    /// # Errors
    /// Kafka's refusal, which tells nothing of whether there is such a topic.
    pub(crate) fn check_topic(&self, name: &str) -> Result<(), Refusal> {
        match self.may_topic(name) {
            true => Ok(()),
            false => Err(no_topic()),
        }
    }

    /// Checks that the client may do what it asks for to the cluster.
    ///
    /// # Errors
    /// Kafka's refusal.
    pub(crate) fn check_cluster(&self) -> Result<(), Refusal> {
        match self.may_cluster() {
            true => Ok(()),
            false => Err(no_cluster()),
        }
    }

    /// Checks that the client may do what it asks for to a group.
    ///
    /// # Errors
    /// Kafka's refusal.
    pub(crate) fn check_group(&self, name: &str) -> Result<(), Refusal> {
        match self.may_group(name) {
            true => Ok(()),
            false => Err(no_group()),
        }
    }

    /// What the client may do to a topic, a bit for each operation.
    pub(crate) fn rights_to_topic(&self, name: &str) -> i32 {
        let operations = match name == topic::OFFSETS_TOPIC {
            true => INTERNAL_TOPIC,
            false => TOPIC,
        };
        self.bits(operations, (Kind::Stream, name))
    }

    /// What the client may do to a group.
    pub(crate) fn rights_to_group(&self, name: &str) -> i32 {
        self.bits(GROUP, (Kind::Group, name))
    }

    /// What the client may do to the cluster.
    pub(crate) fn rights_to_cluster(&self) -> i32 {
        self.bits(CLUSTER, (Kind::Cluster, CLUSTER_NAME))
    }

    fn bits(&self, operations: &[Operation], thing: (Kind, &str)) -> i32 {
        let allowed = operations.iter();
        let allowed = allowed.filter(|one| self.shared.access.allows(self.who(), **one, thing));
        allowed.fold(0, |bits, one| bits | 1 << one.number())
    }
}

/// Kafka's refusal of something about a topic.
pub(crate) fn no_topic() -> Refusal {
    Refusal::new(
        ResponseError::TopicAuthorizationFailed,
        "the rules of access do not let you do this to the topic",
    )
}

/// Kafka's refusal of something about the cluster.
pub(crate) fn no_cluster() -> Refusal {
    Refusal::new(
        ResponseError::ClusterAuthorizationFailed,
        "the rules of access do not let you do this to the cluster",
    )
}

/// Kafka's refusal of something about a group.
pub(crate) fn no_group() -> Refusal {
    Refusal::new(
        ResponseError::GroupAuthorizationFailed,
        "the rules of access do not let you do this to the group",
    )
}

/// Kafka's number for something about a topic that is denied.
pub(crate) fn topic_code() -> i16 {
    ResponseError::TopicAuthorizationFailed.code()
}

/// Kafka's number for something about a group that is denied.
pub(crate) fn group_code() -> i16 {
    ResponseError::GroupAuthorizationFailed.code()
}
