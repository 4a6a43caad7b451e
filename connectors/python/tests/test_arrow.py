"""Batches as Arrow's libraries take them."""

import datetime

import nanoarrow
import pytest

import kera


@pytest.fixture
def batches(shared, name):
    """Of one lane. A producer that is held up may cut a batch early, so there are one to four."""
    kera.Admin(bootstrap=shared.address).create_stream(name, streamlets=2, lanes=2)
    with kera.Producer(name, bootstrap=shared.address, linger=5) as producer:
        producer.append(b"one", b"key", headers=[("a", b"1"), ("none", None)], timestamp=1_000)
        producer.append(None, b"key", timestamp=2_000)
        producer.append(b"three", b"key", headers=[("b", b"")], timestamp=3_000)
        producer.append(bytes(100_000), b"key", timestamp=4_000)
    with kera.Reader(name, bootstrap=shared.address, follow=False) as reader:
        batches = list(reader.batches())
    assert [batch.first_ordinal for batch in batches] == [0] + [batch.next_ordinal for batch in batches[:-1]]
    assert batches[-1].next_ordinal == 4
    return batches


def test_a_batch_is_a_struct_array(batches):
    rows = [row for batch in batches for row in nanoarrow.Array(batch).to_pylist()]
    place = {"streamlet": batches[0].streamlet, "lane": batches[0].lane}
    utc = datetime.timezone.utc
    times = [datetime.datetime.fromtimestamp(second, utc) for second in range(1, 5)]
    assert [row["timestamp"].timestamp() for row in rows] == [time.timestamp() for time in times]
    for row in rows:
        del row["timestamp"]
    assert rows[:3] == [
        {**place, "ordinal": 0, "key": b"key", "value": b"one",
         "headers": [{"name": "a", "value": b"1"}, {"name": "none", "value": None}]},
        {**place, "ordinal": 1, "key": b"key", "value": None, "headers": []},
        {**place, "ordinal": 2, "key": b"key", "value": b"three", "headers": [{"name": "b", "value": b""}]},
    ]
    assert rows[3]["value"] == bytes(100_000)
    assert [record.value for batch in batches for record in batch] == [row["value"] for row in rows]


def test_a_part_of_a_batch(batches):
    for batch in batches:
        for end in range(batch.first_ordinal, batch.next_ordinal + 1):
            rows = nanoarrow.Array(batch.until(end)).to_pylist()
            assert [row["ordinal"] for row in rows] == list(range(batch.first_ordinal, end))


def test_the_schema_is_known_before_the_records(batches):
    schema = nanoarrow.Schema(batches[0])
    assert [field.name for field in schema.fields] == [
        "streamlet", "lane", "ordinal", "timestamp", "key", "value", "headers",
    ]
    assert [field.nullable for field in schema.fields] == [False] * 4 + [True] * 2 + [False]


def test_an_array_outlives_its_batch(batches):
    arrays = [nanoarrow.c_array(batch) for batch in batches]
    expected = [nanoarrow.Array(batch).to_pylist() for batch in batches]
    batches.clear()
    assert [nanoarrow.Array(array).to_pylist() for array in arrays] == expected
    # One that nobody takes is given back.
    capsules = nanoarrow.Array(arrays[0]).__arrow_c_array__()
    del capsules
