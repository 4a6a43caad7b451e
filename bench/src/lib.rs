//! Criterion benches and the rules of the house, checked by `tests/house.rs`.

#![forbid(unsafe_code)]
