//! Why one item of a request is refused: a number of Kafka's and a text for people.

use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use kera_broker::audit::Attempt;
use kera_protocol::error::WireError;

use crate::errors;

/// A refusal of one topic, partition or resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Kafka's number.
    pub(crate) code: i16,
    /// What is wrong, for people.
    pub(crate) message: String,
}

impl Refusal {
    /// A refusal with one of Kafka's errors.
    pub(crate) fn new(error: ResponseError, message: impl Into<String>) -> Self {
        Self {
            code: error.code(),
            message: message.into(),
        }
    }

    /// A refusal with one of Kafka's numbers.
    pub(crate) fn of(code: i16, message: String) -> Self {
        Self { code, message }
    }

    /// Writes down that a change was refused so, or may have been made all the same.
    pub(crate) fn end(&self, attempt: Attempt) {
        let unknown = [
            ResponseError::UnknownServerError,
            ResponseError::RequestTimedOut,
            ResponseError::KafkaStorageError,
            ResponseError::CoordinatorNotAvailable,
            ResponseError::NotCoordinator,
            ResponseError::CoordinatorLoadInProgress,
        ];
        match unknown.iter().any(|one| one.code() == self.code) {
            true => attempt.may_be_made(&self.message),
            false => attempt.failed(&self.message),
        }
    }

    /// The text as responses take it.
    pub(crate) fn text(&self) -> StrBytes {
        text(self.message.clone())
    }

    /// A stream's refusal of settings, which is one of a topic's configs.
    pub(crate) fn of_settings(error: WireError) -> Self {
        let mut refusal = Self::from(error);
        if refusal.code == ResponseError::InvalidRequest.code() {
            refusal.code = ResponseError::InvalidConfig.code();
        }
        refusal
    }

    /// The reply has no room for the item.
    pub(crate) fn too_long() -> Self {
        let text = "the reply would be longer than kafka.max_reply_bytes of the broker: ask for less at a time, or raise it";
        Self::new(ResponseError::PolicyViolation, text)
    }

    /// A topic that does not exist.
    pub(crate) fn no_topic(name: &str) -> Self {
        Self::new(
            ResponseError::UnknownTopicOrPartition,
            format!("topic \"{}\" does not exist", short(name)),
        )
    }
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self {
            code: errors::code_of(&error),
            message: error.message,
        }
    }
}

/// Text as the codec takes it.
pub(crate) fn text(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// Enough of a name to recognise it: a client's may be of any length.
pub(crate) fn short(name: &str) -> String {
    name.chars().take(80).collect()
}

/// The texts that occur more than once.
pub(crate) fn doubled<'a>(
    names: impl Iterator<Item = &'a str>,
) -> std::collections::HashSet<String> {
    let mut seen = std::collections::HashSet::new();
    let mut doubled = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            doubled.insert(name.to_owned());
        }
    }
    doubled
}
