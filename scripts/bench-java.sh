#!/usr/bin/env bash
# What a record costs the process of a producer, and of a consumer: the Java client beside kafka-clients, at one broker, by turns; and
# Kera's own producer in Rust. Needs Java 17 and Maven, which downloads kafka-clients.
# WARM_UP, RECORDS and PAIRS say how much; KERA_PROGRAM is the broker in place of one that is built here.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
program=${KERA_PROGRAM:-}
if [ -z "$program" ]; then
    cargo build --locked --release -p kera
    program=$target/release/kera
fi
(cd connectors && mvn --batch-mode --no-transfer-progress --quiet package -Pbench -pl client-bench -am -DskipTests \
    -Dmaven.javadoc.skip=true -Dkera.target="$target/connectors")
home=$(mktemp -d)
"$program" serve --data-dir "$home/data" --listen 127.0.0.1:0 --kafka-listen 127.0.0.1:0 --http-listen off \
    >"$home/said" 2>"$home/log" &
broker=$!
trap 'kill $broker; wait $broker || true; rm -rf "$home"' EXIT
until grep -q '^Kafka clients on ' "$home/said"; do
    kill -0 $broker || { cat "$home/log"; exit 1; }
    sleep 0.1
done
native=$(sed -n 's/^listening on \([^ ,]*\).*/\1/p' "$home/said")
kafka=$(sed -n 's/^Kafka clients on \([^ ,]*\).*/\1/p' "$home/said")
"$program" stream create load --streamlets 1 --lanes 1 --retention-bytes 4GiB --bootstrap "$native" >/dev/null
java -cp "$target/connectors/kera-client-bench/kera-client-bench-0.1.0-SNAPSHOT.jar" io.kera.bench.Compare \
    "$native" "$kafka" load "${WARM_UP:-2000000}" "${RECORDS:-5000000}" "${PAIRS:-5}"
"$program" bench produce load --records "${RECORDS:-5000000}" --batch-size 128KiB --no-disk --bootstrap "$native"
