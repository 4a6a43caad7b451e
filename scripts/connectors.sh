#!/usr/bin/env bash
# The tests of the connectors in Java, against brokers of this tree's program. Maven downloads what it lacks, about 270 MB.
# KERA_FLINK=2.3.0 runs them over that version of Flink in place of the one that pom.xml names, and builds the benchmark of
# scripts/bench-java.sh too.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in java javac mvn; do
    if ! command -v "$program" >/dev/null; then
        printf '!!! the connectors are NOT tested: %s is not installed\n' "$program"
        printf 'SKIPPED: the Java client and the Flink connector: %s is not installed\n' "$program" \
            >>"${KERA_SKIP_FILE:-/dev/null}"
        exit 0
    fi
done
cargo build --locked -p kera
target=$(realpath "${CARGO_TARGET_DIR:-target}")
cd connectors
mvn --batch-mode --no-transfer-progress verify \
    -Dkera.program="$target/debug/kera" -Dkera.target="$target/connectors" \
    ${KERA_FLINK:+-Pbench -Dflink.version="$KERA_FLINK"}
