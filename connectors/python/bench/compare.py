"""The Python client beside confluent-kafka at one broker of Kera: what a record costs the client's process and the broker.

    compare.py run KERA_PROGRAM RESULTS      measures, and writes the results
    compare.py report RESULTS DOCUMENT       writes the document's section of them anew
    compare.py check RESULTS DOCUMENT        fails if that would change it

Each run has a process of its own, and clients take turns. PAIRS (5) says how many runs each has, and RECORDS how many records of
100 bytes (1,000,000); of 1,000 bytes there are a quarter as many.
"""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
BEGIN, END = "<!-- bench-python, begin -->", "<!-- bench-python, end -->"
# Above this the rate says little; CPU time suffers less.
NOISY_PERCENT = 15
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


class Broker:
    """A broker in a directory that goes with it."""

    def __init__(self, program: str):
        self.home = tempfile.TemporaryDirectory()
        with open(f"{self.home.name}/log", "w") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--data-dir", f"{self.home.name}/data", "--http-listen", "off"]
                + ["--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )
        self.addresses = {}
        for line in self.process.stdout:
            for begin, client in (("listening on ", "kera"), ("Kafka clients on ", "kafka")):
                if line.startswith(begin):
                    self.addresses[client] = line.removeprefix(begin).split()[0].rstrip(",")
            if len(self.addresses) == 2:
                return
        raise SystemExit(f"the broker did not start: {pathlib.Path(self.home.name, 'log').read_text()}")

    def address(self, client: str) -> str:
        return self.addresses[client.split("-")[0]]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()


def load(broker, client, case, stream, size, warm_up, records):
    done = subprocess.run(
        [sys.executable, HERE / "load.py", client, case, broker.address(client), stream, str(broker.process.pid)]
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


def words(*command) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def machine() -> dict:
    named = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cores": os.cpu_count(),
        "processor": named[0] if named else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def run(program: str, results: str) -> None:
    import confluent_kafka

    pairs, records = int(os.environ.get("PAIRS", "5")), int(os.environ.get("RECORDS", "1000000"))
    changed = words("git", "status", "--porcelain", "--", ".", ":!docs", ":!connectors/python/bench")
    began, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
    broker = Broker(program)
    try:
        found = list(runs(broker, pairs, records))
    finally:
        broker.end()
    told = {
        "started": started.strftime("%Y-%m-%d %H:%M"),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "commit": words("git", "rev-parse", "--short=7", "HEAD") + (" with changes" if changed else ""),
        "kera": words(program, "--version").split(" (")[0],
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
        "machine": machine(),
        "runs": found,
    }
    pathlib.Path(results).write_text(json.dumps(told, indent=1) + "\n")


def spread(figures, form) -> str:
    return f"{form(statistics.median(figures))} ({form(min(figures))}-{form(max(figures))})"


def section(told) -> str:
    where, noise = told["machine"], [one["others_percent"] for one in told["runs"]]
    noisy = sum(percent > NOISY_PERCENT for percent in noise)
    lines = [
        f"{told['started']} UTC, {told['minutes']:.0f} minutes, commit {told['commit']}. {where['cores']} cores ({where['processor']}), "
        f"{where['memory_gib']} GiB, {where['kernel']}, shared by broker and client. Python {told['python']}, {told['kera']}, "
        f"confluent-kafka {told['confluent_kafka']} with librdkafka {told['librdkafka']}.",
        "",
        f"Meanwhile other processes used {spread(noise, '{:.0f}'.format)} % of the cores; in {noisy} of {len(noise)} runs it was more than "
        f"{NOISY_PERCENT} %. A cell is the median (least-most); a ratio is that of the runs of one turn.",
    ]
    for case, clients in CASES.items():
        lines += [
            "",
            f"### Python: {case}",
            "",
            "| records | client | client CPU, ns per record | of confluent-kafka's | thousand records/s | broker CPU, ns per record |",
            "|---|---|---|---|---|---|",
        ]
        for size in SIZES:
            of_client = {
                client: [one for one in told["runs"] if (one["case"], one["size"], one["client"]) == (case, size, client)]
                for client in clients
            }
            for client, own in of_client.items():
                pairs = zip(own, of_client["kafka"], strict=True)
                ratios = [one["client_ns"] / other["client_ns"] for one, other in pairs]
                cells = [
                    f"{own[0]['records']:,} of {size:,} bytes",
                    (PRODUCERS if case == "produce" else NAMES)[client],
                    spread([one["client_ns"] for one in own], "{:,.0f}".format),
                    "-" if client == "kafka" else spread(ratios, "{:.2f}".format),
                    spread([one["records_per_second"] / 1000 for one in own], "{:,.0f}".format),
                    spread([one["broker_ns"] for one in own], "{:,.0f}".format),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Every run: [benchmarks/python.json](benchmarks/python.json)."]
    return "\n".join(lines)


def with_section(results: str, document: str) -> tuple[str, str]:
    """The document as it is, and as the results give it."""
    text = pathlib.Path(document).read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{document} has no marks {BEGIN} and {END}")
    return text, f"{before}{BEGIN}\n{section(json.loads(pathlib.Path(results).read_text()))}\n{END}{after}"


def main() -> None:
    match sys.argv[1:]:
        case ["run", program, results]:
            run(program, results)
        case ["report", results, document]:
            pathlib.Path(document).write_text(with_section(results, document)[1])
        case ["check", results, document]:
            text, wanted = with_section(results, document)
            if text != wanted:
                raise SystemExit(f"{document} has not what {results} gives; `make bench-document` writes it anew")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
