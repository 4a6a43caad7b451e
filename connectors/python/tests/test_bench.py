"""The figures in docs/benchmarks.md are those of the results that scripts/bench-python.sh and scripts/bench-flink.sh left."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
# Where a comparison is, its results, and a cell of its tables.
COMPARISONS = [
    ("connectors/python/bench/compare.py", "python.json", "| Kera, Arrow batches |"),
    ("connectors/flink-bench/compare.py", "flink.json", "| Kafka's connector, Kera |"),
]


@pytest.mark.parametrize(("program", "results", "cell"), COMPARISONS)
def test_the_document_has_what_was_measured(tmp_path, program, results, cell):
    def compare(what):
        command = [sys.executable, ROOT / program, what, ROOT / "docs/benchmarks" / results, document]
        return subprocess.run(command, capture_output=True, text=True)

    document = tmp_path / "benchmarks.md"
    document.write_text((ROOT / "docs/benchmarks.md").read_text())
    done = compare("check")
    assert done.returncode == 0, done.stderr
    # Another figure is seen, and written anew.
    document.write_text(document.read_text().replace(cell, "| Another |", 1))
    assert "bench-document" in compare("check").stderr
    assert compare("report").returncode == 0
    assert document.read_text() == (ROOT / "docs/benchmarks.md").read_text()
