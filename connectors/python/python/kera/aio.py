"""The same for coroutines of asyncio: `async with`, `async for`, `await`.

Coroutines that wait keep no thread: the clients' own tasks wake the event loop. Administration has no such form; it goes well in
a thread, as in `await asyncio.to_thread(admin.create_stream, "orders")`.
"""

import asyncio
import itertools
import threading
import weakref

from . import _kera
from .errors import ClosedError, TransactionError

__all__ = ["Consumer", "Producer", "Reader", "Transaction"]

# How often is looked whether the clients have told something in their log, in seconds.
_LOOK_EVERY = 0.5

_numbers = itertools.count(1)
_of_thread = threading.local()


class _Waits:
    """What the coroutines of one event loop wait for. The loop has it while it is open: once it is closed, and nobody has it any
    more, coroutines that waited there end with it.
    """

    def __init__(self, loop):
        self.bell = _kera._Bell()
        self.waiting = {}
        self._looks = False
        loop.add_reader(self.bell.fileno(), self._rung)

    def _rung(self):
        for number in self.bell.rung():
            self.ring(number)

    def ring(self, number):
        waiting = self.waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def wait(self, loop, number):
        self.waiting[number] = waiting = loop.create_future()
        if not self._looks:
            self._looks = True
            loop.call_later(_LOOK_EVERY, self._look, loop)
        return waiting

    def _look(self, loop):
        self._looks = bool(self.waiting)
        if self._looks:
            loop.call_later(_LOOK_EVERY, self._look, loop)
            self.bell.pass_on()


def _waits(loop):
    try:
        of_loops = _of_thread.waits
    except AttributeError:
        of_loops = _of_thread.waits = weakref.WeakKeyDictionary()
    known = of_loops.get(loop)
    waits = None if known is None else known()
    if waits is None:
        waits = _Waits(loop)
        # What coroutines wait for leads to their loop: a dictionary that had it would keep the loop.
        of_loops[loop] = weakref.ref(waits)
    return waits


async def _finish(pending, timeout=None):
    """What a pending thing comes to; None after the time. Nothing happens to it but here, so that whoever is cancelled loses
    nothing.
    """
    loop = asyncio.get_running_loop()
    waits = _waits(loop)
    number = next(_numbers)
    is_late = False

    def late():
        nonlocal is_late
        is_late = True
        waits.ring(number)

    timer = None if timeout is None else loop.call_later(timeout, late)
    try:
        while (came := pending.poll(waits.bell, number)) is None:
            if is_late:
                return None
            await waits.wait(loop, number)
        return came[0]
    finally:
        if timer is not None:
            timer.cancel()
        waits.waiting.pop(number, None)
        pending.give_up()


async def _of_delivery(delivery):
    return delivery.result() if delivery.done else await _finish(delivery._pending())


class _Opened:
    """What is opened by `await` or `async with`."""

    def __init__(self, kind, words, settings):
        # What is wrong with the settings is said here.
        self._opening = kind._open(*words, **settings)
        self._kera = None

    async def open(self):
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._kera = await _finish(opening)
        elif self._kera is None:
            raise ClosedError("it did not open; make a new one")
        return self

    def __await__(self):
        return self.open().__await__()

    async def __aenter__(self):
        return await self.open()

    async def __aexit__(self, error, *more):
        await self.close()

    @property
    def _open(self):
        if self._kera is None:
            raise ClosedError("it is not open; open it with `async with`, or with `await`")
        return self._kera

    async def close(self):
        if self._kera is not None:
            await _finish(self._kera._close())

    async def metrics(self):
        return await _finish(self._open._metrics())


class _Reads(_Opened):
    async def next_batch(self, timeout=None):
        return await _finish(self._open._next_batch(), timeout)

    async def next_record(self, timeout=None):
        at_hand = self._open._record_at_hand()
        return at_hand if at_hand is not None else await _finish(self._open._next_record(), timeout)

    async def batches(self, timeout=None):
        while (batch := await self.next_batch(timeout)) is not None:
            yield batch

    async def records(self, timeout=None):
        while (record := await self.next_record(timeout)) is not None:
            yield record

    def __aiter__(self):
        return self.records()


class Reader(_Reads):
    """As `kera.Reader`."""

    def __init__(self, stream, **settings):
        super().__init__(_kera.Reader, (stream,), settings)

    @property
    def finished(self):
        return self._open.finished

    async def seek(self, streamlet, lane, to):
        await _finish(self._open._seek(streamlet, lane, to))

    async def seek_all(self, to):
        await _finish(self._open._seek_all(to))

    async def positions(self):
        return await _finish(self._open._positions())


class Consumer(_Reads):
    """As `kera.Consumer`."""

    def __init__(self, stream, group, **settings):
        super().__init__(_kera.Consumer, (stream, group), settings)

    async def commit(self, batch):
        await _finish(self._open._commit(batch))

    def mark(self, batch):
        self._open.mark(batch)

    async def leases(self):
        return await _finish(self._open._leases())

    async def close(self):
        if self._kera is not None:
            await _finish(self._kera._close(False))

    async def __aexit__(self, error, *more):
        if self._kera is not None:
            # After an exception the record at hand may not have been processed.
            await _finish(self._kera._close(error is not None))


class Producer(_Opened):
    """As `kera.Producer`."""

    def __init__(self, stream, **settings):
        super().__init__(_kera.Producer, (stream,), settings)

    async def append(self, value, key=None, *, headers=None, timestamp=None):
        taken = self._open._append(value, key, headers=headers, timestamp=timestamp)
        return await _finish(taken) if isinstance(taken, _kera._Pending) else taken

    async def send(self, value, key=None, *, headers=None, timestamp=None):
        await self.append(value, key, headers=headers, timestamp=timestamp)

    async def flush(self):
        await _finish(self._open._flush())

    async def metrics(self):
        return self._open.metrics()

    def transaction(self):
        return Transaction(self._open)


class Transaction:
    """As `kera.Transaction`: begun by `await` or `async with`."""

    def __init__(self, producer):
        self._producer = producer
        self._kera = None

    async def begin(self):
        if self._kera is None:
            self._kera = await _finish(self._producer._transaction())
        return self

    def __await__(self):
        return self.begin().__await__()

    async def __aenter__(self):
        return await self.begin()

    async def __aexit__(self, error, *more):
        if self._kera._has_ended:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except TransactionError:
            # An end that was cancelled goes on; the exception that came of it does, too.
            if not self._kera._has_ended:
                raise

    async def _end(self, how):
        if self._kera is None:
            raise ClosedError("the transaction has not begun; begin it with `async with`, or with `await`")
        return await _finish(self._kera._end(how))

    async def commit(self):
        await self._end("commit")

    async def abort(self):
        await self._end("abort")

    async def prepare(self):
        return await self._end("prepare")
