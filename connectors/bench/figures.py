"""What the comparisons of connectors share: a broker of Kera, the machine, and a section of a document that is written from results.

Each comparison is a program with these uses:

    run ... RESULTS              measures, and writes the results
    report RESULTS DOCUMENT      writes the document's section of them anew
    check RESULTS DOCUMENT       fails if that would change it
"""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
# Above this the rate says little; CPU time suffers less.
NOISY_PERCENT = 15


class Broker:
    """A broker of Kera in a directory that goes with it."""

    def __init__(self, program: str):
        self.program = program
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

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.home.cleanup()


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


def write(results: str, program: str, measure, versions: dict, bench: str) -> None:
    """Runs `measure`, and writes what it found beside when, where and what was measured; `bench` is the folder of the program itself."""
    changed = words("git", "status", "--porcelain", "--", ".", ":!docs", f":!{bench}")
    began, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
    found = measure()
    told = {
        "started": started.strftime("%Y-%m-%d %H:%M"),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "commit": words("git", "rev-parse", "--short=7", "HEAD") + (" with changes" if changed else ""),
        "kera": words(program, "--version").split(" (")[0],
        **versions,
        "machine": machine(),
        "runs": found,
    }
    pathlib.Path(results).write_text(json.dumps(told, indent=1) + "\n")


def spread(figures, form) -> str:
    return f"{form(statistics.median(figures))} ({form(min(figures))}-{form(max(figures))})"


def ratios(own, others, figure) -> list[float]:
    """Those of the runs of one turn."""
    return [figure(one) / figure(other) for one, other in zip(own, others, strict=True)]


def head(told, shared_by: str, versions: str) -> list[str]:
    """When and where it was, and how much else went on."""
    where, noise = told["machine"], [one["others_percent"] for one in told["runs"]]
    noisy = sum(percent > NOISY_PERCENT for percent in noise)
    return [
        f"{told['started']} UTC, {told['minutes']:.0f} minutes, commit {told['commit']}. {where['cores']} cores ({where['processor']}), "
        f"{where['memory_gib']} GiB, {where['kernel']}, shared by {shared_by}. {versions}",
        "",
        f"Meanwhile other processes used {spread(noise, '{:.0f}'.format)} % of the cores; in {noisy} of {len(noise)} runs it was more than "
        f"{NOISY_PERCENT} %. A cell is the median (least-most); a ratio is that of the runs of one turn.",
    ]


def table(columns, rows) -> list[str]:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return [head, "|---" * len(columns) + "|", *body]


def with_section(results: str, document: str, marks: str, section) -> tuple[str, str]:
    """The document as it is, and as the results give it."""
    begin_mark, end_mark = f"<!-- {marks}, begin -->", f"<!-- {marks}, end -->"
    text = pathlib.Path(document).read_text()
    before, begin, rest = text.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not (begin and end):
        raise SystemExit(f"{document} has no marks {begin_mark} and {end_mark}")
    told = json.loads(pathlib.Path(results).read_text())
    return text, f"{before}{begin_mark}\n{chr(10).join(section(told))}\n{end_mark}{after}"


def main(given: list[str], run, marks: str, section, usage: str) -> None:
    match given:
        case ["run", *rest]:
            run(*rest)
        case ["report", results, document]:
            pathlib.Path(document).write_text(with_section(results, document, marks, section)[1])
        case ["check", results, document]:
            text, wanted = with_section(results, document, marks, section)
            if text != wanted:
                raise SystemExit(f"{document} has not what {results} gives; `make bench-document` writes it anew")
        case _:
            raise SystemExit(usage)
