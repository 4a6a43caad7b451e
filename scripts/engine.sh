#!/usr/bin/env bash
# engine.sh NAME MODULE: the tests of an engine's connector, the Maven module and profile MODULE, against brokers of this tree's program.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1 module=$2
for program in java javac mvn; do
    if ! command -v "$program" >/dev/null; then
        printf '!!! the %s connector is NOT tested: %s is not installed\n' "$name" "$program"
        printf 'SKIPPED: the %s connector: %s is not installed\n' "$name" "$program" >>"${KERA_SKIP_FILE:-/dev/null}"
        exit 0
    fi
done
scripts/build.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
# Maven's own work is short: a compiler that is quick is worth more than quick code.
export MAVEN_OPTS=${MAVEN_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}
find "$target/connectors" -path '*/surefire-reports/*' -delete 2>/dev/null || true
# The client's own tests are those of scripts/connectors.sh.
cd connectors
mvn --batch-mode --no-transfer-progress verify -P"$module" -pl "$module" -am \
    -Dkera.program="$target/debug/kera" -Dkera.target="$target/connectors" \
    -Dtest="io.kera.$module.*Test" -Dsurefire.failIfNoSpecifiedTests=false
