"""The Python client beside confluent-kafka at one broker of Kera: what a record costs the client's process and the broker.

    compare.py run KERA_PROGRAM RESULTS      measures, and writes the results
    compare.py report RESULTS DOCUMENT       writes the document's section of them anew
    compare.py check RESULTS DOCUMENT        fails if that would change it

Each run has a process of its own, and clients take turns. PAIRS (5) says how many runs each has, and RECORDS how many records of
100 bytes (1,000,000); of 1,000 bytes there are a quarter as many.
"""

import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))

import figures

SIZES = (100, 1000)
CASES = {"produce": ("kera", "kafka"), "consume": ("kera", "kera-batches", "kera-arrow", "kafka", "kafka-poll")}
NAMES = {
    "kera": "Kera, record by record",
    "kera-batches": "Kera, records of batches",
    "kera-arrow": "Kera, Arrow batches",
    "kafka": "confluent-kafka, `consume` of 1,000",
    "kafka-poll": "confluent-kafka, `poll`",
}
PRODUCERS = {"kera": "Kera, `send`", "kafka": "confluent-kafka, `produce`"}


def load(broker, client, case, stream, size, warm_up, records):
    address = broker.addresses[client.split("-")[0]]
    done = subprocess.run(
        [sys.executable, HERE / "load.py", client, case, address, stream, str(broker.process.pid)]
        + [str(size), str(warm_up), str(records)],
        stdout=subprocess.PIPE, text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"{case} of {client} with {size} bytes failed")
    return json.loads(done.stdout)


def runs(broker, pairs, of_100_bytes):
    import kera

    admin = kera.Admin(bootstrap=broker.addresses["kera"])

    def stored(stream):
        return sum(lane.head for lane in admin.lanes(stream))

    def made(stream):
        admin.create_stream(stream, streamlets=1, lanes=1, retention_bytes=4 << 30)
        return stream

    for size in SIZES:
        records = of_100_bytes if size == 100 else of_100_bytes // 4
        warm_up = records // 10
        # Each client reads what its own producer wrote.
        written = {client: made(f"{client}-{size}") for client in ("kera", "kafka")}
        for client, stream in written.items():
            load(broker, client, "produce", stream, size, 0, records)
            if stored(stream) < records:
                raise SystemExit(f"{stream} has fewer than {records} records")
        sink = made(f"sink-{size}")
        for case, clients in CASES.items():
            for turn in range(pairs):
                # Who comes first changes.
                for client in clients if turn % 2 == 0 else reversed(clients):
                    before = stored(sink)
                    stream = sink if case == "produce" else written[client.split("-")[0]]
                    took = load(broker, client, case, stream, size, warm_up, records)
                    if case == "produce" and stored(sink) - before != warm_up + records:
                        raise SystemExit(f"{client} stored {stored(sink) - before} records of {warm_up + records}")
                    one = {"case": case, "size": size, "client": client, "turn": turn, "records": records, **took}
                    print(json.dumps(one), file=sys.stderr)
                    yield one


def run(program: str, results: str) -> None:
    import confluent_kafka

    pairs, records = int(os.environ.get("PAIRS", "5")), int(os.environ.get("RECORDS", "1000000"))

    def measure():
        broker = figures.Broker(program)
        try:
            return list(runs(broker, pairs, records))
        finally:
            broker.end()

    versions = {
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
    }
    figures.write(results, program, measure, versions, "connectors/python/bench")


def section(told) -> list[str]:
    versions = (
        f"Python {told['python']}, {told['kera']}, confluent-kafka {told['confluent_kafka']} with librdkafka {told['librdkafka']}."
    )
    lines = figures.head(told, "broker and client", versions)
    columns = ["records", "client", "client CPU, ns per record", "of confluent-kafka's", "thousand records/s", "broker CPU, ns per record"]
    for case, clients in CASES.items():
        rows = []
        for size in SIZES:
            of_client = {
                client: [one for one in told["runs"] if (one["case"], one["size"], one["client"]) == (case, size, client)]
                for client in clients
            }
            for client, own in of_client.items():
                ratios = figures.ratios(own, of_client["kafka"], lambda one: one["client_ns"])
                rows.append([
                    f"{own[0]['records']:,} of {size:,} bytes",
                    (PRODUCERS if case == "produce" else NAMES)[client],
                    figures.spread([one["client_ns"] for one in own], "{:,.0f}".format),
                    "-" if client == "kafka" else figures.spread(ratios, "{:.2f}".format),
                    figures.spread([one["records_per_second"] / 1000 for one in own], "{:,.0f}".format),
                    figures.spread([one["broker_ns"] for one in own], "{:,.0f}".format),
                ])
        lines += ["", f"### Python: {case}", "", *figures.table(columns, rows)]
    return [*lines, "", "Every run: [benchmarks/python.json](benchmarks/python.json)."]


if __name__ == "__main__":
    figures.main(sys.argv[1:], run, "bench-python", section, __doc__)
