#!/usr/bin/env bash
# Runs each fuzz target for FUZZ_SECONDS (60), starting from the seeds in fuzz/corpus. What the
# fuzzer finds on its way goes below the target folder; an input that breaks something goes to
# fuzz/artifacts and belongs into fuzz/corpus with the fix, where `make test` replays it.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
found=${CARGO_TARGET_DIR:-$PWD/target}/fuzz-corpus

cargo +nightly --version >/dev/null 2>&1 || {
    echo "fuzz: needs nightly Rust: run 'rustup toolchain install nightly --profile minimal'" >&2
    exit 1
}
command -v cargo-fuzz >/dev/null || {
    echo "fuzz: needs cargo-fuzz: run 'cargo install cargo-fuzz --locked'" >&2
    exit 1
}

failed=()
for target in $(cargo +nightly fuzz list); do
    mkdir -p "$found/$target"
    printf '\n==> fuzz %s for %s s\n' "$target" "$seconds"
    cargo +nightly fuzz run "$target" "$found/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=60 -print_final_stats=1 ||
        failed+=("$target")
done
if [ "${#failed[@]}" != 0 ]; then
    printf '\nfuzz: FAILED: %s; the inputs are in fuzz/artifacts\n' "${failed[*]}" >&2
    exit 1
fi
