#!/usr/bin/env bash
# The tests of the rdma transport, in virtual machines whose network card is software: real verbs
# and real queue pairs, without a card. First the suite and its stories in one machine, then brokers in
# another, then two machines of which one is powered off. Lines say how many tests passed.
#
# With `brokers` only those, of the program KERA_PROGRAM if it is given: `make test-dist` has the program as it is shipped.
#
# A machine that ends with QEMU's exit code 33 has passed; 0 is what a crashed kernel ends with.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/rdma/machine.sh

skip() {
    printf 'SKIPPED: test-rdma: %s\n' "$1" | tee -a "${KERA_SKIP_FILE:-/dev/null}"
    exit 0
}

prepare skip

say "building"
# The whole workspace is named, so that all crates but those with rdma have the features that `cargo test --workspace` has built
# them with.
if [ "${1:-}" != brokers ]; then
    cargo clippy --locked --workspace --features kera/rdma --lib --test rdma -- -D warnings
fi
# The programs have a directory of their own, though all else is built where it always is: otherwise kera with rdma would
# take the place of kera without it, under the tests of `make unit` that run it meanwhile.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# build ARGUMENT...: builds, and tells in `built` what there is.
build() {
    built=$(CARGO_BUILD_BUILD_DIR=$target cargo test --locked --workspace --features kera/rdma --target-dir "$target/rdma" \
        "$@" --no-run --message-format=json)
}
# program PACKAGE KIND NAME: where a program is that was built.
program() {
    sed -n "s/.*\"package_id\":\"[^\"]*[#/]$1[@\"#].*\"kind\":\[\"$2\"\].*\"name\":\"$3\".*\"executable\":\"\([^\"]*\)\".*/\1/p" \
        <<<"$built" | tail -n 1
}
if [ "${1:-}" != brokers ]; then
    build --lib
    tests=$(program kera-replication lib kera_replication)
    (cd replication && CARGO_MANIFEST_DIR=$PWD "$tests")
fi
build --test rdma
transport=$(program kera-replication test rdma)
brokers=$(program kera test rdma)
kera=$(program kera bin kera)
for binary in "$transport" "$brokers" "$kera"; do
    [ -x "$binary" ] || { say "cargo did not tell where a program is"; exit 1; }
done
make_payload "$transport" "$brokers" "$kera" "$(dirname "$(dirname "$kera")")/tmp" "${KERA_PROGRAM:-$kera}"

# verdict NAME CODE: shows what a machine said; fails unless it passed.
verdict() {
    console "$1" | sed "s/^/  $1| /"
    # For whoever adds up results.
    console "$1" | grep '^test result: ' || true
    case $2 in
    33) ;;
    124) say "machine $1 was not done in time"; return 1 ;;
    0) say "machine $1 crashed"; return 1 ;;
    35) say "machine $1: tests failed"; return 1 ;;
    *) say "machine $1: QEMU ended with $2"; cat "$state/run/$1.err"; return 1 ;;
    esac
    console "$1" | grep -q '^test result: ok\. [1-9]' || { say "machine $1 ran no test"; return 1; }
}

if [ "${1:-}" != brokers ]; then
    begun=$SECONDS
    say "one machine"
    start one 420 "kera.run=all kera.address=10.77.0.1"
    code=0
    wait $! || code=$?
    verdict one "$code"
    say "one machine took $((SECONDS - begun)) s"
fi

begun=$SECONDS
say "brokers"
start brokers 420 "kera.run=brokers kera.address=10.77.0.1"
code=0
wait $! || code=$?
verdict brokers "$code"
say "brokers took $((SECONDS - begun)) s"
[ "${1:-}" != brokers ] || exit 0

begun=$SECONDS
say "two machines, one of which is powered off"
socket=$state/run/wire
rm -f "$socket"
wire=(-netdev "stream,id=n0,addr.type=unix,addr.path=$socket")
start victim 200 "kera.run=two::victim kera.address=10.77.0.2 kera.peer=10.77.0.1" \
    "${wire[@]},server=on" -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:02,romfile=
victim=$!
until [ -S "$socket" ] || ! kill -0 "$victim" 2>/dev/null; do sleep 0.1; done
start survivor 200 "kera.run=two::survivor kera.address=10.77.0.1 kera.peer=10.77.0.2" \
    "${wire[@]},server=off" -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01,romfile=
survivor=$!
until console survivor | grep -q '^UNDER LOAD' || ! kill -0 "$survivor" 2>/dev/null; do sleep 0.1; done
power_off victim
# Bash would tell of a process that was killed.
wait "$victim" 2>/dev/null || true
code=0
wait "$survivor" || code=$?
console victim | sed "s/^/  victim| /"
verdict survivor "$code"
say "two machines took $((SECONDS - begun)) s"
