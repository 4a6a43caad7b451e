"""Jobs of Flink that read by Kera's connector and by Kafka's: what a record costs the engine and the broker, and how quick it is.

    compare.py run KERA_PROGRAM JARS KAFKA RESULTS      measures, and writes the results
    compare.py report RESULTS DOCUMENT                  writes the document's section of them anew
    compare.py check RESULTS DOCUMENT                   fails if that would change it

JARS is the target directory of the modules, KAFKA that of Apache Kafka's jars. Each run is a cluster of Flink in a process of its own,
and ways take turns. PAIRS (3) says how many runs each has, and RECORDS how many records count (4,000,000).
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "bench"))

import figures

PEER = figures.ROOT / "bench/peers/kafka"
ENGINE = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]
WAYS = {
    "kera": "Kera's connector, Kera",
    "kafka-kera": "Kafka's connector, Kera",
    "kafka": "Kafka's connector, Apache Kafka",
}
RATES = (10_000, 100_000)
# Records that count, of those before that do not, at a rate: so many seconds.
RATE_SECONDS, RATE_WARM_UP = 10, 5
# Of a step that waits 1 ms every 20 records.
SLOW_RECORDS, SLOW_WARM_UP = 200_000, 40_000


class ApacheKafka:
    """A broker of Apache Kafka in a directory that goes with it, configured as for `make bench-kafka`."""

    def __init__(self, jars: pathlib.Path):
        self.jars = jars
        self.home = tempfile.TemporaryDirectory()
        ports = [free_port(), free_port()]
        self.address, controller = (f"127.0.0.1:{port}" for port in ports)
        properties = pathlib.Path(self.home.name, "server.properties")
        properties.write_text(
            (PEER / "server.properties").read_text()
            + f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}\nadvertised.listeners=PLAINTEXT://{self.address}\n"
            + f"controller.quorum.voters=1@{controller}\nlog.dirs={self.home.name}/logs\n"
        )
        cluster = subprocess.run(self.java("kafka.tools.StorageTool", "random-uuid"), capture_output=True, text=True, check=True)
        cluster = cluster.stdout.split()[-1]
        formatted = self.java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        subprocess.run(formatted, capture_output=True, check=True)
        with open(f"{self.home.name}/log", "w") as log:
            self.process = subprocess.Popen(self.java("kafka.Kafka", str(properties)), stdout=log, stderr=log)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", ports[0]), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"Apache Kafka did not start: {pathlib.Path(self.home.name, 'log').read_text()}")

    def java(self, *command) -> list[str]:
        return ["java", f"@{PEER}/jvm.options", "-cp", f"{self.jars}/*", *command]

    def create(self, topic: str) -> None:
        create = ["--bootstrap-server", self.address, "--create", "--topic", topic, "--partitions", "1"]
        subprocess.run(self.java("org.apache.kafka.tools.TopicCommand", *create), capture_output=True, check=True)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Bench:
    def __init__(self, program: str, jars: str, kafka_jars: str):
        self.jars = pathlib.Path(jars)
        self.kera = figures.Broker(program)
        try:
            self.kafka = ApacheKafka(pathlib.Path(kafka_jars))
        except BaseException:
            self.kera.end()
            raise

    def end(self) -> None:
        self.kera.end()
        self.kafka.end()

    def address(self, way: str) -> str:
        return self.kafka.address if way == "kafka" else self.kera.addresses[way.split("-")[0]]

    def create(self, way: str, stream: str) -> str:
        if way == "kafka":
            self.kafka.create(stream)
        else:
            command = ["stream", "create", stream, "--streamlets", "1", "--lanes", "1", "--retention-bytes", "4GiB"]
            figures.words(self.kera.program, *command, "--bootstrap", self.kera.addresses["kera"])
        return stream

    def fill(self, way: str, stream: str, records: int) -> None:
        """By the producer that belongs to the connector."""
        jar = self.jars / "kera-client-bench/kera-client-bench-0.1.0-SNAPSHOT.jar"
        load = ["java", "-Xmx512m", "-cp", jar, "io.kera.bench.Load", way.split("-")[0], "plain", self.address(way), stream, "0"]
        subprocess.run([*load, str(records)], check=True, stdout=subprocess.DEVNULL)

    def job(self, way: str, case: str, stream: str, warm_up: int, records: int, rate: int = 0) -> dict:
        home = self.jars / "kera-flink-bench"
        path = f"{home}/kera-flink-bench-0.1.0-SNAPSHOT.jar:{home}/lib/*"
        broker = self.kafka.process.pid if way == "kafka" else self.kera.process.pid
        done = subprocess.run(
            ["java", *ENGINE, "-cp", path, "io.kera.bench.flink.FlinkLoad", way.split("-")[0], case, self.address(way), stream]
            + [str(number) for number in (broker, warm_up, records, rate)],
            capture_output=True, text=True, timeout=600,
        )
        if done.returncode != 0:
            raise SystemExit(f"{case} by {WAYS[way]} failed:\n{done.stderr}")
        return json.loads(done.stdout)

    def runs(self, pairs: int, records: int):
        warm_up = records // 2
        for way in WAYS:
            self.fill(way, self.create(way, f"full-{way}"), warm_up + records)
        cases = [("cpu", 0, warm_up, records), ("slow", 0, SLOW_WARM_UP, SLOW_RECORDS)]
        cases += [("latency", rate, rate * RATE_WARM_UP, rate * RATE_SECONDS) for rate in RATES]
        for case, rate, before, counted in cases:
            for turn in range(pairs):
                # Who comes first changes.
                for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                    stream = f"full-{way}" if rate == 0 else self.create(way, f"{case}-{rate}-{turn}-{way}")
                    took = self.job(way, case, stream, before, counted, rate)
                    one = {"case": case, "rate": rate, "way": way, "turn": turn, "records": counted, **took}
                    print(json.dumps(one), file=sys.stderr)
                    yield one


def version(jars: pathlib.Path, name: str) -> str:
    """That of a jar."""
    [found] = [match[1] for jar in jars.iterdir() if (match := re.fullmatch(rf"{re.escape(name)}-(\d.*)\.jar", jar.name))]
    return found


def run(program: str, jars: str, kafka_jars: str, results: str) -> None:
    pairs, records = int(os.environ.get("PAIRS", "3")), int(os.environ.get("RECORDS", "4000000"))
    lib = pathlib.Path(jars, "kera-flink-bench/lib")

    def measure():
        bench = Bench(program, jars, kafka_jars)
        try:
            return list(bench.runs(pairs, records))
        finally:
            bench.end()

    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    versions = {
        "flink": version(lib, "flink-streaming-java"),
        "flink_connector_kafka": version(lib, "flink-connector-kafka"),
        "kafka_clients": version(lib, "kafka-clients"),
        "kafka": version(pathlib.Path(kafka_jars), "kafka_2.13"),
        "java": java,
        "engine": " ".join(ENGINE),
    }
    figures.write(results, program, measure, versions, "connectors/flink-bench")


def cells(way, runs, others, figure, form, scale=1.0) -> list[str]:
    """A figure, and its ratio to that of Apache Kafka."""
    own = figures.spread([figure(one) * scale for one in runs], form)
    return [own, "-" if way == "kafka" else figures.spread(figures.ratios(runs, others, figure), "{:.2f}".format)]


def section(told) -> list[str]:
    versions = (
        f"{told['kera']}, Flink {told['flink']}, flink-connector-kafka {told['flink_connector_kafka']} with kafka-clients "
        f"{told['kafka_clients']}, Apache Kafka {told['kafka']}, {told['java']}; `{told['engine']}` for the engine."
    )
    lines = figures.head(told, "engine, broker and producer", versions)

    def of(case, way, rate=0):
        return [one for one in told["runs"] if (one["case"], one["way"], one["rate"]) == (case, way, rate)]

    def cpu(one):
        return one["engine_ns"] + one["broker_ns"]

    def rate_of(one):
        return one["records_per_second"]

    whole, thousands = "{:,.0f}".format, "{:,.1f}".format
    rows = []
    for way, name in WAYS.items():
        runs = of("cpu", way)
        parts = [figures.spread([one[part] for one in runs], whole) for part in ("engine_ns", "broker_ns")]
        rows.append([name, *cells(way, runs, of("cpu", "kafka"), cpu, whole), *parts])
    columns = ["read by, from", "CPU, ns per record", "of the last", "of that the engine", "and the broker"]
    lines += ["", f"### Flink: CPU of {of('cpu', 'kera')[0]['records']:,} records", "", *figures.table(columns, rows)]

    rows = [[name, *cells(way, of("slow", way), of("slow", "kafka"), rate_of, thousands, 1e-3)] for way, name in WAYS.items()]
    columns = ["read by, from", "thousand records/s", "of the last"]
    lines += ["", "### Flink: a step that waits", "", *figures.table(columns, rows)]

    rows = []
    for rate in RATES:
        for way, name in WAYS.items():
            runs, others = of("latency", way, rate), of("latency", "kafka", rate)
            rows.append([
                f"{rate:,}",
                name,
                figures.spread([one["p50_ms"] for one in runs], thousands),
                *cells(way, runs, others, lambda one: one["p99_ms"], thousands),
            ])
    columns = ["records/s", "read by, from", "half within, ms", "99 % within, ms", "of the last"]
    lines += ["", "### Flink: from when a record is due to its operator", "", *figures.table(columns, rows)]
    return [*lines, "", "Every run: [benchmarks/flink.json](benchmarks/flink.json)."]


if __name__ == "__main__":
    figures.main(sys.argv[1:], run, "bench-flink", section, __doc__)
