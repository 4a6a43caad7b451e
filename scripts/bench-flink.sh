#!/usr/bin/env bash
# What jobs of Flink cost that read by Kera's connector, and by Kafka's from Kera and from Apache Kafka: CPU of engine and broker, how a step that
# waits holds them up, and how quick records are. Needs Java 17 and Maven, which downloads Flink, its connector of Kafka and Apache Kafka, 400 MB.
# Without arguments results go to docs/benchmarks/flink.json, and the section of docs/benchmarks.md is written anew;
# with one, results go to that file alone.
# RECORDS and PAIRS say how much; KERA_PROGRAM is the broker in place of one that is built here. 4 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
program=${KERA_PROGRAM:-}
if [ -z "$program" ]; then
    cargo build --locked --release -p kera
    program=$target/release/kera
fi
(cd connectors && mvn --batch-mode --no-transfer-progress --quiet package -Pbench -pl client-bench,flink-bench -am -DskipTests \
    -Dmaven.javadoc.skip=true -Dkera.target="$target/connectors")
kafka=$target/bench-flink/kafka
mvn --batch-mode --no-transfer-progress --quiet -f bench/peers/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$kafka"

bench=connectors/flink-bench/compare.py
results=$(realpath -m "${1:-docs/benchmarks/flink.json}")
PYTHONDONTWRITEBYTECODE=1 python3 "$bench" run "$(realpath "$program")" "$target/connectors" "$kafka" "$results"
if [ $# = 0 ]; then
    python3 "$bench" report "$results" docs/benchmarks.md
fi
