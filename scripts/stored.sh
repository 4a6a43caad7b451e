#!/usr/bin/env bash
# stored.sh PROGRAM NAME: has a broker of that program store records, positions of a group, settings, and what else the
# program knows, kills it, and keeps its data directory as cli/tests/upgrade/stored/NAME.tar.gz. Tests of every later
# version read it. The program of an earlier version is built from its commit by earlier.sh, which says where it is:
#
#   scripts/stored.sh "$(scripts/earlier.sh)" before-cluster-versions
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || { echo "usage: scripts/stored.sh PROGRAM NAME" >&2; exit 2; }
program=$(realpath "$1")
to=$PWD/cli/tests/upgrade/stored/$2.tar.gz
work=$(mktemp -d)
trap 'kill -9 "$broker" 2>/dev/null || true; rm -rf "$work"' EXIT
broker=

kera() { env -i PATH="$PATH" HOME="$work" KERA_BOOTSTRAP="${address:-}" "$program" "$@"; }
mkfifo "$work/said"
start() {
    env -i PATH="$PATH" HOME="$work" "$program" serve --data-dir "$work/data" --listen 127.0.0.1:0 \
        --http-listen off --memory-pool 16MiB >"$work/said" 2>>"$work/log" &
    broker=$!
    exec 3<"$work/said"
    read -r line <&3 || { cat "$work/log"; exit 1; }
    address=$(grep -o '127\.0\.0\.1:[0-9]*' <<<"$line" | head -n 1)
}
# Lines from $1 to $2, as cli/tests/upgrade/main.rs has them.
lines() {
    awk -v from="$1" -v to="$2" 'BEGIN { for (n = from; n < to; n++)
        printf "key%d,%08d xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n", n % 7, n }'
}
start
small=(--streamlets 2 --lanes 2 --segment-size 64KiB --segments-per-group 2)
for pair in clicks:written orders:synced; do
    kera stream create "${pair%:*}" --ack "${pair#*:}" "${small[@]}" >/dev/null
    lines 0 3000 | kera produce "${pair%:*}" --quiet --key-separator , --batch-size 2KiB
done
kera consume clicks --group counters --from earliest --max 1000 >/dev/null
# Compaction came with cluster version 1.
if kera stream create tables --cleanup compact --lanes 2 --segment-size 64KiB --segments-per-group 2 >/dev/null 2>&1; then
    lines 0 3000 | kera produce tables --quiet --key-separator , --batch-size 2KiB
    kera stream compact tables >/dev/null
fi
kera acl add --allow User:alice --operation read --stream clicks >/dev/null
echo secret >"$work/password"
kera user create alice --password-file "$work/password" >/dev/null
kill -TERM "$broker"
wait "$broker"
exec 3<&-
# What a second life adds is cut off by its end.
start
lines 3000 4000 | kera produce clicks --quiet --key-separator , --batch-size 2KiB
kill -9 "$broker"
wait "$broker" || true
tar --create --sparse --sort name --owner 0 --group 0 --numeric-owner --mtime @0 --directory "$work" data | gzip -9n >"$to"
ls -l "$to"
