//! Kafka's names for librdkafka's errors.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

/// Kafka's name for a broker's answer, or the library's own for what it found out itself.
pub fn name_of(code: RDKafkaErrorCode) -> String {
    let name = match code as i32 {
        1 => "OFFSET_OUT_OF_RANGE",
        3 => "UNKNOWN_TOPIC_OR_PARTITION",
        10 => "MESSAGE_TOO_LARGE",
        17 => "INVALID_TOPIC_EXCEPTION",
        25 => "UNKNOWN_MEMBER_ID",
        27 => "REBALANCE_IN_PROGRESS",
        36 => "TOPIC_ALREADY_EXISTS",
        37 => "INVALID_PARTITIONS",
        38 => "INVALID_REPLICATION_FACTOR",
        40 => "INVALID_CONFIG",
        42 => "INVALID_REQUEST",
        68 => "NON_EMPTY_GROUP",
        69 => "GROUP_ID_NOT_FOUND",
        number if number > 0 => return format!("KAFKA:{number}"),
        _ => return format!("CLIENT:{code:?}"),
    };
    name.to_owned()
}

/// As [`name_of`], of the code in an error.
pub fn name_of_error(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(code) => name_of(code),
        None => format!("CLIENT:{error}"),
    }
}

/// Whether a poll's error is one that the library mends by itself: lost connections, brokers that do not
/// answer, and topics that are not known yet.
pub fn passes(error: &KafkaError) -> bool {
    let passing = [
        "CLIENT:BrokerTransportFailure",
        "CLIENT:AllBrokersDown",
        "CLIENT:Resolve",
        "CLIENT:OperationTimedOut",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ];
    passing.contains(&name_of_error(error).as_str())
}
