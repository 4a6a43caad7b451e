#![no_main]

#[path = "../checks/kafka_request.rs"]
mod kafka_request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| kafka_request::check(data));
