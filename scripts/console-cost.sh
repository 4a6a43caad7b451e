#!/usr/bin/env bash
# What the console costs: CPU of a broker without a page, with one and with twenty, each of which is told news of the
# overview and the streams every second; and what twenty do to the p99 of acknowledgements of a stream of 2 million records a
# second. Each round has the stream once without pages and once with twenty, by turns which comes first, and gives a ratio: the machine has
# its moods, and the median of the ratios does not. Exits with 1 if a page costs more than 0.5 % of a core, or twenty raise the p99
# by more than 5 %. KERA_PROGRAM is the program, target/release/kera if it is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

kera=${KERA_PROGRAM:-${CARGO_TARGET_DIR:-target}/release/kera}
seconds=${SECONDS_EACH:-20}
rounds=${ROUNDS:-7}
rate=${RATE:-2M/s}
records=${RECORDS:-16M}
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
until [ -e "$home/out" ] && grep -q '^metrics on ' "$home/out" && grep -q '^listening on ' "$home/out"; do
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
        curl -sN "http://$http/api/v1/live?path=/api/v1/overview&path=/api/v1/streams" >"$home/page-$index" &
        pages+=($!)
        pids+=($!)
    done
    # To start twenty programs takes a part of a second, which is not what open pages cost.
    for ((index = 0; index < $1; index++)); do
        until [ -s "$home/page-$index" ]; do
            kill -0 "${pages[index]}"
            sleep 0.1
        done
    done
}
close_pages() {
    for pid in "${pages[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pages=()
    rm -f "$home"/page-*
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
# Microseconds, and records a second that were acknowledged. The stream goes afterwards: it has gigabytes.
p99() {
    open_pages "$1"
    "$kera" bench latency load --no-disk --rate "$rate" --records "$records" --batch-size 128KiB --json >"$home/latency"
    close_pages
    "$kera" stream delete load --yes >/dev/null
    python3 -c '
import json, sys
told = json.load(open(sys.argv[1]))
def find(value, name):
    if isinstance(value, dict):
        if isinstance(value.get(name), (int, float)):
            return value[name]
        value = list(value.values())
    if isinstance(value, list):
        return next((found for found in (find(one, name) for one in value) if found is not None), None)
print(find(told, "p99_us"), find(told, "records_per_second"))' "$home/latency"
}

echo "pages  percent of a core"
for many in 0 1 20; do
    share=$(cpu "$many")
    echo "$many  $share" | tee -a "$home/shares"
done
echo "round  p99 without a page, with 20 (microseconds), ratio; records a second of each, at $rate"
for ((round = 1; round <= rounds; round++)); do
    if ((round % 2)); then
        without=$(p99 0)
        with=$(p99 20)
    else
        with=$(p99 20)
        without=$(p99 0)
    fi
    echo "$round $without $with" | awk '{ printf "%d  %.0f  %.0f  %.3f; %.0f, %.0f\n", $1, $2, $4, $4 / $2, $3, $5 }' | tee -a "$home/rounds"
done
python3 - "$home" <<'END'
import statistics
import sys

shares = [float(line.split()[1]) for line in open(f"{sys.argv[1]}/shares")]
ratios = sorted(float(line.split()[3].rstrip(";")) for line in open(f"{sys.argv[1]}/rounds"))
page, ratio = shares[1] - shares[0], statistics.median(ratios)
print(f"a page costs {page:.2f} % of a core (at most 0.5)")
print(f"20 pages: p99 x {ratio:.3f} (at most 1.05), median of {len(ratios)} rounds, {ratios[0]} to {ratios[-1]}")
sys.exit(page > 0.5 or ratio > 1.05)
END
