"""Groups that share a stream, and readers that go on elsewhere."""

import datetime
import logging
import pickle
import threading

import pytest

import kera


def produce(broker, stream, numbers, keys=1):
    with kera.Producer(stream, bootstrap=broker.address, batch_size=1024) as producer:
        for number in numbers:
            producer.send(b"%d" % number, b"key-%d" % (number % keys), timestamp=1_000 + number)


def numbers(records):
    return [int(record.value) for record in records]


@pytest.fixture
def stream(shared, name):
    """Of one lane, with the records 0 to 999."""
    kera.Admin(bootstrap=shared.address).create_stream(name)
    produce(shared, name, range(1_000))
    return name


def member(broker, stream, **settings):
    return kera.Consumer(stream, "group-" + stream, bootstrap=broker.address, **settings)


def taken(consumer, count):
    """So many records, one by one."""
    return [consumer.next_record(timeout=60) for _ in range(count)]


def test_a_group_goes_on_where_it_committed(shared, stream):
    with member(shared, stream, commit_interval=None) as consumer:
        first = consumer.next_batch(timeout=60)
        assert first.first_ordinal == 0 and first.lease is not None
        assert numbers(first) == list(range(first.next_ordinal)) and len(first) == first.next_ordinal
        consumer.commit(first)
        second = consumer.next_batch(timeout=60)
        # Half of it.
        middle = (second.first_ordinal + second.next_ordinal) // 2
        consumer.commit(second.until(middle))
        assert consumer.next_batch(timeout=60).first_ordinal == second.next_ordinal
        lanes = [(streamlet, lane) for streamlet, lane, _, _ in consumer.leases()]
        assert lanes == [(0, 0)]
    with member(shared, stream, commit_interval=None) as consumer:
        assert consumer.next_record(timeout=60).ordinal == middle
    groups = {group.group: group for group in kera.Admin(bootstrap=shared.address).groups()}
    mine = groups["group-" + stream]
    assert (mine.stream, mine.members, mine.lag) == (stream, 0, 1_000 - middle)


def test_what_the_loop_went_past_is_committed_by_close(shared, stream):
    with member(shared, stream, commit_interval=3600.0) as consumer:
        assert numbers(taken(consumer, 10)) == list(range(10))
    # All ten, as `close` says; the loop did not fail.
    with member(shared, stream) as consumer:
        assert consumer.next_record(timeout=60).ordinal == 10


def test_after_an_exception_the_record_at_hand_is_read_again(shared, stream):
    with pytest.raises(ZeroDivisionError):
        with member(shared, stream, commit_interval=3600.0) as consumer:
            for record in consumer:
                if record.ordinal == 10:
                    raise ZeroDivisionError
    with member(shared, stream) as consumer:
        assert consumer.next_record(timeout=60).ordinal <= 10


def test_marks_are_committed_by_close(shared, stream):
    with member(shared, stream, commit_interval=None) as consumer:
        batch = consumer.next_batch(timeout=60)
        consumer.mark(batch)
        consumer.next_batch(timeout=60)
    with member(shared, stream, commit_interval=None) as consumer:
        assert consumer.next_batch(timeout=60).first_ordinal == batch.next_ordinal


def test_iteration_ends_when_nothing_comes(shared, stream):
    with member(shared, stream) as consumer:
        assert numbers(taken(consumer, 1_000)) == list(range(1_000))
        assert list(consumer.records(timeout=0.05)) == []
        assert list(consumer.batches(timeout=0.05)) == []
        assert consumer.next_batch(timeout=0) is None
        produce(shared, stream, range(1_000, 1_003))
        assert numbers(taken(consumer, 3)) == [1_000, 1_001, 1_002]
        counts = consumer.metrics()
        assert counts["records"] == 1_003 and counts["lag"] == 0


def test_records_and_batches_in_turn(shared, stream):
    with member(shared, stream) as consumer:
        seen = numbers(taken(consumer, 5))
        seen += numbers(consumer.next_batch(timeout=60))
        seen += numbers(taken(consumer, 5))
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize("order", ["lane", "key", "none"])
def test_members_share_a_stream_whatever_becomes_of_the_broker(broker, name, order):
    """Each record is seen, those of a key in order if lanes are followed, and nothing is left at the end."""
    kera.Admin(bootstrap=broker.address).create_stream(name, streamlets=2, lanes=2)
    seen, newest, failures, lock = set(), {}, [], threading.Lock()
    all_seen, nothing_left = threading.Event(), threading.Event()

    def lag():
        [group] = [group for group in kera.Admin(bootstrap=broker.address).groups() if group.stream == name]
        return group.lag

    def consume():
        try:
            with member(broker, name, order=order, commit_interval=0.05, retry_within=120.0) as consumer:
                while not nothing_left.is_set():
                    record = consumer.next_record(timeout=0.2)
                    if record is None:
                        continue
                    with lock:
                        number = int(record.value)
                        if number not in seen and order != "none":
                            assert newest.get(record.key, -1) < number
                            newest[record.key] = number
                        seen.add(number)
                        if len(seen) == 9_000:
                            all_seen.set()
        except BaseException as error:
            failures.append(error)
            all_seen.set()
            nothing_left.set()

    members = [threading.Thread(target=consume) for _ in range(3)]
    for thread in members:
        thread.start()
    for begin in range(0, 9_000, 3_000):
        produce(broker, name, range(begin, begin + 3_000), keys=40)
        if begin < 6_000:
            broker.restart()
    all_seen.wait()
    # What was seen but not committed when a broker was killed is read again.
    while not nothing_left.wait(0.05) and lag() > 0:
        pass
    nothing_left.set()
    for thread in members:
        thread.join()
    assert failures == [] and seen == set(range(9_000)) and lag() == 0


