#!/usr/bin/env bash
# All that CI runs: every stage with its time, then the sums over all test runs, and as the last
# line `N passed, N failed, N skipped`. Exits with 1 if anything failed.
#
# A test that cannot run on this machine appends one line `SKIPPED: name: reason` to the file that
# KERA_SKIP_FILE names, and returns. Such tests are listed at the end and counted as skipped.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=${CARGO_TARGET_DIR:-$PWD/target}/test-logs
rm -rf "$logs"
mkdir -p "$logs"
export KERA_SKIP_FILE=$logs/skipped KERA_RETRY_FILE=$logs/tried-twice
: >"$KERA_SKIP_FILE"
: >"$KERA_RETRY_FILE"

# What cargo keeps to build a change faster is twice as large as what it builds. A fresh clone is
# built once, and goes without; where there is such state already it is used and kept.
if [ ! -d "${CARGO_TARGET_DIR:-target}/debug/incremental" ]; then
    export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
fi

table=
broken=0
broken_stages=
passed=0
failed=0
ignored=0

# By this name cargo hears of what is to run test binaries.
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z.-' 'A-Z__')_RUNNER

# Runs `make $1`, keeps what it prints, adds up the results that libtest reports.
stage() {
    local name=$1 log=$logs/$1.log begun=$SECONDS verdict=ok counts ok bad off
    printf '\n==> make %s\n' "$name"
    if [ "$name" = unit ]; then
        env "$runner=scripts/timed-test.sh" make "$name" 2>&1 | tee "$log"
    else
        make "$name" 2>&1 | tee "$log"
    fi
    [ "${PIPESTATUS[0]}" = 0 ] || verdict=FAILED
    read -r ok bad off <<<"$(scripts/counts.sh "$log")"
    if [ "$verdict" = FAILED ] && [ "$name" = unit ] &&
        scripts/second-try.sh "$log" 2>&1 | tee "$logs/second-try.log"; then
        verdict=ok ok=$((ok + bad)) bad=0
    fi
    # What failed first and passed at a second try stands among the results twice.
    [[ $name != connectors && $name != python ]] || [ "$verdict" = FAILED ] || bad=0
    # A stage that fails without a failing test (format, lints, a test binary that died) is one
    # failure of its own.
    if [ "$verdict" = FAILED ]; then
        broken=1
        broken_stages+="make $name; "
        [ "$bad" != 0 ] || bad=1
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + off))
    table+=$(printf '  %-12s %-7s %5d s %6d passed %4d failed' \
        "$name" "$verdict" $((SECONDS - begun)) "$ok" "$bad")$'\n'
}

# The tests of `make unit` that took longest, with their binaries. What a test runs in its turn tells no time.
slowest() {
    awk '/^ +Running / { binary = $NF; gsub(/^.*\/|-[0-9a-f]+\)$|\)$/, "", binary) }
        /^test .* \.\.\. .*<[0-9.]+s>$/ { time = $NF; gsub(/[<s>]/, "", time)
            printf "%10.3f s  %s (%s)\n", time, $2, binary }' "$logs/unit.log" | sort -rn | head -n 20
}

summary() {
    local skipped times
    skipped=$(sort -u "$KERA_SKIP_FILE" | grep -c . || true)
    printf '\n==> summary (logs in %s)\n%s' "$logs" "$table"
    times=$(slowest 2>/dev/null)
    [ -z "$times" ] || printf '\n  slowest tests of make unit:\n%s\n' "$times"
    if [ "$skipped" != 0 ]; then
        printf '\n!!! %d test(s) did NOT run here:\n' "$skipped"
        sort -u "$KERA_SKIP_FILE" | sed 's/^/!!!   /'
    fi
    if [ -s "$KERA_RETRY_FILE" ]; then
        printf '\n!!! failed at first and were tried once more:\n'
        sort -u "$KERA_RETRY_FILE" | sed 's/^/!!!   /'
    fi
    if [ "$failed" != 0 ]; then
        printf '\nFAILED: %s\n' "$broken_stages"
        grep -hE '^(test .* \.\.\. FAILED( <[0-9.]+s>)?|error(\[|:).*|\[ERROR\]   .*|(FAILED|ERROR) [^ ]*\.py.*)$' "$logs"/*.log | sort -u | sed 's/^/  /'
    fi
    # The test harness counts a test that skipped itself as passed.
    printf '\n%d passed, %d failed, %d skipped\n' \
        $((passed - skipped)) "$failed" $((skipped + ignored))
}

stage check-needs
if [ "$broken" = 0 ]; then
    # Cheap ones first; then one build of the workspace for lints, one for the tests.
    for name in fmt deny clippy unit test-rdma shuttle sanitize doc instructions python connectors; do
        stage "$name"
    done
fi
summary
exit "$broken"
