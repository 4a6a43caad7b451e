#![no_main]

use std::sync::OnceLock;

#[path = "../checks/login.rs"]
mod login;

static WORLD: OnceLock<login::World> = OnceLock::new();

/// A broker for all inputs, in a directory that the next run empties: a fuzzer's process ends at any time.
fn world() -> login::World {
    let dir = std::env::temp_dir().join("kera-fuzz-login");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).expect("the directory of an earlier run goes");
    }
    std::fs::create_dir_all(&dir).expect("a directory can be made");
    login::World::start(&dir)
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| WORLD.get_or_init(world).check(data));
