#!/usr/bin/env bash
# second-try.sh LOG: runs the tests that failed in the log of `make unit` once more, alone; 0 if all pass now.
#
# Tests with processes, sockets and clocks can fail by the machine's load. They get one more try, which the
# summary lists. None is given where the failure says something of its own: what the history checker or a
# property test found, a test that depends on nothing but its input, or more than a few at once.
set -uo pipefail
cd "$(dirname "$0")/.."

most=3
# Whose tests start processes, or talk over sockets.
packages=' kera kera-bench kera-broker kera-consumer kera-kafka-clients kera-kafka-shim kera-metadata kera-producer kera-rpc '
found='ANOMALY|minimal failing input'
log=$1
none() {
    printf 'no second try: %s\n' "$*"
    exit 1
}

# What cargo names at its end: `-p PACKAGE --test NAME`, in the order in which they ran.
mapfile -t targets < <(awk '/^error: [0-9]+ targets? failed:$/ { on = 1; next }
    on && /^    `-p .*`$/ { gsub(/^    `|`$/, ""); print; next } { on = 0 }' "$log")
# A line "TARGET: its tests that failed" for each binary that failed by itself. What a binary prints stands between
# cargo's "Running" and cargo's word that it failed. Tests that run test binaries print lists and results of theirs
# in there, but the last are the binary's own, unless it died: then cargo says what of.
own=$(awk '
    function tell() { if (target != "" && !died) print target ":" failed; target = "" }
    /^ +(Running|Doc-tests) / { tell(); names = failed = ""; count = 0; next }
    /^failures:$/ { names = ""; count = 0; next }
    /^    [^ ]+$/ { names = names " " $1; count++; next }
    /^test result: / { failed = ""
        if ($3 == "FAILED." && match($0, /[0-9]+ failed/) && substr($0, RSTART) + 0 == count) failed = names
        names = ""; count = 0; next }
    /^error: (test|doctest) failed, to rerun pass `.*`$/ { tell()
        target = $0; gsub(/^[^`]*`|`$/, "", target); died = 0; next }
    /^Caused by:$|^note: test exited abnormally/ { died = 1; next }
    /^./ { names = ""; count = 0 }
    END { tell() }' "$log")
[ "${#targets[@]}" != 0 ] || none "not a test failed, but what builds or starts them"
lists=()
for target in "${targets[@]}"; do
    names=$(awk -v target="$target:" 'index($0, target) == 1 { print substr($0, length(target) + 1) }' <<<"$own")
    [ "$(wc -w <<<"$names")" != 0 ] || none "$target: it died, or does not say which of its tests failed"
    lists+=("$names")
done
if grep -qE "$found" "$log"; then
    none "what was found stands, whatever another try says"
fi
[ "$(wc -w <<<"${lists[*]}")" -le "$most" ] || none "more than $most tests failed"

for at in "${!targets[@]}"; do
    read -r _ package rest <<<"${targets[$at]}"
    [[ $packages == *" $package "* ]] || none "$package: its tests depend on nothing but themselves"
    [[ $rest != *--doc* ]] || none "$package: an example failed"
done
for at in "${!targets[@]}"; do
    for name in ${lists[$at]}; do
        printf '\n==> once more: %s (%s)\n' "$name" "${targets[$at]}"
        # shellcheck disable=SC2086 # several words
        printed=$(cargo test --locked ${targets[$at]} -- --exact "$name" 2>&1)
        status=$?
        printf '%s\n' "$printed"
        # The last result, if it runs test binaries itself.
        result=$(grep '^test result: ' <<<"$printed" | tail -n 1)
        [[ $status = 0 && $result = "test result: ok. 1 passed"* ]] || none "$name failed again, or is no more"
        printf 'TRIED TWICE: %s: the first try failed, see the log\n' "$name" >>"${KERA_RETRY_FILE:-/dev/null}"
    done
done
