#!/usr/bin/env bash
# The tests of the connectors in Java, against brokers of this tree's program. Maven downloads what it lacks, about 270 MB.
# KERA_FLINK=2.3.0 runs them over that version of Flink in place of the one that pom.xml names, the long ones among them, and
# builds the benchmarks of scripts/bench-java.sh and scripts/bench-flink.sh too.
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
scripts/build.sh
target=$(realpath "${CARGO_TARGET_DIR:-target}")
# Maven's own work is short: a compiler that is quick is worth more than quick code.
export MAVEN_OPTS=${MAVEN_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}
cd connectors
verify() {
    mvn --batch-mode --no-transfer-progress verify \
        -Dkera.program="$target/debug/kera" -Dkera.target="$target/connectors" \
        ${KERA_FLINK:+-Pbench -Dkera.long=true -Dflink.version="$KERA_FLINK"} "$@"
}
forget() { find "$target/connectors" -path '*/surefire-reports/*' -delete 2>/dev/null || true; }
forget
verify && exit 0

# Each of a few tests once more, alone; then all others, of which those behind the failure have not run.
failed=$(../scripts/second-try-java.sh "$target/connectors")
others=
for test in $failed; do
    printf '\n==> once more: %s\n' "$test"
    forget
    verify -Dtest="$test" -Dsurefire.failIfNoSpecifiedTests=false
    # Maven is content when there is no such test.
    find "$target/connectors" -name "TEST-*.${test%#*}.xml" | grep -q . || { echo "$test is no more" >&2; exit 1; }
    printf 'TRIED TWICE: %s: the first try failed, see the log\n' "$test" >>"${KERA_RETRY_FILE:-/dev/null}"
    others+=${others:+,}!$test
done
printf '\n==> all others\n'
verify -Dtest="$others" -Dsurefire.failIfNoSpecifiedTests=false
