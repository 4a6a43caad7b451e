#!/usr/bin/env bash
# What the console costs: CPU of a broker without a page, with one and with twenty, each of which is told news of the
# overview every second; and what twenty do to the time of acknowledgements beside a stream of records. Compare the rows
# of one run with each other: the machine has its moods. KERA_PROGRAM is the program, target/release/kera if it is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

kera=${KERA_PROGRAM:-${CARGO_TARGET_DIR:-target}/release/kera}
seconds=${SECONDS_EACH:-20}
rounds=${ROUNDS:-3}
rate=${RATE:-20k/s}
home=$(mktemp -d)
pids=()
end() {
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$home"
}
trap end EXIT

"$kera" serve --data-dir "$home/data" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --kafka-listen off >"$home/out" 2>"$home/log" &
broker=$!
pids+=("$broker")
until grep -q '^metrics on ' "$home/out" && grep -q '^listening on ' "$home/out"; do
    kill -0 "$broker"
    sleep 0.1
done
export KERA_BOOTSTRAP
KERA_BOOTSTRAP=$(sed -n 's/^listening on //p' "$home/out")
http=$(sed -n 's|^metrics on http://\(.*\)/metrics$|\1|p' "$home/out")

for number in $(seq 20); do
    "$kera" stream create "stream-$number" --streamlets 4 --lanes 4 >/dev/null
    echo "a record" | "$kera" produce "stream-$number" --quiet
    "$kera" consume "stream-$number" --group "group-$number" --max 1 >/dev/null
done

# Ticks of the processor that the broker has used.
ticks() { awk '{ print $14 + $15 }' "/proc/$broker/stat"; }
pages=()
open_pages() {
    local index
    for ((index = 0; index < $1; index++)); do
        curl -sN "http://$http/api/v1/live?path=/api/v1/overview&path=/api/v1/streams" >/dev/null &
        pages+=($!)
        pids+=($!)
    done
}
close_pages() {
    for pid in "${pages[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pages=()
}
cpu() {
    local begin
    open_pages "$1"
    sleep 3
    begin=$(ticks)
    sleep "$seconds"
    echo "$(ticks) $begin $seconds $(getconf CLK_TCK)" | awk '{ printf "%.2f", ($1 - $2) / $3 / $4 * 100 }'
    close_pages
}
p99() {
    open_pages "$1"
    "$kera" bench latency load --no-disk --rate "$rate" --records "$2" --json | python3 -c '
import json, sys
told = json.load(sys.stdin)
def find(value):
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.startswith("p99") and not name.startswith("p999") and isinstance(inner, (int, float)):
                return inner
            found = find(inner)
            if found is not None:
                return found
    return None
print(find(told))'
    close_pages
}

echo "pages  percent of a core"
for many in 0 1 20; do
    echo "$many  $(cpu "$many")"
done
echo "pages  p99 of acknowledgements at $rate, round by round"
for ((round = 0; round < rounds; round++)); do
    for many in 0 20; do
        echo "$many  $(p99 "$many" 200k)"
    done
done
