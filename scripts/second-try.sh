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
# One line for each binary that failed, with its tests: the list that stands before its result. A test that
# runs itself in namespaces of its own is listed by both.
mapfile -t lists < <(awk '/^failures:$/ { names = ""; next }
    /^    [^ ]+$/ { names = names " " $1; next }
    /^test result: FAILED/ { print names; names = ""; next }
    /^./ { names = "" }' "$log" | uniq)
[ "${#targets[@]}" != 0 ] || none "not a test failed, but what builds or starts them"
[ "${#targets[@]}" = "${#lists[@]}" ] || none "a test binary died, or ran others that failed"
if grep -qE "$found" "$log"; then
    none "what was found stands, whatever another try says"
fi
names=("${lists[@]}")
[ "$(wc -w <<<"${names[*]}")" -le "$most" ] || none "more than $most tests failed"

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
        printf '%s\n' "$printed"
        grep -q '^test result: ok\. 1 passed' <<<"$printed" || none "$name failed again, or is no more"
        printf 'TRIED TWICE: %s: the first try failed, see the log\n' "$name" >>"${KERA_RETRY_FILE:-/dev/null}"
    done
done
