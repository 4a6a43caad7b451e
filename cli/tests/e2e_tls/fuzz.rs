//! The check of the fuzz target `tls_frames` over its corpus, each input as it is and mutated.

use std::path::PathBuf;

#[path = "../../../xtask/tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/checks/tls_frames.rs"]
mod tls_frames;

use crate::common::home;

/// Each input takes a handshake.
const MUTATIONS: u64 = 300;

#[test]
fn tls_frames_corpus() {
    let home = home();
    let world = tls_frames::World::start(home.path());
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/tls_frames");
    mutate::replay_some(&corpus, MUTATIONS, |data| world.check(data));
}
