"""The figures in docs/benchmarks.md are those of the results that scripts/bench-python.sh left."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]
COMPARE = ROOT / "connectors/python/bench/compare.py"
RESULTS = ROOT / "docs/benchmarks/python.json"


def compare(*words):
    return subprocess.run([sys.executable, COMPARE, *words], capture_output=True, text=True)


def test_the_document_has_what_was_measured(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text((ROOT / "docs/benchmarks.md").read_text())
    done = compare("check", RESULTS, document)
    assert done.returncode == 0, done.stderr
    # Another figure is seen, and written anew.
    document.write_text(document.read_text().replace("| Kera, Arrow batches |", "| Kera, Arrow |", 1))
    assert "bench-document" in compare("check", RESULTS, document).stderr
    assert compare("report", RESULTS, document).returncode == 0
    assert document.read_text() == (ROOT / "docs/benchmarks.md").read_text()
