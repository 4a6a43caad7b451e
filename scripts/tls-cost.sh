#!/usr/bin/env bash
# What TLS costs a broker: CPU time for each record of 100 bytes, in batches of 128 KiB, that it receives and that it sends. Each
# round appends and reads a stream at a broker without TLS and at one with it, by turns which comes first, and gives two differences;
# the median of the rounds counts. Exits with 1 if one of them is above 35 ns. KERA_PROGRAM is the program, target/release/kera if it
# is not set. Needs a machine that has nothing else to do.
set -euo pipefail
cd "$(dirname "$0")/.."

kera=${KERA_PROGRAM:-${CARGO_TARGET_DIR:-target}/release/kera}
rounds=${ROUNDS:-7}
records=${RECORDS:-10000000}
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

"$kera" certificate dev "$home/certs" >/dev/null
declare -A broker address
for way in plain tls; do
    tls=()
    [ "$way" = plain ] || tls=(--tls-listeners native --tls-certificate "$home/certs/server.pem" --tls-key "$home/certs/server-key.pem")
    "$kera" serve --data-dir "$home/$way" --listen 127.0.0.1:0 --http-listen off --kafka-listen off "${tls[@]}" \
        >"$home/$way.out" 2>"$home/$way.log" &
    broker[$way]=$!
    pids+=("$!")
    until grep -q '^listening on ' "$home/$way.out" 2>/dev/null; do
        kill -0 "${broker[$way]}"
        sleep 0.1
    done
    address[$way]=$(sed -n 's/^listening on //p' "$home/$way.out")
done

# Ticks of the processor that a broker has used.
ticks() { awk '{ print $14 + $15 }' "/proc/${broker[$1]}/stat"; }
client() {
    local way=$1
    shift
    local with=()
    [ "$way" = plain ] || with=(--tls-ca "$home/certs/ca.pem")
    "$kera" "$@" --bootstrap "${address[$way]}" "${with[@]}" >/dev/null 2>>"$home/client.log" || {
        cat "$home/client.log" >&2
        return 1
    }
}
# Nanoseconds of a broker's CPU for a record that it receives, and for one that it sends.
costs() {
    local way=$1 begin middle end
    begin=$(ticks "$way")
    client "$way" bench produce load --no-disk --ack memory --records "$records" --record-size 100 --batch-size 128KiB
    middle=$(ticks "$way")
    client "$way" bench consume load --no-disk --records "$records"
    end=$(ticks "$way")
    client "$way" stream delete load --yes
    echo "$begin $middle $end $(getconf CLK_TCK) $records" |
        awk '{ unit = 1e9 / $4 / $5; printf "%.1f %.1f", ($2 - $1) * unit, ($3 - $2) * unit }'
}

# The first stream of a broker has memory made for it.
for way in plain tls; do costs "$way" >/dev/null; done
echo "round  ns for a record received: without TLS, with; sent: without, with"
for ((round = 1; round <= rounds; round++)); do
    if ((round % 2)); then
        plain=$(costs plain)
        tls=$(costs tls)
    else
        tls=$(costs tls)
        plain=$(costs plain)
    fi
    echo "$round $plain $tls" | awk '{ printf "%d  %.1f  %.1f  %.1f  %.1f\n", $1, $2, $4, $3, $5 }' | tee -a "$home/rounds"
done
python3 - "$home/rounds" <<'END'
import statistics
import sys

rounds = [[float(word) for word in line.split()] for line in open(sys.argv[1])]
worst = 0
for way, at in (("received", 1), ("sent", 3)):
    more = sorted(round[at + 1] - round[at] for round in rounds)
    cost = statistics.median(more)
    worst = max(worst, cost)
    print(f"TLS costs {cost:.1f} ns for a record {way} (at most 35), median of {len(more)} rounds, {more[0]:.1f} to {more[-1]:.1f}")
sys.exit(worst > 35)
END
