"""Transactions: committed, aborted, fenced, prepared, and ended by another process."""

import pickle
import subprocess
import sys

import pytest

import kera


@pytest.fixture
def stream(shared, name):
    kera.Admin(bootstrap=shared.address).create_stream(name, streamlets=2, lanes=1)
    return name


def producer(broker, stream, id="one", **settings):
    return kera.Producer(stream, bootstrap=broker.address, transactional_id=f"{stream}/{id}", **settings)


def append(producer, numbers):
    for number in numbers:
        text = b"%d" % number
        producer.send(text, text)


def seen_now(broker, stream):
    """What readers see at this moment. A commit may have been decided a moment before they see its records."""
    with kera.Reader(stream, bootstrap=broker.address, follow=False) as reader:
        return sorted(int(record.value) for record in reader)


def committed(broker, stream):
    """What readers see in the end, where no transaction is open: they get a record when it is decided what lies before it."""
    with kera.Producer(stream, bootstrap=broker.address) as plain:
        places = [plain.append(None, b"%d" % key).result() for key in range(40)]
    ends = {}
    for place in places:
        ends[place.streamlet, place.lane] = place.ordinal
    assert len(ends) == 2
    seen = []
    with kera.Reader(stream, bootstrap=broker.address) as reader:
        while ends:
            record = reader.next_record(timeout=60)
            assert record is not None, f"nothing comes after {sorted(seen)}"
            if record.value is not None:
                seen.append(int(record.value))
            elif ends.get((record.streamlet, record.lane)) == record.ordinal:
                del ends[record.streamlet, record.lane]
    return sorted(seen)


def test_all_records_count_or_none(shared, stream):
    with producer(shared, stream) as mine:
        for begin in range(0, 400, 100):
            transaction = mine.transaction()
            append(mine, range(begin, begin + 100))
            if begin % 200 == 0:
                transaction.commit()
            else:
                transaction.abort()
    assert committed(shared, stream) == [*range(100), *range(200, 300)]


def test_a_block_commits_and_an_exception_aborts(shared, stream):
    with producer(shared, stream) as mine:
        with mine.transaction():
            append(mine, range(10))
        with pytest.raises(ZeroDivisionError):
            with mine.transaction():
                append(mine, range(10, 20))
                raise ZeroDivisionError
        with mine.transaction() as transaction:
            append(mine, range(20, 30))
            transaction.commit()
            transaction.commit()
            with pytest.raises(kera.TransactionError, match="ended in another way"):
                transaction.abort()
        with mine.transaction() as transaction:
            append(mine, range(30, 40))
            transaction.abort()
    assert committed(shared, stream) == [*range(10), *range(20, 30)]


def test_an_open_transaction_is_seen_by_nobody(shared, stream):
    with producer(shared, stream) as mine, kera.Reader(stream, bootstrap=shared.address) as reader:
        transaction = mine.transaction()
        append(mine, range(10))
        mine.flush()
        assert transaction.handle is not None
        assert reader.next_record(timeout=0.2) is None and seen_now(shared, stream) == []
        with pytest.raises(kera.TransactionError, match="a transaction of the producer is open"):
            mine.transaction()
        transaction.commit()
        assert sorted(int(reader.next_record(timeout=60).value) for _ in range(10)) == list(range(10))


def test_without_a_transaction_nothing_is_appended(shared, stream):
    with producer(shared, stream) as mine:
        with pytest.raises(kera.TransactionError, match="no transaction is open"):
            mine.append(b"0")
    with kera.Producer(stream, bootstrap=shared.address) as plain:
        with pytest.raises(kera.TransactionError, match="no transactional id"):
            plain.transaction()


def test_the_later_producer_fences_the_earlier(shared, stream):
    with producer(shared, stream) as first:
        transaction = first.transaction()
        append(first, range(10))
        first.flush()
        with producer(shared, stream) as second:
            with pytest.raises(kera.KeraError):
                transaction.commit()
            with pytest.raises(kera.FencedError) as told:
                first.transaction()
            assert told.value.code == "FENCED_PRODUCER"
            with second.transaction():
                append(second, range(10, 20))
    assert committed(shared, stream) == list(range(10, 20))


def test_a_transaction_that_is_dropped_is_aborted_by_the_next(shared, stream):
    with producer(shared, stream) as mine:
        transaction = mine.transaction()
        append(mine, range(10))
        mine.flush()
        del transaction
        later = mine.transaction()
        append(mine, range(10, 20))
        later.commit()
        # The one before has ended: that it is dropped now says nothing of the one that is open.
        later = mine.transaction()
        with pytest.raises(kera.TransactionError, match="a transaction of the producer is open"):
            mine.transaction()
        later.abort()
    assert committed(shared, stream) == list(range(10, 20))


ENDS = """
import pickle, sys, kera
handles = pickle.loads(sys.stdin.buffer.read())
transactions = kera.Transactions(bootstrap=sys.argv[1])
assert transactions.prepared(sys.argv[2]) == handles
commit, abort, none = handles
transactions.commit(commit)
transactions.commit(commit)
transactions.abort(abort)
transactions.abort(abort)
for wrong, error in [(lambda: transactions.abort(commit), kera.TransactionCommitted),
                     (lambda: transactions.commit(abort), kera.TransactionAborted)]:
    try:
        wrong()
    except error:
        continue
    raise AssertionError(error)
transactions.forget(commit)
assert transactions.prepared(sys.argv[2]) == [none]
assert transactions.prepared("nobody's") == []
"""


def test_what_is_prepared_is_ended_by_another_process(broker, name):
    """Over a broker that is killed in between."""
    kera.Admin(bootstrap=broker.address).create_stream(name, streamlets=2, lanes=1)
    handles = []
    for number in range(3):
        with producer(broker, name, id=str(number)) as mine:
            assert mine.transaction().prepare() is None
            transaction = mine.transaction()
            append(mine, range(number * 100, number * 100 + 100))
            handle = transaction.prepare()
            assert transaction.prepare() == handle
            handles.append(handle)
    assert handles[0].transactional_id == f"{name}/0" and len({hash(handle) for handle in handles}) == 3
    broker.restart()
    assert seen_now(broker, name) == []
    done = subprocess.run(
        [sys.executable, "-c", ENDS, broker.address, f"{name}/"], input=pickle.dumps(handles), capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    # The id of one that is prepared waits for its end.
    with pytest.raises(kera.BrokerError) as told:
        producer(broker, name, id="2", retry_within=0.0)
    assert told.value.code == "TRANSACTION_PREPARED"
    kera.Transactions(bootstrap=broker.address).commit(handles[2])
    assert committed(broker, name) == [*range(100), *range(200, 300)]


def test_a_broker_that_is_killed_loses_no_commit(broker, name):
    kera.Admin(bootstrap=broker.address).create_stream(name, streamlets=2, lanes=1)
    with producer(broker, name, deadline=300.0) as mine:
        for begin in range(0, 500, 100):
            with mine.transaction():
                append(mine, range(begin, begin + 50))
                mine.flush()
                broker.restart()
                append(mine, range(begin + 50, begin + 100))
            assert committed(broker, name) == list(range(begin + 100))
