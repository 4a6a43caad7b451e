#!/usr/bin/env bash
# Copies over rdma beside rpc and tcp, in one virtual machine whose network card is software: ratios
# for docs/benchmarks.md, in docs/benchmarks/rdma.json. Arguments go to `kera-bench replication`; with
# --quick nothing is written, and the small cases run for the terminal only.
#
# KERA_BENCH_PROFILE is cargo's profile (release), KERA_BENCH_MINUTES how long runs begin (6).
set -euo pipefail
cd "$(dirname "$0")/../.."
title=bench-rdma
memory=2048
. scripts/rdma/machine.sh

# Nothing was measured, which is no success.
not_run() {
    printf '\n!!! NOT RUN: bench-rdma: %s\n!!! nothing was measured and no document is changed\n\n' "$1" >&2
    exit 1
}

prepare not_run

profile=${KERA_BENCH_PROFILE:-release}
minutes=${KERA_BENCH_MINUTES:-6}
say "building"
bench=$(cargo build --locked --profile "$profile" -p kera-bench --features rdma --message-format=json |
    sed -n 's/.*"kind":\["bin"\].*"name":"kera-bench".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$bench" ] || { say "cargo did not tell where kera-bench is"; exit 1; }
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit="$commit with changes"
accelerator=$(cat "$state/accelerator")
case $accelerator in
kvm) how="with the processor's own help" ;;
*) how="whose processors are emulated" ;;
esac
note="A software network card (rxe) in one QEMU machine $how ($accelerator)"
make_bench_payload "$bench" <<RUN
#!/bin/sh
# More turns than there is time for; what is measured when the time is over is kept.
export KERA_BENCH_COMMIT="$commit"
code=0
/payload/kera-bench replication --cards --address "\$KERA_RDMA_ADDRESS" --noise 100 \\
    --runs 9 --minutes $minutes --note "$note" --out /tmp ${*@Q} >/dev/null || code=\$?
stty -F /dev/ttyS1 raw
cat /tmp/rdma.json >/dev/ttyS1 || exit 1
exit "\$code"
RUN

results=$state/run/rdma.json
rm -f "$results"
say "one machine ($accelerator), $minutes minutes of runs"
seconds=$(awk -v minutes="$minutes" 'BEGIN { print int(minutes * 60) + 150 }')
start bench "$seconds" "kera.run=bench kera.address=10.77.0.1" -serial "file:$results"
code=0
wait $! || code=$?
console bench | sed "s/^/  | /"
case $code in
33 | 35) ;;
124) say "the machine was not done in time"; exit 1 ;;
0) say "the machine crashed"; exit 1 ;;
*) say "QEMU ended with $code"; cat "$state/run/bench.err"; exit 1 ;;
esac
[ -s "$results" ] || { say "the machine told no results"; exit 1; }

report=("$bench" replication --report "$results")
case " $* " in
*" --quick "*) ;;
*)
    # Written where every figure is there, and otherwise too: the tables say what failed.
    tr -d '\r' <"$results" >docs/benchmarks/rdma.json
    report=("$bench" replication --report docs/benchmarks/rdma.json --document docs/benchmarks.md)
    ;;
esac
"${report[@]}"
[ "$code" = 33 ] || { say "not all runs measured something"; exit 1; }