def test_a_consumer_that_was_closed_says_so(shared, stream):
    gone = member(shared, stream, commit_interval=None)
    batch = gone.next_batch(timeout=60)
    gone.close()
    gone.close()
    for use in (lambda: gone.commit(batch), lambda: gone.mark(batch)):
        with pytest.raises(kera.ClosedError, match="consumer is closed"):
            use()
    for use in (gone.next_batch, gone.next_record, gone.leases, gone.metrics, lambda: next(iter(gone))):
        with pytest.raises(kera.ClosedError, match="consumer is closed"):
            use()
    with kera.Reader(stream, bootstrap=shared.address) as reader, member(shared, stream) as other:
        with pytest.raises(kera.ConsumeError, match="only batches of a group can be committed"):
            other.commit(reader.next_batch(timeout=60))


def test_records_at_hand_are_not_handed_out_once_another_thread_has_closed(shared, stream):
    """Nor are they committed."""
    consumer = member(shared, stream, commit_interval=3600.0)
    records = iter(consumer)
    assert [next(records).ordinal for _ in range(3)] == [0, 1, 2]
    closes = threading.Thread(target=consumer.close)
    closes.start()
    closes.join()
    for use in (lambda: next(records), consumer.next_record):
        with pytest.raises(kera.ClosedError, match="consumer is closed"):
            use()
    with member(shared, stream) as other:
        assert other.next_record(timeout=60).ordinal == 3
    reader = kera.Reader(stream, bootstrap=shared.address)
    records = iter(reader)
    assert [next(records).ordinal, reader.next_record().ordinal] == [0, 1]
    assert reader.positions() == [kera.Position(0, 0, 2)]
    reader.close()
    with pytest.raises(kera.ClosedError, match="reader is closed"):
        next(records)


