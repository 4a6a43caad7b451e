#!/usr/bin/env bash
# All that CI runs: every stage with its time, then the sums over all test runs, and as the last
# line `N passed, N failed, N skipped`. Exits with 1 if anything failed. Two lanes share the stages; `make unit` begins one of them.
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

# What cargo keeps to build a change faster is twice as large as what it builds, and half of what it builds are tables of
# lines, which only backtraces need. A fresh clone goes without both; where there is such state already it is used and kept.
if [ -z "$(ls -A "${CARGO_TARGET_DIR:-target}/debug/incremental" 2>/dev/null)" ]; then
    export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-none}
fi

# By this name cargo hears of what is to run test binaries.
runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z.-' 'A-Z__')_RUNNER

# Seconds of CPU that this shell's children have taken, as `times` tells them in $1.
cpu_seconds() {
    awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } printf "%d", sum }' "$1"
}

# Runs `make $1` and keeps what it prints, how it ended and how many seconds, and seconds of CPU, it took.
stage() {
    local name=$1 begun=$SECONDS status=0 before
    # In a shell of its own it would tell of that one.
    times >"$logs/$name.times"
    before=$(cpu_seconds "$logs/$name.times")
    printf '\n==> make %s\n' "$name"
    if [ "$name" = unit ]; then
        env "$runner=scripts/timed-test.sh" make "$name" 2>&1 | tee "$logs/$name.log"
    else
        make "$name" 2>&1 | tee "$logs/$name.log"
    fi
    status=${PIPESTATUS[0]}
    times >"$logs/$name.times"
    printf '%d %d %d\n' "$status" $((SECONDS - begun)) $(($(cpu_seconds "$logs/$name.times") - before)) >"$logs/$name.ended"
}

# Runs the stages that the other lane has not begun. `beside` prints each when it has ended, so that none is printed in between.
lane() {
    local name
    for name in "${others[@]}"; do
        mkdir "$logs/$name.begun" 2>/dev/null || continue
        if [ "${1:-}" = beside ]; then
            stage "$name" >/dev/null
            printf '\n==> make %s (beside the others)\n%s\n' "$name" "$(<"$logs/$name.log")"
        else
            stage "$name"
        fi
    done
}

table=
broken=0
broken_stages=
passed=0
failed=0
ignored=0

# Adds up the results that a stage reports.
count() {
    local name=$1 log=$logs/$1.log verdict=ok status seconds cpu ok bad off
    # A stage whose end is not written was cut off.
    read -r status seconds cpu <<<"$(cat "$logs/$name.ended" 2>/dev/null || echo '1 0 0')"
    [ "$status" = 0 ] || verdict=FAILED
    [ -e "$log" ] || : >"$log"
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
    table+=$(printf '  %-12s %-7s %5d s %5d s of CPU %6d passed %4d failed' "$name" "$verdict" "$seconds" "$cpu" "$ok" "$bad")$'\n'
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
    printf '\n==> summary (logs in %s)\n%s  %-12s         %5d s\n' "$logs" "$table" "all together" "$SECONDS"
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

# Unit tests wait half of their time, for processes and sockets: the other stages run meanwhile, those first that build in
# directories of their own.
others=(fmt deny sanitize shuttle sim test-rdma clippy doc instructions python connectors)
stage check-needs
count check-needs
if [ "$broken" = 0 ]; then
    # A process group of its own, which ends with this script.
    set -m
    lane beside &
    other_lane=$!
    set +m
    trap 'kill -TERM -- "-$other_lane" 2>/dev/null' EXIT
    trap 'exit 130' INT TERM
    stage unit
    lane
    wait "$other_lane"
    # Tests get their second try when nothing runs beside them.
    for name in unit "${others[@]}"; do
        count "$name"
    done
fi
summary
exit "$broken"
