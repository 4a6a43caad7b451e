#!/usr/bin/env bash
# The long runs. Each adds a line with the date, the commit and what came of it to the table in
# docs/reliability.md. One that fails does not keep the others from running; all are summed up in the
# end, and the exit status is 1 if any failed.
#
#   KERA_CRASH_ROUNDS (100)  kills of the crash loop (a quarter as many more under ack = synced, a third under memory and with trims; half
#                            as many with a file harmed after each under written, a third under synced)
#   KERA_CRASH_SEED          repeats the choices of an earlier run of it
#   KERA_KAFKA_CRASH_ROUNDS (100)  kills of the crash loop through a Kafka client
#   KERA_KAFKA_STREAMS_ROUNDS (60)  faults under Kafka Streams
#   KERA_KAFKA_CONNECT_ROUNDS (40)  faults under Kafka Connect
#   KERA_NETWORK_RUNS (100)  runs of three brokers in network namespaces, which takes root
#   KERA_CLUSTER_RUNS (200)  runs of three brokers that share an etcd, likewise
#   KERA_KAFKA_CLUSTER_ROUNDS (100)  faults of such brokers under Kafka clients
#   KERA_KAFKA_APART_ROUNDS (60)  faults of such brokers in network namespaces, likewise
#   FUZZ_SECONDS (60)        seconds for each fuzz target
#   PROPTEST_CASES (10000)   cases for each property
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

scripts/needs.sh || exit 1
rounds=${KERA_CRASH_ROUNDS:-100}
kafka_rounds=${KERA_KAFKA_CRASH_ROUNDS:-100}
network_runs=${KERA_NETWORK_RUNS:-100}
cluster_runs=${KERA_CLUSTER_RUNS:-200}
kafka_faults=${KERA_KAFKA_CLUSTER_ROUNDS:-100}
streams_rounds=${KERA_KAFKA_STREAMS_ROUNDS:-60}
connect_rounds=${KERA_KAFKA_CONNECT_ROUNDS:-40}
kafka_apart=${KERA_KAFKA_APART_ROUNDS:-60}
seconds=${FUZZ_SECONDS:-60}
cases=${PROPTEST_CASES:-10000}
logs=${CARGO_TARGET_DIR:-$PWD/target}/test-logs
mkdir -p "$logs"

