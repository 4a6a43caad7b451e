//! The rules of the house, checked over the sources themselves: which crate may import which, where
//! unsafe code may live, how long a file may grow, what an error message looks like.
//!
//! No network, no build: the checks read files, and each tells every place that breaks it.

#[path = "house/architecture.rs"]
mod architecture;
#[path = "house/benchmarks.rs"]
mod benchmarks;
#[path = "house/circles.rs"]
mod circles;
#[path = "house/documents.rs"]
mod documents;
#[path = "house/imports.rs"]
mod imports;
#[path = "house/long_runs.rs"]
mod long_runs;
#[path = "house/second_try.rs"]
mod second_try;
#[path = "house/sources.rs"]
mod sources;
#[path = "house/summary.rs"]
mod summary;
#[path = "house/tree.rs"]
mod tree;

/// Fails with every line of `broken`, so that one run shows all there is to mend.
fn check(rule: &str, broken: Vec<String>) {
    assert!(
        broken.is_empty(),
        "{rule}; {} place(s):\n  {}",
        broken.len(),
        broken.join("\n  ")
    );
}
