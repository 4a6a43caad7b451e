"""Records as they are written, and read again without a group."""

import socket
import threading

import pytest

import kera


def read_all(broker, stream, **settings):
    """All records of a stream by (streamlet, lane), each lane's in order."""
    lanes = {}
    with kera.Reader(stream, bootstrap=broker.address, follow=False, **settings) as reader:
        for record in reader:
            lanes.setdefault((record.streamlet, record.lane), []).append(record)
        assert reader.finished
    for records in lanes.values():
        ordinals = [record.ordinal for record in records]
        assert ordinals == sorted(set(ordinals))
    return lanes


def flat(lanes):
    return [record for records in lanes.values() for record in records]


@pytest.fixture
def stream(shared, name):
    with_lanes = {"streamlets": 2, "lanes": 2}
    kera.Admin(bootstrap=shared.address).create_stream(name, **with_lanes)
    return name


def test_records_come_back_as_they_were_written(shared, stream):
    written = [
        (b"key", b"value", [], 1),
        (None, b"no key", [("name", b"of a header")], 2),
        (b"no value", None, [("empty", b""), ("none", None), ("empty", b"again")], 3),
        (b"", b"", [], 4),
        (bytes(range(256)), bytes(70_000), [("ünï", b"\xff")], 5),
        (bytearray(b"array"), bytearray(b"of bytes"), [("a", bytearray(b"b"))], 6),
    ]
    with kera.Producer(stream, bootstrap=shared.address) as producer:
        deliveries = [
            producer.append(value, key, headers=headers, timestamp=timestamp)
            for key, value, headers, timestamp in written
        ]
        places = [delivery.result(timeout=60) for delivery in deliveries]
        assert all(delivery.done for delivery in deliveries)
    records = {(r.streamlet, r.lane, r.ordinal): r for r in flat(read_all(shared, stream))}
    assert len(records) == len(written)
    for place, (key, value, headers, timestamp) in zip(places, written, strict=True):
        record = records[place.streamlet, place.lane, place.ordinal]
        assert (record.key, record.value, record.headers) == (key, value, headers)
        assert record.timestamp == place.timestamp == timestamp
        assert type(record.value) in (bytes, type(None))
    assert places[0] == deliveries[0].result() and hash(places[0]) == hash(deliveries[0].result())


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_batches_keep_the_order_of_keys(shared, stream, compression):
    with kera.Producer(stream, bootstrap=shared.address, batch_size=1024, compression=compression) as producer:
        for number in range(20_000):
            producer.send(str(number // 50).encode(), b"key-%d" % (number % 50))
        producer.flush()
        counts = producer.metrics()
        assert counts["records_acknowledged"] == 20_000 and counts["batches"] > 100
        assert counts["records_failed"] == counts["batches_in_flight"] == 0
    newest = {}
    for records in read_all(shared, stream).values():
        for record in records:
            number = int(record.value)
            assert number == newest.get(record.key, -1) + 1, record
            newest[record.key] = number
    assert newest == {b"key-%d" % key: 399 for key in range(50)}


def test_what_lies_in_memory_alone_is_waited_for(shared, stream):
    """Memory for two batches: appending waits for those under way."""
    with kera.Producer(stream, bootstrap=shared.address, batch_size=4096, memory_limit=8192) as producer:
        deliveries = [producer.append(bytes(1000)) for _ in range(500)]
        producer.flush()
        assert all(delivery.done for delivery in deliveries)
    assert len(flat(read_all(shared, stream))) == 500


def test_threads_share_a_producer(shared, stream):
    with kera.Producer(stream, bootstrap=shared.address, batch_size=1024) as producer:

        def produce(thread):
            for number in range(2_000):
                producer.send(b"%d" % number, b"thread-%d" % thread)

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    newest = {}
    for record in flat(read_all(shared, stream)):
        assert int(record.value) == newest.get(record.key, -1) + 1
        newest[record.key] = int(record.value)
    assert sorted(newest.values()) == [1_999] * 4


def test_a_producer_that_is_dropped_sends_what_it_has(shared, stream, child):
    """Also if the interpreter ends at once."""
    program = child(
        "import sys, kera\n"
        "p = kera.Producer(sys.argv[1], bootstrap=sys.argv[2], linger=5)\n"
        "[p.send(b'%d' % n) for n in range(1000)]\n"
        "q = kera.Producer(sys.argv[1], bootstrap=sys.argv[2], linger=5)\n"
        "[q.send(b'%d' % n) for n in range(1000, 2000)]\n"
        "del q\n",
        stream,
        shared.address,
    )
    assert program.end() == (0, "", "")
    assert sorted(int(r.value) for r in flat(read_all(shared, stream))) == list(range(2_000))


def test_closed_twice_and_used_after_it(shared, stream):
    producer = kera.Producer(stream, bootstrap=shared.address)
    delivery = producer.append(b"one")
    producer.close()
    producer.close()
    producer.flush()
    assert delivery.result().ordinal == 0
    for use in (lambda: producer.append(b"two"), lambda: producer.send(b"two")):
        with pytest.raises(kera.ClosedError, match="closed"):
            use()
    assert len(flat(read_all(shared, stream))) == 1


def test_what_makes_no_sense_is_said(shared, stream):
    where = {"bootstrap": shared.address}
    for settings, said in [
        ({"batch_size": 1}, "batch_size"),
        ({"linger": -1.0}, "linger: -1 is no number of seconds; use 0 or more"),
        ({"deadline": float("nan")}, "deadline"),
        ({"linger": 60.0}, "linger"),
        ({"max_in_flight_batches": 17}, "use 1 to 16"),
        ({"compression": "rar"}, 'compression: rar is none; use "none", "gzip"'),
        ({"transactional_id": ""}, "transactional_id"),
        ({"bootstrap": "nowhere"}, "use HOST:PORT"),
    ]:
        with pytest.raises(kera.SettingError, match=said) as told:
            kera.Producer(stream, **{**where, **settings})
        assert isinstance(told.value, ValueError)
    for settings, said in [
        ({"batchsize": 1}, "Producer has no setting batchsize; it has bootstrap, .*batch_size"),
        ({"batch_size": "large"}, "setting batch_size"),
        ({"login": "ann"}, "setting login"),
    ]:
        with pytest.raises(TypeError, match=said):
            kera.Producer(stream, **{**where, **settings})
    with kera.Producer(stream, **where) as producer:
        with pytest.raises(TypeError):
            producer.append("text")
        with pytest.raises(kera.RecordTooLargeError):
            producer.append(bytes(100 << 20))
        with pytest.raises(kera.SettingError, match="timeout"):
            producer.flush(timeout=-1)
        producer.append(b"it goes on").result(timeout=60)


def test_errors_have_the_object_and_what_to_do(shared):
    with pytest.raises(kera.UnknownStreamError, match="no-such-stream") as told:
        kera.Producer("no-such-stream", bootstrap=shared.address)
    assert told.value.code == "UNKNOWN_STREAM" and not told.value.is_retryable
    assert isinstance(told.value, (kera.BrokerError, LookupError))
    # A port that the kernel gave, where nobody listens.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        with pytest.raises(kera.ConnectionFailed, match=address) as told:
            kera.Producer("s", bootstrap=address, retry_within=0.0)
    assert isinstance(told.value, ConnectionError)


def test_a_batch_that_is_given_up_is_told(broker, name):
    kera.Admin(bootstrap=broker.address).create_stream(name)
    producer = kera.Producer(name, bootstrap=broker.address, deadline=0.2)
    broker.kill()
    lost = producer.append(b"one")
    with pytest.raises(kera.ProduceError, match="no acknowledgement") as told:
        lost.result(timeout=60)
    assert told.value.code == "TIMEOUT" and lost.done
    with pytest.raises(kera.ProduceError):
        producer.close(timeout=60)
    producer.close()


def test_a_wait_with_a_limit_ends(broker, name):
    kera.Admin(bootstrap=broker.address).create_stream(name)
    with kera.Producer(name, bootstrap=broker.address, deadline=300.0) as producer:
        producer.append(b"one").result(timeout=60)
        broker.kill()
        waits = producer.append(b"two")
        assert not waits.done
        for wait in (lambda: waits.result(timeout=0.01), lambda: producer.flush(timeout=0), lambda: producer.flush(0.01)):
            with pytest.raises(kera.WaitTimeout, match="wait again") as told:
                wait()
            assert isinstance(told.value, TimeoutError)
        broker.start()
        assert waits.result(timeout=60).ordinal == 1


def test_a_broker_that_is_killed_costs_no_record_and_doubles_none(broker, name):
    kera.Admin(bootstrap=broker.address).create_stream(name, streamlets=2, lanes=2)
    with kera.Producer(name, bootstrap=broker.address, batch_size=1024, deadline=300.0) as producer:
        for number in range(15_000):
            producer.send(b"%d" % (number // 20), b"key-%d" % (number % 20))
            if number % 5_000 == 2_500:
                broker.restart()
    newest = {}
    for record in flat(read_all(broker, name)):
        assert int(record.value) == newest.get(record.key, -1) + 1
        newest[record.key] = int(record.value)
    assert newest == {b"key-%d" % key: 749 for key in range(20)}
