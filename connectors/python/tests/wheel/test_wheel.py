"""The wheel that KERA_WHEEL names, which pip installed alone for the Python that KERA_PYTHON names: scripts/wheel.sh."""

import base64
import csv
import email
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import subprocess
import zipfile

import pytest
from packaging.utils import parse_wheel_filename

from conftest import interpreter

CLIENT = pathlib.Path(__file__).parents[2]
WHEEL = pathlib.Path(os.environ["KERA_WHEEL"])
NAME, VERSION, _, TAGS = parse_wheel_filename(WHEEL.name)
INFO = f"kera_client-{VERSION}.dist-info"
# What every Linux with glibc has. Python itself is in the process already.
LIBRARIES = re.compile(r"(libc|libm|libgcc_s|libpthread|libdl|librt|ld-linux-[a-z0-9-]+)\.so\.\d+")


@pytest.fixture(scope="module")
def wheel():
    with zipfile.ZipFile(WHEEL) as opened:
        yield opened


@pytest.fixture(scope="module")
def said(wheel):
    """What it says of itself."""
    return email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))


def run(*command) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done.stderr}"
    return done.stdout


def glibc(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_its_name_says_what_it_is_and_for_whom():
    manifest = (CLIENT / "../../Cargo.toml").read_text()
    assert NAME == "kera-client"
    assert str(VERSION) == re.search(r'^version = "(.*)"', manifest, re.MULTILINE)[1]
    # One for every version of Python from the first that it is for.
    assert {(tag.interpreter, tag.abi) for tag in TAGS} == {("cp310", "abi3")}
    assert all(re.fullmatch(rf"manylinux(_2_\d+|2014)_{platform.machine()}", tag.platform) for tag in TAGS), TAGS


def test_the_glibc_that_its_name_asks_for_is_enough(wheel, tmp_path):
    library = wheel.extract("kera/_kera.abi3.so", tmp_path)
    asked = re.findall(r"GLIBC_(2\.\d+)", run("objdump", "-T", library))
    needed = max(map(glibc, asked))
    named = max(glibc(f"2.{minor}") for minor in re.findall(r"manylinux_2_(\d+)", WHEEL.name))
    here = glibc(platform.libc_ver()[1])
    assert needed <= named <= here
    libraries = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", library))
    assert libraries and all(map(LIBRARIES.fullmatch, libraries)), libraries


def test_what_it_says_of_itself(wheel, said):
    project = (CLIENT / "pyproject.toml").read_text()
    assert said["Name"] == "kera-client"
    assert said["Version"] == str(VERSION)
    assert said["Requires-Python"] == re.search('requires-python = "(.*)"', project)[1]
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("Requires-Dist") is None
    assert said["Description-Content-Type"].startswith("text/markdown")
    assert said.get_payload(decode=True).decode().strip() == (CLIENT / "README.md").read_text().strip()
    assert "Typing :: Typed" in said.get_all("Classifier")
    kind = email.message_from_bytes(wheel.read(f"{INFO}/WHEEL"))
    assert kind["Root-Is-Purelib"] == "false"
    assert {str(tag) for tag in TAGS} == set(kind.get_all("Tag"))


def test_it_holds_the_package_and_nothing_else(wheel):
    kept = run("git", "-C", str(CLIENT / "python"), "ls-files").splitlines()
    assert {"kera/py.typed", "kera/_kera.pyi", "kera/aio.pyi", "kera/__init__.py"} <= set(kept)
    about = ["METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "licenses/third-party.txt", "sboms/kera-python.cyclonedx.json"]
    assert sorted(wheel.namelist()) == sorted([*kept, "kera/_kera.abi3.so", *(f"{INFO}/{name}" for name in about)])
    rows = list(csv.reader(io.StringIO(wheel.read(f"{INFO}/RECORD").decode())))
    assert {name for name, _, _ in rows} == set(wheel.namelist())
    for name, sum, size in rows:
        if name != f"{INFO}/RECORD":
            digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
            assert (sum, size) == (f"sha256={digest}", str(len(wheel.read(name)))), name
    for name in kept:
        assert wheel.read(name) == (CLIENT / "python" / name).read_bytes(), name


def test_licences_of_all_that_is_in_it_come_along(wheel, said):
    assert sorted(said.get_all("License-File")) == ["LICENSE", "third-party.txt"]
    assert wheel.read(f"{INFO}/licenses/LICENSE") == (CLIENT / "LICENSE").read_bytes()
    named = set(re.findall(r"^(\S+ \d\S*), .+\n  ", wheel.read(f"{INFO}/licenses/third-party.txt").decode(), re.MULTILINE))
    bill = json.loads(wheel.read(f"{INFO}/sboms/kera-python.cyclonedx.json"))
    # The bill has the libraries of every system.
    assert named <= {f"{one['name']} {one['version']}" for one in bill["components"]}
    # Code names where it comes from, for panics.
    sources = re.findall(rb"/registry/src/[^/]+/([\w-]+)-(\d+\.\d+\.\d+[^/]*)/", wheel.read("kera/_kera.abi3.so"))
    compiled = {f"{name.decode()} {version.decode()}" for name, version in sources}
    assert len(compiled) > 20 and any(name.startswith("pyo3 ") for name in compiled)
    assert compiled <= named


def test_it_is_installed_alone():
    listed = json.loads(run(interpreter(), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"))
    assert {one["name"] for one in listed} - {"pip", "setuptools"} == {"kera-client"}
    run(interpreter(), "-m", "pip", "--disable-pip-version-check", "check")
    program = "import importlib.metadata, kera; print(importlib.metadata.version('kera-client'), kera.__file__)"
    version, file = run(interpreter(), "-I", "-c", program).split()
    assert version == str(VERSION)
    package = pathlib.Path(file).parent
    assert pathlib.Path(interpreter()).parents[1] in package.parents
    assert (package / "py.typed").exists()


PROGRAM = """
import asyncio, sys
import kera, kera.aio

address, stream, count = sys.argv[1], sys.argv[2], 10_000
kera.Admin(bootstrap=address).create_stream(stream, streamlets=2, lanes=2)
with kera.Producer(stream, bootstrap=address) as producer:
    for number in range(count):
        producer.send(b"%d" % number, key=b"%d" % (number % 100), headers=[("half", b"%d" % (number // 2))])

def number_of(record):
    number = int(record.value)
    assert record.key == b"%d" % (number % 100) and record.headers == [("half", b"%d" % (number // 2))]
    return number

found = []
with kera.Consumer(stream, "group", bootstrap=address) as consumer:
    for record in consumer.records(timeout=30):
        found.append(number_of(record))
        if len(found) == count:
            break
assert sorted(found) == list(range(count))
for key in range(100):
    assert [number for number in found if number % 100 == key] == list(range(key, count, 100))

async def again():
    async with kera.aio.Reader(stream, follow=False, bootstrap=address) as reader:
        return [number_of(record) async for record in reader]

assert sorted(asyncio.run(again())) == list(range(count))
print(len(found))
"""


def test_records_go_there_and_back(shared):
    # Each Python has a broker of its own, and so a stream.
    assert run(interpreter(), "-I", "-W", "error", "-c", PROGRAM, shared.address, "wheel") == "10000\n"