def test_threads_that_take_records_in_turn_get_each_once(shared, stream):
    """While one of them also takes batches, and looks."""
    seen = [[] for _ in range(3)]
    with kera.Reader(stream, bootstrap=shared.address, follow=False) as reader:

        def loop(own):
            for record in reader:
                own.append(int(record.value))

        def look(own):
            while (record := reader.next_record()) is not None:
                own.append(int(record.value))
                batch = reader.next_batch()
                own += [] if batch is None else numbers(batch)
                reader.positions()

        threads = [threading.Thread(target=of, args=(own,)) for of, own in zip((loop, loop, look), seen, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen[0] + seen[1] + seen[2]) == list(range(1_000))


def test_a_close_ends_the_wait_of_another_thread(shared, name):
    kera.Admin(bootstrap=shared.address).create_stream(name)
    consumer = member(shared, name)
    told, waits = [], threading.Event()

    def wait():
        waits.set()
        with pytest.raises(kera.ClosedError) as error:
            consumer.next_batch()
        told.append(error.value)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()
    consumer.close()
    thread.join(60)
    assert len(told) == 1


def test_one_looks_while_another_waits(shared, name):
    kera.Admin(bootstrap=shared.address).create_stream(name)
    with kera.Reader(name, bootstrap=shared.address) as reader:
        got = []
        thread = threading.Thread(target=lambda: got.append(reader.next_record(timeout=120)))
        thread.start()
        for _ in range(3):
            assert reader.positions() == [kera.Position(0, 0, 0)]
            assert reader.metrics()["records"] == 0
        produce(shared, name, [7, 8])
        thread.join(60)
        assert numbers(got) == [7]


def test_two_threads_that_read_take_turns(shared, stream):
    with kera.Reader(stream, bootstrap=shared.address, follow=False) as reader:
        seen = [[], []]
        threads = [threading.Thread(target=lambda mine=mine: mine.extend(numbers(reader))) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(seen[0] + seen[1]) == list(range(1_000))
    assert all(mine == sorted(mine) for mine in seen)


def test_readers_begin_and_go_on_where_they_are_told(shared, stream):
    def first(**settings):
        with kera.Reader(stream, bootstrap=shared.address, **settings) as reader:
            return reader.next_record(timeout=60).ordinal

    assert first() == first(start="earliest") == 0
    assert first(start=500) == 500
    time = datetime.datetime.fromtimestamp(1.7, datetime.timezone.utc)
    # In the batch that has it.
    assert 600 < first(start=time) <= 700
    with kera.Reader(stream, bootstrap=shared.address, start="latest") as reader:
        assert reader.next_record(timeout=0.05) is None and not reader.finished
        reader.seek(0, 0, 990)
        assert numbers(taken(reader, 3)) == [990, 991, 992]
        [stands] = reader.positions()
        stored = pickle.dumps(stands)
        reader.seek_all("earliest")
        assert reader.next_record(timeout=60).ordinal == 0
    with kera.Reader(stream, bootstrap=shared.address, start="latest", follow=False) as reader:
        assert list(reader) == [] and reader.finished
        reader.seek(0, 0, pickle.loads(stored))
        assert not reader.finished
        assert numbers(reader) == list(range(993, 1_000))
        with pytest.raises(kera.SettingError, match="lane 0/7 is not read here"):
            reader.seek(0, 7, 0)
        for wrong in ("somewhere", -1, True, None):
            with pytest.raises(kera.SettingError, match="start: use"):
                reader.seek(0, 0, wrong)
        with pytest.raises(kera.SettingError, match="of lane 0/1, and not of lane 0/0"):
            reader.seek(0, 0, kera.Position(0, 1, 0))
    reader.close()
    with pytest.raises(kera.ClosedError, match="reader is closed"):
        reader.positions()


def test_only_the_lanes_that_are_named_are_read(shared, name):
    kera.Admin(bootstrap=shared.address).create_stream(name, streamlets=2, lanes=2)
    produce(shared, name, range(400), keys=40)
    seen = []
    for lanes in ([(0, 0)], [(0, 1), (1, 0)], [(1, 1)]):
        with kera.Reader(name, bootstrap=shared.address, follow=False, lanes=lanes) as reader:
            for batch in reader.batches():
                assert (batch.streamlet, batch.lane) in lanes
                seen += numbers(batch)
    assert sorted(seen) == list(range(400))
    with pytest.raises(kera.SettingError, match="lane 5/0"):
        kera.Reader(name, bootstrap=shared.address, lanes=[(5, 0)])


def test_positions_that_were_stored_with_results_are_gone_on_at(shared, stream):
    with member(shared, stream, resume_from=[kera.Position(0, 0, 321)]) as consumer:
        assert consumer.next_record(timeout=60).ordinal == 321


def test_groups_that_make_no_sense_are_refused(shared, stream):
    for settings, said in [
        ({"order": "records"}, 'use "lane", "key" or "none"'),
        ({"order": "key", "max_leases": 3}, "max_leases"),
        ({"start": -1}, "start: use"),
        ({"max_leases": 0}, "max_leases"),
        ({"memory_limit": 10}, "memory_limit"),
    ]:
        with pytest.raises(kera.SettingError, match=said):
            member(shared, stream, **settings)
    with pytest.raises(TypeError, match="Consumer has no setting ordering; it has .*order"):
        member(shared, stream, ordering="lane")
    with pytest.raises(kera.UnknownStreamError, match="no-such-stream"):
        member(shared, "no-such-stream")


def test_records_that_do_not_fit_are_skipped_and_told(shared, name, caplog):
    """They take more than the limit when they are decompressed."""
    kera.Admin(bootstrap=shared.address).create_stream(name)
    with kera.Producer(name, bootstrap=shared.address, compression="zstd") as producer:
        producer.append(b"small").result(timeout=60)
        producer.append(bytes(600_000)).result(timeout=60)
        producer.append(b"small again").result(timeout=60)
    small = {"memory_limit": 256 << 10, "fetch_bytes": 64 << 10}
    with kera.Reader(name, bootstrap=shared.address, follow=False, **small) as reader:
        assert reader.next_record(timeout=60).value == b"small"
        for _ in range(2):
            with pytest.raises(kera.DamagedBatchError, match="raise the memory limit.*or skip it") as told:
                reader.next_record(timeout=60)
            assert told.value.code == "INVALID_BATCH"
        reader.seek(0, 0, 2)
        assert reader.next_record(timeout=60).value == b"small again"
    with caplog.at_level(logging.WARNING, logger="kera"):
        with kera.Reader(name, bootstrap=shared.address, follow=False, skip_damaged=True, **small) as reader:
            assert [record.value for record in reader] == [b"small", b"small again"]
            assert reader.metrics()["skipped_batches"] == 1
    assert any("skipped: batch of lane" in line and "at ordinals 1 to 1" in line for line in caplog.messages), caplog.messages
