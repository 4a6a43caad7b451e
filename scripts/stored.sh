#!/usr/bin/env bash
# stored.sh PROGRAM NAME [cluster]: has that program store records, positions of a group, settings, and what else it
# knows, kills it, and keeps what then lies on the disks as cli/tests/upgrade/stored/NAME.tar.gz. Tests of every later
# version read it. Either one broker alone stores, and its data directory is kept; or two brokers and a replica store of
# a cluster do, and the directories of etcd, of each broker and of each one's shared memory are kept. The program of an
# earlier version is built from its commit by earlier.sh, which says where it is:
#
#   scripts/stored.sh "$(scripts/earlier.sh)" before-cluster-versions
#   scripts/stored.sh target/debug/kera cluster-version-1-in-a-cluster cluster
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "usage: scripts/stored.sh PROGRAM NAME [cluster]" >&2; exit 2; }
[ $# = 2 ] || { [ $# = 3 ] && [ "$3" = cluster ]; } || usage
program=$(realpath "$1")
to=$PWD/cli/tests/upgrade/stored/$2.tar.gz
work=$(mktemp -d)
shared=$(mktemp -d -p /dev/shm)
processes=()
trap 'kill -9 "${processes[@]}" 2>/dev/null || true; rm -rf "$work" "$shared"' EXIT
address=

undisturbed=(env -i PATH="$PATH" HOME="$work")
kera() { "${undisturbed[@]}" KERA_BOOTSTRAP="$address" "$program" "$@"; }
# started WHAT FLAGS: starts a broker or a replica store; its process is the last one, and `said` the address it tells.
started() {
    local fifo
    fifo=$work/said$RANDOM
    mkfifo "$fifo"
    # A function here would be a shell of its own, and a signal to that one would leave the program running.
    "${undisturbed[@]}" "$program" "$@" --http-listen off --memory-pool 16MiB >"$fifo" 2>>"$work/log" &
    processes+=($!)
    exec 3<"$fifo"
    read -r line <&3 || { cat "$work/log" >&2; exit 1; }
    said=$(grep -o '127\.0\.0\.1:[0-9]*' <<<"$line" | head -n 1)
}
# Lines from $1 to $2, as cli/tests/upgrade/main.rs has them.
lines() {
    awk -v from="$1" -v to="$2" 'BEGIN { for (n = from; n < to; n++)
        printf "key%d,%08d xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n", n % 7, n }'
}
produce() { kera produce "$1" --quiet --key-separator , --batch-size 2KiB; }
small=(--lanes 2 --segment-size 64KiB --segments-per-group 2)
# What is stored besides clicks and orders, which have 3,000 records each.
store() {
    kera consume clicks --group counters --from earliest --max 1000 >/dev/null
    # Compaction came with cluster version 1.
    if kera stream create tables --cleanup compact "${small[@]}" "$@" >/dev/null 2>&1; then
        lines 0 3000 | produce tables
        kera stream compact tables >/dev/null
    fi
    # The order of keys came with cluster version 3.
    if kera consume --help | grep -q -w key; then
        kera consume clicks --group carts --order key --from earliest --max 1000 >/dev/null
    fi
    kera acl add --allow User:alice --operation read --stream clicks >/dev/null
    # Roles came with cluster version 6.
    if kera role create readers User:alice >/dev/null 2>&1; then
        kera acl add --allow Role:readers --operation read --stream orders >/dev/null
    fi
    # Pins came with cluster version 7.
    if kera pin --help >/dev/null 2>&1; then
        kera pin create clicks savepoint --policy wait >/dev/null
    fi
    echo secret >"$work/password"
    kera user create alice --password-file "$work/password" >/dev/null
}
# What lies in the folders below $1 that are named behind it, without the rooms that nobody has written to.
keep() {
    tar --create --sparse --hole-detection=raw --sort name --owner 0 --group 0 --numeric-owner --mtime @0 \
        --directory "$@" | gzip -9n >"$to"
    ls -l "$to"
}

# Transactions that ended with another epoch came with cluster version 2: one that is kept, one that is not, one that is open.
transactions() {
    if kera transaction --help >/dev/null 2>&1; then
        kera stream create ledger --streamlets 1 --lanes 1 >/dev/null
        "${undisturbed[@]}" python3 scripts/stored_transactions.py "$1" ledger
    fi
}

alone() {
    local kafka=127.0.0.1:23810
    start() {
        started serve --data-dir "$work/data" --listen 127.0.0.1:0 --kafka-listen "$kafka"
        address=$said
    }
    start
    local pair
    for pair in clicks:written orders:synced; do
        kera stream create "${pair%:*}" --ack "${pair#*:}" --streamlets 2 "${small[@]}" >/dev/null
        lines 0 3000 | produce "${pair%:*}"
    done
    store
    transactions "$kafka"
    kill -TERM "${processes[-1]}"
    wait "${processes[-1]}"
    exec 3<&-
    # What a second life adds is cut off by its end.
    start
    lines 3000 4000 | produce clicks
    kill -9 "${processes[-1]}"
    wait "${processes[-1]}" || true
    keep "$work" data
}

# Flags of the member with this number: its own directories.
member() {
    # As versions name them.
    local replicas=--replica-store
    kera serve --help | grep -q -e "$replicas-memory" || replicas=--backup
    mkdir -p "$shared/memory$1"
    echo --data-dir "$work/broker$1" --cluster "$store" --broker-id "$1" --cluster-allow-same-host \
        "$replicas-memory-bytes" 16MiB "$replicas-shared-dir" "$shared/memory$1" --replication-listen 127.0.0.1:0
}

cluster() {
    local clients=127.0.0.1:23790 peers=127.0.0.1:23800 flags
    "${undisturbed[@]}" etcd --name member --data-dir "$work/etcd" --initial-cluster "member=http://$peers" \
        --listen-client-urls "http://$clients" --advertise-client-urls "http://$clients" \
        --listen-peer-urls "http://$peers" --initial-advertise-peer-urls "http://$peers" 2>"$work/etcd.log" &
    processes+=($!)
    store=etcd://$clients
    kera cluster init --cluster "$store" >/dev/null
    for number in 1 2; do
        read -r -a flags <<<"$(member $number)"
        started serve --listen 127.0.0.1:0 "${flags[@]}"
        address=${address:+$address,}$said
    done
    read -r -a flags <<<"$(member 3)"
    started replica-store "${flags[@]}"
    local stream name ack replicas
    for stream in clicks:written:3 orders:synced:2; do
        IFS=: read -r name ack replicas <<<"$stream"
        # Once the replica store is known.
        local tries=0
        until kera stream create "$name" --ack "$ack" --replicas "$replicas" --streamlets 2 "${small[@]}" >/dev/null; do
            [ $((tries += 1)) -lt 100 ]
            sleep 0.1
        done
        lines 0 3000 | produce "$name"
    done
    store --replicas 2
    lines 3000 4000 | produce clicks
    # All of them at once, as when the power goes.
    kill -9 "${processes[@]}"
    wait "${processes[@]}" || true
    mv "$shared"/memory* "$work"
    keep "$work" etcd broker1 broker2 broker3 memory1 memory2 memory3
}

"${3:-alone}"
