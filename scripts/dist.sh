#!/usr/bin/env bash
# Builds the program as it is shipped: target/dist/kera, link-time optimised, with the RDMA transport. The
# RDMA libraries are loaded when the program starts, so it also runs where there are none. Building the
# bindings to them takes cmake and libclang.
set -euo pipefail
cd "$(dirname "$0")/.."

lack() {
    printf 'dist: %s is missing; on Debian: apt-get install cmake libclang-dev\n' "$1" >&2
    printf 'dist: without RDMA: cargo build --locked --profile dist --package kera\n' >&2
    exit 1
}
command -v cmake >/dev/null || lack cmake
compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang*.so*' >/dev/null ||
    compgen -G '/usr/lib/*/libclang*.so*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ] || lack libclang

# What `kera --version` says; nothing where changes would make it untrue.
if [ -z "$(git status --porcelain -- . ':!docs/reliability.md' 2>&1)" ]; then
    KERA_COMMIT=$(git rev-parse --short=10 HEAD)
    export KERA_COMMIT
fi
exec cargo build --locked --profile dist --package kera --features rdma
