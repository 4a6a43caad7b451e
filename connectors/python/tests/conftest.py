"""Brokers of the program that KERA_PROGRAM names, each in a directory of its own, at ports that the kernel chose."""

import faulthandler
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

PASSWORD = "open sesame"

# Seconds after which a test hangs: the longest takes some seconds, and waits for brokers have limits of a minute or two.
MOST = 180


def pytest_configure(config):
    # Where a dump goes: during a test pytest has the usual place.
    config.stash[DUMPS] = os.fdopen(os.dup(2), "w")


DUMPS = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Fails a test that hangs. One that keeps the interpreter to itself ends the run, with a dump of where it stands."""

    def late(*_):
        pytest.fail(f"{item.nodeid} has not ended within {MOST} s")

    signal.signal(signal.SIGALRM, late)
    # Again and again, since what ends the test may hang too.
    signal.setitimer(signal.ITIMER_REAL, MOST, 30)
    faulthandler.dump_traceback_later(MOST + 120, exit=True, file=item.config.stash[DUMPS])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)


class Broker:
    def __init__(self, home: pathlib.Path):
        self.home = home
        self.flags: list[str] = []
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it, or starts it again at the address that it had."""
        with open(self.home / "broker.log", "a") as log:
            self.process = subprocess.Popen(
                [program(), "serve", "--listen", self.address, "--data-dir", str(self.home / "data")]
                + ["--http-listen", "off", *self.flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[2].rstrip(",")
                # What it says later must not fill the pipe.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise AssertionError(f"the broker did not start: {(self.home / 'broker.log').read_text()}")

    def kill(self) -> None:
        """Kills it as `kill -9` does, and waits until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self, *flags: str) -> None:
        self.kill()
        self.flags += flags
        self.start()

    def run(self, *words: str, told: str = "") -> str:
        """Runs a command of the program, which must succeed; what it prints."""
        done = subprocess.run(
            [program(), *words],
            input=told,
            env={**os.environ, "KERA_BOOTSTRAP": self.address},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout


def interpreter() -> str:
    """The Python that whole programs run in: the one that KERA_PYTHON names, where a wheel is installed, or this one."""
    return os.environ.get("KERA_PYTHON", sys.executable)


def program() -> str:
    name = os.environ.get("KERA_PROGRAM")
    if not name:
        pytest.exit("KERA_PROGRAM must name the program kera", returncode=2)
    return name


@pytest.fixture
def new_broker(tmp_path):
    """Makes brokers that end with the test."""
    brokers = []

    def make() -> Broker:
        home = tmp_path / f"broker-{len(brokers)}"
        home.mkdir()
        broker = Broker(home)
        brokers.append(broker)
        broker.start()
        return broker

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def broker(new_broker) -> Broker:
    """One of the test's own, which it may kill."""
    return new_broker()


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Broker:
    """One that all tests share: each has streams and groups of its own there."""
    broker = Broker(tmp_path_factory.mktemp("shared"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def name(request) -> str:
    """A name that no other test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]


@pytest.fixture
def with_users(broker):
    """A broker that asks its clients who they are, and knows ann."""
    broker.run("user", "create", "ann", told=PASSWORD)
    broker.restart("--auth-listeners", "native", "--auth-mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN")
    return broker


class Child:
    """A program in Python of its own. It and the test tell each other lines, so that none has to guess how far the other is."""

    def __init__(self, text: str, *words: str, **more):
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def hear(self) -> str:
        """The next line that it prints; it fails if it ends before."""
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.communicate()[1]}"
        return line.rstrip("\n")

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Waits until it ends: its status, the rest of what it printed, and what it complained of."""
        out, errors = self.process.communicate(timeout=120)
        return self.process.returncode, out, errors


@pytest.fixture
def child():
    """Starts programs that end with the test."""
    children = []

    def start(text: str, *words: str, **more) -> Child:
        children.append(Child(text, *words, **more))
        return children[-1]

    yield start
    for each in children:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
