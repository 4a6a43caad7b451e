"""Coroutines of asyncio."""

import asyncio
import gc
import inspect
import weakref

import pytest

import kera
import kera.aio
from kera import _kera

NUMBERS = range(2_000)


async def numbered(name, address):
    """A stream with those numbers, written by many coroutines at once."""
    await asyncio.to_thread(kera.Admin(bootstrap=address).create_stream, name, streamlets=2, lanes=2)
    async with kera.aio.Producer(name, bootstrap=address) as producer:

        async def put(number):
            return await (await producer.append(b"%d" % number, key=b"%d" % (number % 7)))

        places = await asyncio.gather(*map(put, NUMBERS))
        assert len({(place.streamlet, place.lane, place.ordinal) for place in places}) == len(NUMBERS)


def test_what_coroutines_write_others_read(shared, name):
    async def main():
        await numbered(name, shared.address)
        async with kera.aio.Reader(name, follow=False, bootstrap=shared.address) as reader:
            records = [int(record.value) async for record in reader]
            assert reader.finished
            assert sum(position.ordinal for position in await reader.positions()) == len(NUMBERS)
            await reader.seek_all("earliest")
            batches = [batch async for batch in reader.batches()]
        assert sorted(records) == sorted(int(record.value) for batch in batches for record in batch) == list(NUMBERS)

    asyncio.run(main())


def test_members_of_a_group_share_a_stream(shared, name):
    # A member that a busy machine holds up keeps its leases.
    way = {"order": "none", "session": 60.0, "bootstrap": shared.address}

    async def member(seen):
        async with kera.aio.Consumer(name, name, **way) as consumer:
            while len(seen) < len(NUMBERS):
                batch = await consumer.next_batch(timeout=0.1)
                if batch is not None:
                    seen.update(int(record.value) for record in batch)

    async def main():
        await numbered(name, shared.address)
        # Blocks may come again while members join.
        seen = set()
        await asyncio.gather(*(member(seen) for _ in range(3)))
        assert seen == set(NUMBERS)
        # What is not committed comes again, and nothing else.
        async with kera.aio.Consumer(name, name, **way) as consumer:
            while (record := await consumer.next_record(timeout=0.5)) is not None:
                assert int(record.value) in seen

    asyncio.run(main())


def test_who_is_cancelled_loses_nothing(shared, name):
    async def main():
        admin = kera.Admin(bootstrap=shared.address)
        await asyncio.to_thread(admin.create_stream, name)
        async with (
            kera.aio.Producer(name, bootstrap=shared.address, linger=0.0) as producer,
            kera.aio.Consumer(name, name, commit_interval=None, session=60.0, bootstrap=shared.address) as consumer,
        ):
            heard = []
            for number in range(200):
                # Cancelled before, while or after the record comes.
                waits = asyncio.create_task(consumer.next_record())
                await asyncio.sleep(0)
                await producer.send(b"%d" % number)
                for _ in range(number % 20):
                    await asyncio.sleep(0)
                waits.cancel()
                [told] = await asyncio.gather(waits, return_exceptions=True)
                if isinstance(told, kera.Record):
                    heard.append(int(told.value))
                else:
                    assert isinstance(told, asyncio.CancelledError), told
            while len(heard) < 200:
                record = await consumer.next_record(timeout=60)
                assert record is not None, heard
                heard.append(int(record.value))
            assert heard == list(range(200))

    asyncio.run(main())


def test_a_wait_keeps_no_others_from_going_on(shared, name):
    async def main():
        await asyncio.to_thread(kera.Admin(bootstrap=shared.address).create_stream, name)
        async with kera.aio.Reader(name, bootstrap=shared.address) as reader:
            waits = asyncio.create_task(reader.next_batch())
            await asyncio.sleep(0)
            # The same reader lets go for a moment.
            assert len(await reader.positions()) == 1
            assert (await reader.metrics())["batches"] == 0
            assert not waits.done()
            await reader.close()
            with pytest.raises(kera.ClosedError):
                await waits
            with pytest.raises(kera.ClosedError):
                await reader.next_batch()

    asyncio.run(main())