commit=$(git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
# A run of something that no commit holds says so.
if [ -n "$(git status --porcelain -- . ':!docs/reliability.md' 2>/dev/null)" ]; then
    commit+=" with changes"
fi
broken=0
outcomes=

# record NAME VERDICT: one line of the table of results, the last of the document, which goes on below it.
record() {
    local line last
    line="| $(date -u +'%Y-%m-%d %H:%M') | $commit | $1 | $2 |"
    last=$(grep -n '^|' docs/reliability.md | tail -n 1 | cut -d: -f1)
    sed -i "${last:-\$}r /dev/stdin" docs/reliability.md <<<"$line"
    outcomes+="  $1: $2"$'\n'
    printf '\n==> %s: %s\n' "$1" "$2"
}
# The sums of the tests in file $1.
sums() {
    local passed failed _
    read -r passed failed _ <<<"$(scripts/counts.sh "$1")"
    printf '%d passed, %d failed' "$passed" "$failed"
}
# Whether a test passed in file $1: a name that no test has any more chooses none, and fails none.
has_passed() { [ "$(scripts/counts.sh "$1" | cut -d ' ' -f 1)" != 0 ]; }
# run NAME LOG COMMAND...: runs it, keeps what it prints, records the outcome.
run() {
    local name=$1 log=$logs/$2.log begun=$SECONDS detail skipped
    shift 2
    export KERA_SKIP_FILE=$logs/skipped
    : >"$KERA_SKIP_FILE"
    if "$@" 2>&1 | tee "$log" && has_passed "$log"; then
        detail=$(grep -oE '(crash loop|network|cluster): .*' "$log" | paste -sd ';')
        # The test harness counts a test that skipped itself as passed.
        skipped=$(sort -u "$KERA_SKIP_FILE" | grep -c . || true)
        [ "$skipped" = 0 ] || detail="${detail:-$(sums "$log")}, of which $skipped did NOT run"
        record "$name" "ok in $((SECONDS - begun)) s; ${detail:-$(sums "$log")}"
    else
        detail=$(grep -oE '^seed [0-9]+|failed, KERA_[A-Z_]+_SEED=[0-9]+' "$log" | sort -u | paste -sd ' ')
        record "$name" "FAILED after $((SECONDS - begun)) s; $(sums "$log")${detail:+, $detail}"
        broken=1
    fi
}

run "crash loop, $rounds kills" crash-loop \
    env KERA_CRASH_ROUNDS="$rounds" cargo test --locked --release -p kera --test crash_loop -- --nocapture
run "crash loop through librdkafka, $kafka_rounds kills" kafka-crash-loop \
    env KERA_KAFKA_CRASH_ROUNDS="$kafka_rounds" \
    cargo test --locked --release -p kera-kafka-clients --test crash_loop -- --nocapture
run "three brokers in network namespaces, $network_runs runs" network \
    env KERA_NETWORK_RUNS="$network_runs" cargo test --locked --release -p kera --test network -- --nocapture
run "three brokers that share an etcd, $cluster_runs runs" cluster \
    env KERA_CLUSTER_RUNS="$cluster_runs" cargo test --locked --release -p kera --test cluster -- --nocapture
run "the same through librdkafka, $kafka_faults faults on loopback, $kafka_apart in namespaces" kafka-cluster \
    env KERA_KAFKA_CLUSTER_ROUNDS="$kafka_faults" KERA_KAFKA_APART_ROUNDS="$kafka_apart" \
    cargo test --locked --release -p kera-kafka-clients --features wider --test cluster -- --nocapture
run "Kafka Streams with exactly_once_v2, $streams_rounds faults" kafka-streams \
    env KERA_KAFKA_STREAMS_ROUNDS="$streams_rounds" \
    cargo test --locked --release -p kera-kafka-clients --test streams -- --nocapture
run "Kafka Connect with exactly-once sources, $connect_rounds faults" kafka-connect \
    env KERA_KAFKA_CONNECT_ROUNDS="$connect_rounds" \
    cargo test --locked --release -p kera-kafka-clients --test connect -- --nocapture
run "the program as it is shipped, brokers with a software network card" dist make test-dist
run "the package of the program as it is shipped, installed in an empty system" package make package
# A line for each client. Tests that a missing tool keeps from running are named in the log.
for client in java_3 sarama aiokafka confluent kafkajs; do
    run "Kafka client $client" "kafka-$client" \
        cargo test --locked --release -p kera-kafka-clients --features wider --test wider -- "$client::"
done
run "Kafka's own tools and Connect" kafka-tools \
    cargo test --locked --release -p kera-kafka-clients --features wider --test wider -- tools::
run "the Java client and the connector over Flink 2.3.0" flink-2.3 env KERA_FLINK=2.3.0 scripts/connectors.sh
run "the Spark connector" spark scripts/spark.sh
run "the Samza connector" samza scripts/samza.sh
run "the wheel of the Python client, installed alone" wheel scripts/wheel.sh
run "tables of DataFusion" datafusion scripts/datafusion.sh
run "the Rust clients as a registry would get them" publish \
    cargo publish --dry-run --locked -p kera-protocol -p kera-rpc -p kera-producer -p kera-consumer
run "property tests, $cases cases each" properties \
    env PROPTEST_CASES="$cases" cargo test --locked --release --workspace --no-fail-fast
log=$logs/fuzz.log
begun=$SECONDS
if FUZZ_SECONDS=$seconds scripts/fuzz.sh 2>&1 | tee "$log"; then
    units=$(awk '/stat::number_of_executed_units/ { n += $2 } END { print n + 0 }' "$log")
    record "fuzz targets, $seconds s each" "ok in $((SECONDS - begun)) s; $units inputs"
else
    record "fuzz targets, $seconds s each" "FAILED: $(grep -E '^fuzz: ' "$log" | tail -n 1)"
    broken=1
fi
printf '\n==> summary (logs in %s)\n%s' "$logs" "$outcomes"
exit "$broken"
