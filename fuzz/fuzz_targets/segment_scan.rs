#![no_main]

#[path = "../checks/segment_scan.rs"]
mod segment_scan;

libfuzzer_sys::fuzz_target!(|data: &[u8]| segment_scan::check(data));
