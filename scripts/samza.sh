#!/usr/bin/env bash
# The tests of the Samza connector, against brokers of this tree's program. Maven downloads what it lacks, about 80 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in java javac mvn; do
    if ! command -v "$program" >/dev/null; then
        printf '!!! the Samza connector is NOT tested: %s is not installed\n' "$program"
        printf 'SKIPPED: the Samza connector: %s is not installed\n' "$program" >>"${KERA_SKIP_FILE:-/dev/null}"
        exit 0
    fi
done
cargo build --locked -p kera
target=$(realpath "${CARGO_TARGET_DIR:-target}")
find "$target/connectors" -path '*/surefire-reports/*' -delete 2>/dev/null || true
# The client's own tests are those of scripts/connectors.sh.
cd connectors
mvn --batch-mode --no-transfer-progress verify -Psamza -pl samza -am \
    -Dkera.program="$target/debug/kera" -Dkera.target="$target/connectors" \
    -Dtest='io.kera.samza.*Test' -Dsurefire.failIfNoSpecifiedTests=false
