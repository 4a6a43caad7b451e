#!/usr/bin/env bash
# build.sh ARGUMENT...: builds target/debug/kera for tests, and what the arguments of `cargo build` name. With an example all
# crates have the features that `cargo test --workspace` builds them with, so that nothing is built in two ways.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo build --locked --workspace --bin kera --example check "$@"