def test_a_loop_that_is_closed_amid_reads_keeps_no_others_from_reading(shared, name):
    kera.Admin(bootstrap=shared.address).create_stream(name)
    reader = kera.aio.Reader(name, bootstrap=shared.address)
    first = asyncio.new_event_loop()
    first.run_until_complete(reader.open())
    # One reads, and the others wait for their turn.
    left = [first.create_task(wait()) for wait in (reader.next_record, reader.next_record, reader.positions)]
    first.run_until_complete(asyncio.sleep(0))
    first.close()
    assert not any(task.done() for task in left[:2])

    async def others():
        assert len(await asyncio.wait_for(reader.positions(), 60)) == 1
        with kera.Producer(name, bootstrap=shared.address) as producer:
            producer.append(b"heard")
        record = await reader.next_record(timeout=60)
        assert record is not None and record.value == b"heard"
        await reader.close()

    asyncio.run(others())
    # And it is gone with all that waited there.
    gone = [weakref.ref(first), *map(weakref.ref, left)]
    del first, left
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4


def test_an_exception_commits_nothing_more(shared, name):
    async def main():
        await numbered(name, shared.address)
        with pytest.raises(ZeroDivisionError):
            async with kera.aio.Consumer(name, name, commit_interval=3600, bootstrap=shared.address) as consumer:
                async for record in consumer:
                    first = record.value
                    1 / 0
        seen = set()
        async with kera.aio.Consumer(name, name, bootstrap=shared.address) as consumer:
            while len(seen) < len(NUMBERS):
                seen.update(record.value for record in await consumer.next_batch())
        assert first in seen

    asyncio.run(main())


def test_transactions(shared, name):
    async def main():
        await asyncio.to_thread(kera.Admin(bootstrap=shared.address).create_stream, name)
        async with kera.aio.Producer(name, transactional_id=name, bootstrap=shared.address) as producer:
            async with producer.transaction():
                await producer.send(b"counts")
                with pytest.raises(kera.TransactionError, match="is open"):
                    await producer.transaction()
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(b"does not")
                    1 / 0
            # Who gives up waiting for a beginning, or for an end, can go on.
            begins = asyncio.create_task(producer.transaction().begin())
            await asyncio.sleep(0)
            begins.cancel()
            await asyncio.wait([begins])
            if not begins.cancelled():
                # It had begun before.
                await begins.result().abort()
            with pytest.raises(asyncio.CancelledError):
                async with producer.transaction() as ends:
                    await producer.send(b"may count")
                    ending = asyncio.create_task(ends.commit())
                    await asyncio.sleep(0)
                    ending.cancel()
                    await ending
            prepared = await producer.transaction()
            await producer.send(b"counts too")
            handle = await prepared.prepare()
            with pytest.raises(kera.TransactionError):
                await prepared.commit()
        await asyncio.to_thread(kera.Transactions(bootstrap=shared.address).commit, handle)
        async with kera.aio.Reader(name, bootstrap=shared.address) as reader:
            read = [(await reader.next_record(timeout=60)).value for _ in range(2)]
            if read[1] == b"may count":
                read[1] = (await reader.next_record(timeout=60)).value
            assert read == [b"counts", b"counts too"]

    asyncio.run(main())


def test_memory_that_is_used_up_holds_who_appends(shared, name):
    async def main():
        await asyncio.to_thread(kera.Admin(bootstrap=shared.address).create_stream, name)
        value = bytes(50_000)
        settings = {"memory_limit": 1 << 20, "batch_size": 64 << 10, "bootstrap": shared.address}
        async with kera.aio.Producer(name, **settings) as producer:
            await asyncio.gather(*(producer.send(value) for _ in range(500)))
            assert (await producer.metrics())["memory_used_bytes"] <= 1 << 20
            await producer.flush()
            assert (await producer.metrics())["records_acknowledged"] == 500

    asyncio.run(main())


def test_errors_are_those_of_the_others(shared, name):
    async def main():
        with pytest.raises(kera.UnknownStreamError):
            await kera.aio.Reader(name, bootstrap=shared.address)
        with pytest.raises(TypeError, match="has no setting no_such"):
            kera.aio.Producer(name, no_such=1)
        with pytest.raises(kera.ClosedError, match="open it with"):
            await kera.aio.Consumer(name, name, bootstrap=shared.address).next_batch()

    asyncio.run(main())


def test_both_forms_have_the_same_methods():
    for kind in ("Consumer", "Producer", "Reader", "Transaction"):
        sync, aio = getattr(_kera, kind), getattr(kera.aio, kind)
        lacks = {"__enter__", "__exit__", "__iter__", "__new__", "handle"} | set(vars(object))
        for name in set(vars(sync)) - lacks:
            if not name.startswith("_"):
                assert hasattr(aio, name), (kind, name)
                if inspect.isroutine(getattr(sync, name)):
                    said = [one for one in inspect.signature(getattr(sync, name)).parameters if one != "timeout"]
                    has = [one for one in inspect.signature(getattr(aio, name)).parameters if one != "timeout"]
                    assert said == has, (kind, name)
