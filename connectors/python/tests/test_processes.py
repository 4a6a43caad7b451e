"""Ctrl-C, handlers of signals, threads, forks and what is left open: each in a program of its own."""

import signal

import pytest

import kera

BEGIN = """
import os, signal, sys, threading, kera
# The shell that runs the tests may have had them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
where = {"bootstrap": sys.argv[1]}
stream = sys.argv[2]
def say(*words):
    # A handler may say something amid that.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


@pytest.fixture
def run(shared, name, child):
    """Runs a program on a stream with the records 0 to 9."""
    kera.Admin(bootstrap=shared.address).create_stream(name)
    with kera.Producer(name, bootstrap=shared.address) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
    return lambda text, **more: child(BEGIN + text, shared.address, name, **more)


WAITS = {
    "next_batch": "c = kera.Consumer(stream, 'g1-' + stream, **where, start='latest')\nwait = c.next_batch",
    "next_record": "c = kera.Consumer(stream, 'g2-' + stream, **where, start='latest')\nwait = c.next_record",
    "reader": "r = kera.Reader(stream, **where, start='latest')\nwait = lambda: list(r)",
    "batches": "r = kera.Reader(stream, **where, start='latest')\nwait = lambda: list(r.batches(timeout=3600))",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(run, wait):
    """And what was waited for can be used afterwards."""
    program = run(
        WAITS[wait]
        + """
# No other thread runs before this one lets go of the interpreter, which it does within the wait.
sys.setswitchinterval(1000)
def interrupt(go):
    go.wait()
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(2):
    go = threading.Event()
    other = threading.Thread(target=interrupt, args=(go,))
    other.start()
    try:
        go.set()
        wait()
    except KeyboardInterrupt:
        say("interrupted")
    other.join()
"""
    )
    assert program.end() == (0, "interrupted\ninterrupted\n", "")


def test_ctrl_c_ends_a_wait_for_a_broker_that_is_gone(broker, name, child):
    kera.Admin(bootstrap=broker.address).create_stream(name)
    program = child(
        BEGIN
        + """
p = kera.Producer(stream, **where, deadline=3600.0)
say("ready")
sys.stdin.readline()
d = p.append(b"0")
for wait in (d.result, p.flush, p.close, lambda: kera.Admin(**where, retry_within=3600.0).streams()):
    try:
        say("next")
        wait()
    except KeyboardInterrupt:
        say("interrupted")
say("done")
os._exit(0)
""",
        broker.address,
        name,
    )
    assert program.hear() == "ready"
    broker.kill()
    program.tell("")
    for _ in range(4):
        assert program.hear() == "next"
        program.process.send_signal(signal.SIGINT)
        assert program.hear() == "interrupted"
    assert program.hear() == "done"


def test_records_that_are_given_up_are_told_at_the_latest_when_the_interpreter_ends(broker, name, child):
    """Also of a producer that nothing points to any more."""
    kera.Admin(bootstrap=broker.address).create_stream(name)
    program = child(
        BEGIN
        + """
import time
p = kera.Producer(stream, **where, deadline=0.5)
say("ready")
sys.stdin.readline()
d = p.append(b"lost")
del p
while not d.done:
    time.sleep(0.01)
""",
        broker.address,
        name,
    )
    assert program.hear() == "ready"
    broker.kill()
    program.tell("")
    code, told, warned = program.end()
    assert (code, told) == (0, "")
    assert "given up" in warned or "ProduceError" in warned, warned


def test_a_handler_may_close_what_is_waited_for(run):
    program = run(
        """
c = kera.Consumer(stream, "g-" + stream, **where)
def stop(*_):
    c.close()
    say("closed")
signal.signal(signal.SIGTERM, stop)
try:
    for record in c:
        say(record.value.decode())
except kera.ClosedError:
    say("ended")
"""
    )
    assert [program.hear() for _ in range(10)] == [str(number) for number in range(10)]
    program.process.send_signal(signal.SIGTERM)
    assert program.hear() == "closed" and program.hear() == "ended"
    assert program.end() == (0, "", "")


def test_another_thread_goes_on_while_one_waits(run):
    """In one wait without a limit: it would last for ever if it kept the interpreter to itself."""
    program = run(
        """
r = kera.Reader(stream, **where, start="latest")
got = []
waits = threading.Thread(target=lambda: got.append(r.next_record()))
waits.start()
count = sum(range(1_000_000))
with kera.Producer(stream, **where) as p:
    p.append(b"news")
waits.join()
say(count, got[0].value)
"""
    )
    assert program.end() == (0, "499999500000 b'news'\n", "")


def test_a_child_of_a_fork_is_told_to_make_its_own(run):
    program = run(
        """
