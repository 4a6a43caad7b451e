#!/usr/bin/env bash
# What a record costs the process of a Python client: Kera's beside confluent-kafka, at one broker, by turns, producing and consuming.
# Without arguments results go to docs/benchmarks/python.json, and the section of docs/benchmarks.md is written anew;
# with one, results go to that file alone. pip downloads confluent-kafka and nanoarrow, 6 MB.
# RECORDS and PAIRS say how much; KERA_PROGRAM is the broker in place of one that is built here. 1 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
here=$target/bench-python
bench=connectors/python/bench
mkdir -p "$here"
# A new one when Python or what is asked for changes.
wanted=$(python3 --version; cat "$bench/requirements.txt")
if [ "$(cat "$here/venv/made-of" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$here/venv"
    python3 -m venv "$here/venv"
    "$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --requirement "$bench/requirements.txt"
    printf '%s\n' "$wanted" >"$here/venv/made-of"
fi
packages=(-p kera-python)
program=${KERA_PROGRAM:-}
if [ -z "$program" ]; then
    packages+=(-p kera)
    program=$target/release/kera
fi
cargo build --locked --release "${packages[@]}"
# As a wheel lays it out.
rm -rf "$here/package"
mkdir -p "$here/package"
cp -r connectors/python/python/kera "$here/package/kera"
cp "$target/release/lib_kera.so" "$here/package/kera/_kera.abi3.so"

results=$(realpath -m "${1:-docs/benchmarks/python.json}")
PYTHONPATH=$here/package PYTHONDONTWRITEBYTECODE=1 "$here/venv/bin/python" "$bench/compare.py" run "$(realpath "$program")" "$results"
if [ $# = 0 ]; then
    python3 "$bench/compare.py" report "$results" docs/benchmarks.md
fi
