#![no_main]

#[path = "../checks/batch.rs"]
mod batch;

libfuzzer_sys::fuzz_target!(|data: &[u8]| batch::check(data));