import warnings
warnings.simplefilter("ignore")
p = kera.Producer(stream, **where, linger=5)
d = p.append(b"10")
t = kera.Producer(stream, **where, transactional_id=stream)
transaction = t.transaction()
c = kera.Consumer(stream, "g-" + stream, **where)
batch = c.next_batch(timeout=60)
r = kera.Reader(stream, **where)
# More of its batch are at hand.
assert r.next_record(timeout=60).ordinal == 0
a, ts = kera.Admin(**where), kera.Transactions(**where)
child = os.fork()
if child == 0:
    uses = [lambda: p.append(b"x"), lambda: p.send(b"x"), p.flush, p.close, p.metrics, p.transaction, lambda: d.done,
            d.result, transaction.commit, transaction.abort, lambda: transaction.handle, c.next_batch, c.next_record,
            lambda: c.commit(batch), lambda: c.mark(batch), c.leases, c.close, r.next_record, lambda: next(iter(r)),
            r.next_batch, r.positions,
            lambda: r.seek(0, 0, 0), r.close, a.streams, lambda: a.create_stream("x"), ts.prepared]
    for use in uses:
        try:
            use()
        except kera.ForkedError as error:
            assert "make a new one in the child" in str(error)
            continue
        raise AssertionError("it went on")
    del p, d, t, transaction, c, r, a, ts, uses, use
    with kera.Producer(stream, **where) as own:
        own.append(b"11").result(timeout=60)
    # The parent's batches are plain memory.
    say("child", next(iter(batch)).value)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with transaction:
    t.append(b"12")
p.close()
t.close()
c.close()
say("parent", d.result().ordinal >= 10)
# Readers see what was committed a moment later.
with kera.Reader(stream, **where) as all:
    say(sorted(int(all.next_record(timeout=60).value) for _ in range(13)))
"""
    )
    assert program.end() == (0, f"child b'0'\nparent True\n{list(range(13))}\n", "")


def test_forked_workers_of_multiprocessing(run):
    program = run(
        """
import multiprocessing, warnings
warnings.simplefilter("ignore")
def work(number):
    with kera.Producer(stream, **where) as p:
        return p.append(b"%d" % number).result().streamlet
with kera.Producer(stream, **where) as p:
    p.append(b"10").result()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, range(11, 15)) == [0] * 4
with kera.Reader(stream, **where, follow=False) as all:
    say(sorted(int(record.value) for record in all))
"""
    )
    assert program.end() == (0, f"{list(range(15))}\n", "")


def test_what_is_left_open_does_not_keep_the_interpreter(run):
    program = run(
        """
c = kera.Consumer(stream, "g-" + stream, **where)
r = kera.Reader(stream, **where)
say(c.next_record().ordinal, r.next_record().ordinal)
threading.Thread(target=lambda: kera.Reader(stream, **where, start="latest").next_record(), daemon=True).start()
p = kera.Producer(stream, **where, linger=5)
p.append(b"10")
t = kera.Producer(stream, **where, transactional_id=stream)
transaction = t.transaction()
t.append(b"11")
"""
    )
    assert program.end() == (0, "0 0\n", "")


def test_an_interrupted_commit_goes_on(broker, name, child):
    """Its block is left by the KeyboardInterrupt, and by no other exception."""
    kera.Admin(bootstrap=broker.address).create_stream(name)
    program = child(
        BEGIN
        + """
p = kera.Producer(stream, **where, transactional_id="one", deadline=3600.0)
try:
    with p.transaction() as t:
        p.append(b"0").result()
        say("ready")
        sys.stdin.readline()
        threading.Thread(target=t.commit, daemon=True).start()
        # Nothing is taken any more once that is under way.
        try:
            while True:
                p.send(b"1")
        except kera.TransactionError:
            pass
        try:
            say("commits")
            t.commit()
        except KeyboardInterrupt:
            say("interrupted")
            # There it can be ended.
            sys.stdin.readline()
            raise
except KeyboardInterrupt:
    say("left")
t.commit()
say("committed")
""",
        broker.address,
        name,
    )
    assert program.hear() == "ready"
    broker.kill()
    program.tell("")
    assert program.hear() == "commits"
    program.process.send_signal(signal.SIGINT)
    assert program.hear() == "interrupted"
    broker.start()
    program.tell("")
    assert program.hear() == "left"
    assert program.hear() == "committed"
    assert program.end() == (0, "", "")
    with kera.Reader(name, bootstrap=broker.address) as reader:
        assert reader.next_record(timeout=60).value == b"0"
