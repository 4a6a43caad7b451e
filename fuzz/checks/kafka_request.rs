//! What must hold for any bytes that arrive as a request of a Kafka client, without their length:
//! what the walk lets through the codec decodes, neither panicking nor taking memory out of
//! proportion (the fuzzer's own limit sees to that).

use bytes::Bytes;
use kera_kafka_shim::wire::probe;
use kera_kafka_shim::wire::request::RequestHead;
use kera_kafka_shim::wire::walk::{Limits, walk};

/// # Panics
/// If a rule is broken.
pub fn check(data: &[u8]) {
    let Ok(head) = RequestHead::parse(data) else {
        return;
    };
    let body = &data[head.body_at..];
    let limits = Limits::default();
    let (api_key, version) = (head.api_key, head.api_version);
    if walk(api_key, version, body, &limits).is_err() {
        return;
    }
    let decoded = probe::decode(api_key, version, Bytes::copy_from_slice(body));
    assert!(
        decoded.is_ok(),
        "api key {api_key} version {version} passed the walk: {decoded:?}"
    );
    assert!(
        probe::is_read_by_hand(api_key, version, body),
        "api key {api_key} version {version} passed the walk and is not read by hand"
    );
}

/// Whether `data` comes as far as the codec.
#[allow(dead_code, reason = "the fuzz target does not ask")]
pub fn reaches_the_codec(data: &[u8]) -> bool {
    RequestHead::parse(data).is_ok_and(|head| {
        let body = &data[head.body_at..];
        walk(head.api_key, head.api_version, body, &Limits::default()).is_ok()
    })
}
