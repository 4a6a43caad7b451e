//! The checked-in messages and stubs are exactly what the .proto files say.
//!
//! Building Kera needs no `protoc` and runs no build script; `KERA_REGENERATE=1 cargo test -p kera-grpc --test generated`
//! writes both files anew after a change to a .proto file.

use std::path::{Path, PathBuf};

const PROTO_FILES: [&str; 12] = [
    "kera/v1/access.proto",
    "kera/v1/cluster.proto",
    "kera/v1/common.proto",
    "kera/v1/data.proto",
    "kera/v1/control.proto",
    "kera/v1/replication.proto",
    "kera/v1/lanes.proto",
    "kera/v1/shares.proto",
    "kera/v1/users.proto",
    "kera/v1/quotas.proto",
    "kera/v1/transaction_tools.proto",
    "kera/v1/transactions.proto",
];
const MESSAGES: &str = "protocol/src/generated/kera.v1.rs";
const STUBS: &str = "grpc/src/generated/kera.v1.rs";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .to_path_buf()
}

fn generate(stubs: bool) -> String {
    let descriptors = protox::compile(PROTO_FILES, [workspace().join("protocol/proto")])
        .expect("the .proto files compile");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut config = tonic_prost_build::Config::new();
    config.out_dir(directory.path()).bytes(["."]);
    let mut builder = tonic_prost_build::configure()
        .build_client(stubs)
        .build_server(stubs)
        .out_dir(directory.path());
    if stubs {
        builder = builder.extern_path(".kera.v1", "::kera_protocol::v1");
    }
    builder
        .compile_fds_with_config(descriptors, config)
        .expect("the generators accept the .proto files");
    std::fs::read_to_string(directory.path().join("kera.v1.rs")).expect("the generated file")
}

fn check(stubs: bool, target: &str) {
    let fresh = generate(stubs);
    let path = workspace().join(target);
    if std::env::var_os("KERA_REGENERATE").is_some() {
        std::fs::write(&path, &fresh).expect("write the generated file");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == fresh,
        "{target} differs from what the .proto files give: run `KERA_REGENERATE=1 cargo test -p kera-grpc --test generated`"
    );
}

#[test]
fn messages_match_the_proto_files() {
    check(false, MESSAGES);
}

#[test]
fn stubs_match_the_proto_files() {
    check(true, STUBS);
}
