//! The rules of the house, checked over the sources themselves: which crate may import which, where
//! unsafe code may live, how long a file may grow, what an error message looks like.
//!
//! No network, no build: the checks read files, and each tells every place that breaks it.

mod architecture;
mod benchmarks;
mod circles;
mod documents;
mod formats;
mod imports;
mod long_runs;
mod published;
mod second_try;
mod sources;
mod summary;
