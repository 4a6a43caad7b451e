#!/usr/bin/env bash
# The tests of the tables for DataFusion, against brokers of this tree's program, and the programs of their README; clippy and cargo deny over that
# workspace. Cargo downloads what it lacks, about 60 MB, and builds in a directory of its own below the target directory, about 2 GB.
# KERA_PROGRAM is the broker in place of one that is built here. Arguments are those of the test program: scripts/datafusion.sh bounds::
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/datafusion"
target=$(realpath "$target")
program=${KERA_PROGRAM:-}
if [ -z "$program" ]; then
    scripts/build.sh
    program=$target/debug/kera
fi
program=$(realpath "$program")

cd connectors/datafusion
export CARGO_TARGET_DIR=$target/datafusion
if [ $# = 0 ]; then
    cargo fmt --check
    cargo deny --locked check --hide-inclusion-graph licenses bans sources
    cargo clippy --locked --all-targets -- -D warnings
fi
KERA_BIN=$program cargo test --locked --no-fail-fast -- "$@"
