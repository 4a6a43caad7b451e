from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, final

_Bytes: TypeAlias = bytes | bytearray
_Start: TypeAlias = Literal["earliest", "latest"] | int | datetime
_Path: TypeAlias = str | PathLike[str]

@final
class Tls:
    """TLS to brokers: the authorities that are trusted, and a certificate of one's own. Files, in PEM."""

    def __new__(cls, ca: _Path, *, certificate: _Path | None = None, key: _Path | None = None) -> Tls: ...

@final
class Login:
    """A user's name and password, or a file with a token that names the user."""

    def __new__(
        cls,
        user: str,
        password: str,
        *,
        mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512",
    ) -> Login: ...
    @staticmethod
    def with_token_file(path: _Path) -> Login: ...
    def __repr__(self) -> str: ...

@final
class _Pending:
    """What a coroutine of `kera.aio` waits for."""

    def poll(self, bell: _Bell, number: int) -> tuple[Any] | None: ...
    def give_up(self) -> None: ...

@final
class _Bell:
    """Wakes an event loop."""

    def __new__(cls) -> _Bell: ...
    def fileno(self) -> int: ...
    def rung(self) -> list[int]: ...
    def pass_on(self) -> None: ...

@final
class Record:
    """A record that was read."""

    @property
    def streamlet(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def ordinal(self) -> int:
        """Its number in the lane."""
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Names and values, in the order given."""
    def __repr__(self) -> str: ...

@final
class RecordPlace:
    """Where an acknowledged record is."""

    @property
    def streamlet(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class Batch:
    """Records of one lane, in order."""

    @property
    def streamlet(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def first_ordinal(self) -> int:
        """Ordinal of the first record."""
    @property
    def next_ordinal(self) -> int:
        """Ordinal after the last record."""
    @property
    def head_ordinal(self) -> int:
        """The lane's durable head when the batch was read."""
    @property
    def lease(self) -> int | None:
        """The lease it was read under, if a group's member read it."""
    def until(self, next: int) -> Batch:
        """The same batch cut before an ordinal, to commit part of it."""
    def __arrow_c_schema__(self) -> object:
        """Arrow's PyCapsule interface."""
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Arrow's PyCapsule interface: a struct array. Whoever asks for another form gets this one."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Record]: ...
    def __repr__(self) -> str: ...

@final
class Position:
    """Where a reader stands in a lane."""

    def __new__(cls, streamlet: int, lane: int, ordinal: int) -> Position: ...
    @property
    def streamlet(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    def __getnewargs__(self) -> tuple[int, int, int]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class Delivery:
    """The fate of one record."""

    @property
    def done(self) -> bool:
        """Whether it is acknowledged or given up."""
    def result(self, timeout: float | None = None) -> RecordPlace:
        """Waits until it is known where the record is."""
    def __await__(self) -> Generator[Any, None, RecordPlace]:
        """As `result`, for coroutines."""
    def _pending(self) -> _Pending: ...


@final
class Producer:
    """Appends records to one stream. Threads may share it."""

    def __new__(
        cls,
        stream: str,
        *,
        bootstrap: str = "127.0.0.1:7600",
        tls: Tls | None = None,
        login: Login | None = None,
        retry_within: float = 30.0,
        batch_size: int = 131072,
        linger: float = 0.001,
        memory_limit: int = 67108864,
        max_in_flight_batches: int = 16,
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        deadline: float = 30.0,
        idempotent: bool = True,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
    ) -> Producer: ...
    def append(
        self,
        value: _Bytes | None,
        key: _Bytes | None = None,
        *,
        headers: Sequence[tuple[str, _Bytes | None]] | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Takes a record and returns at once; waits only while memory is used up."""
    def send(
        self,
        value: _Bytes | None,
        key: _Bytes | None = None,
        *,
        headers: Sequence[tuple[str, _Bytes | None]] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """As `append` without a handle, which costs less. `flush` and `close` tell of what was given up."""
    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was appended is acknowledged."""
    def close(self, timeout: float | None = None) -> None:
        """Takes no more records, and waits for those that were taken."""
    def transaction(self) -> Transaction:
        """Begins a transaction."""
    def metrics(self) -> dict[str, int]:
        """Counts since it was made."""
    def __enter__(self) -> Producer: ...
    def __exit__(
        self,
        error: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
    @staticmethod
    def _open(stream: str, **settings: Any) -> _Pending: ...
    def _append(
        self,
        value: _Bytes | None,
        key: _Bytes | None = None,
        *,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp: int | None = None,
    ) -> Delivery | _Pending: ...
    def _flush(self) -> _Pending: ...
    def _close(self) -> _Pending: ...
    def _transaction(self) -> _Pending: ...


@final
class Transaction:
    """An open transaction of a producer: what is appended until it ends counts together, or not at all."""

    @property
    def handle(self) -> TransactionHandle | None:
        """Its handle, once a record is on its way."""
    def commit(self) -> None:
        """Has all of its records count. An end that is interrupted, as by Ctrl-C, goes on: call again to hear of it."""
    def abort(self) -> None:
        """Gives up all of its records."""
    def prepare(self) -> TransactionHandle | None:
        """Has it wait until somebody ends it by its handle. `None` if nothing was appended."""
    def __enter__(self) -> Transaction: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
    def _end(self, how: str) -> _Pending: ...
    @property
    def _has_ended(self) -> bool: ...


@final
class TransactionHandle:
    """Names a transaction. Can be pickled."""

    def __new__(cls, transactional_id: str, producer: int, epoch: int, number: int) -> TransactionHandle: ...
    @property
    def transactional_id(self) -> str: ...
    @property
    def producer(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    def __getnewargs__(self) -> tuple[str, int, int, int]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class Transactions:
    """Ends transactions that were prepared, by their handles."""

    def __new__(
        cls,
        *,
        bootstrap: str = "127.0.0.1:7600",
        tls: Tls | None = None,
        login: Login | None = None,
        retry_within: float = 30.0,
    ) -> Transactions: ...
    def commit(self, handle: TransactionHandle) -> None:
        """Commits a transaction; one that was committed before is committed."""
    def abort(self, handle: TransactionHandle) -> None:
        """Aborts a transaction; one that was aborted before is aborted."""
    def forget(self, handle: TransactionHandle) -> None:
        """Has the brokers forget how it ended, and its transactional id."""
    def prepared(self, prefix: str = "") -> list[TransactionHandle]:
        """Those that are prepared whose transactional ids begin so."""

@final
class Consumer:
    """A member of a consumer group."""

    def __new__(
        cls,
        stream: str,
        group: str,
        *,
        bootstrap: str = "127.0.0.1:7600",
        tls: Tls | None = None,
        login: Login | None = None,
        retry_within: float = 30.0,
        start: _Start = "earliest",
        memory_limit: int = 33554432,
        fetch_bytes: int = 262144,
        poll_wait: float = 5.0,
        rack: str | None = None,
        skip_damaged: bool = False,
        order: Literal["lane", "none", "key"] = "lane",
        session: float = 10.0,
        max_leases: int | None = None,
        range_bytes: int = 1048576,
        client_name: str = "consumer",
        commit_interval: float | None = 1.0,
        resume_from: Sequence[Position] | None = None,
    ) -> Consumer: ...
    def next_batch(self, timeout: float | None = None) -> Batch | None:
        """The next batch; `None` if there is none within the limit. With commits at an interval, all batches before it
        count as processed."""
    def next_record(self, timeout: float | None = None) -> Record | None:
        """The next record; `None` if there is none within the limit."""
    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Iterates over batches, until none comes within the limit."""
    def records(self, timeout: float | None = None) -> Iterator[Record]:
        """Iterates over records, until none comes within the limit."""
    def __iter__(self) -> Iterator[Record]: ...
    def commit(self, batch: Batch) -> None:
        """Commits all of the batch's lease up to and including it; it returns when that is durable."""
    def mark(self, batch: Batch) -> None:
        """Notes that all of the batch's lease up to and including it is processed."""
    def leases(self) -> list[tuple[int, int, int, int | None]]:
        """Streamlet, lane, first ordinal and end of each lease that is held."""
    def metrics(self) -> dict[str, int]:
        """Counts and sizes."""
    def close(self) -> None:
        """Commits what was processed, gives the leases back and leaves the group."""
    def __enter__(self) -> Consumer: ...
    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None:
        """As `close`. After an exception nothing more is committed: the record at hand may not have been processed."""
    @staticmethod
    def _open(stream: str, group: str, **settings: Any) -> _Pending: ...
    def _next_batch(self) -> _Pending: ...
    def _next_record(self) -> _Pending: ...
    def _record_at_hand(self) -> Record | None: ...
    def _metrics(self) -> _Pending: ...
    def _commit(self, batch: Batch) -> _Pending: ...
    def _leases(self) -> _Pending: ...
    def _close(self, gives_up: bool) -> _Pending: ...


@final
class Reader:
    """Reads lanes of a stream on its own, and commits nothing."""

    def __new__(
        cls,
        stream: str,
        *,
        bootstrap: str = "127.0.0.1:7600",
        tls: Tls | None = None,
        login: Login | None = None,
        retry_within: float = 30.0,
        start: _Start = "earliest",
        memory_limit: int = 33554432,
        fetch_bytes: int = 262144,
        poll_wait: float = 5.0,
        rack: str | None = None,
        skip_damaged: bool = False,
        follow: bool = True,
        lanes: Sequence[tuple[int, int]] | None = None,
    ) -> Reader: ...
    @property
    def finished(self) -> bool:
        """Whether all lanes are read to their ends, which they never are while it follows."""
    def next_batch(self, timeout: float | None = None) -> Batch | None:
        """The next batch; `None` if there is none within the limit, or ever: then it is `finished`."""
    def next_record(self, timeout: float | None = None) -> Record | None:
        """The next record; `None` as with `next_batch`."""
    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Iterates over batches, until the end or until none comes within the limit."""
    def records(self, timeout: float | None = None) -> Iterator[Record]:
        """Iterates over records, until the end or until none comes within the limit."""
    def __iter__(self) -> Iterator[Record]: ...
    def seek(self, streamlet: int, lane: int, to: _Start | Position) -> None:
        """Goes on elsewhere in one lane: at what `start` takes, or at a position."""
    def seek_all(self, to: _Start) -> None:
        """Goes on elsewhere in every lane."""
    def positions(self) -> list[Position]:
        """Where it stands in each lane."""
    def metrics(self) -> dict[str, int]:
        """Counts and sizes."""
    def close(self) -> None: ...
    def __enter__(self) -> Reader: ...
    def __exit__(
        self,
        error: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
    @staticmethod
    def _open(stream: str, **settings: Any) -> _Pending: ...
    def _next_batch(self) -> _Pending: ...
    def _next_record(self) -> _Pending: ...
    def _record_at_hand(self) -> Record | None: ...
    def _metrics(self) -> _Pending: ...
    def _seek(self, streamlet: int, lane: int, to: _Start | Position) -> _Pending: ...
    def _seek_all(self, to: _Start) -> _Pending: ...
    def _positions(self) -> _Pending: ...
    def _close(self) -> _Pending: ...


@final
class StreamInfo:
    """A stream, as it was when it was asked for."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def streamlets(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def partitions(self) -> int: ...
    @property
    def lane_generation(self) -> int: ...
    @property
    def owners(self) -> list[str]:
        """HOST:PORT of each streamlet's owner."""
    def __repr__(self) -> str: ...

@final
class LaneInfo:
    """A lane of a stream: what is stored in it."""

    @property
    def streamlet(self) -> int: ...
    @property
    def lane(self) -> int: ...
    @property
    def start(self) -> int:
        """Ordinal of the first record stored."""
    @property
    def head(self) -> int:
        """Ordinal after the last durable record."""
    @property
    def bytes(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class GroupInfo:
    """A consumer group."""

    @property
    def group(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def members(self) -> int: ...
    @property
    def lag(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class Admin:
    """Administers streams and consumer groups."""

    def __new__(
        cls,
        *,
        bootstrap: str = "127.0.0.1:7600",
        tls: Tls | None = None,
        login: Login | None = None,
        retry_within: float = 30.0,
    ) -> Admin: ...
    def create_stream(
        self,
        name: str,
        *,
        if_not_exists: bool = False,
        streamlets: int = 1,
        lanes: int = 1,
        replicas: int = ...,
        min_insync_replicas: int = ...,
        max_batch_bytes: int = ...,
        retention: float = ...,
        retention_bytes: int = ...,
        ack: Literal["written", "memory", "synced"] = ...,
        lane_by: Literal["key", "producer"] = ...,
        cleanup: Literal["delete", "compact", "compact,delete"] = ...,
    ) -> StreamInfo:
        """Creates a stream. What is not named is as the brokers have it."""
    def alter_stream(
        self,
        name: str,
        *,
        streamlets: int = ...,
        lanes: int = ...,
        replicas: int = ...,
        min_insync_replicas: int = ...,
        max_batch_bytes: int = ...,
        retention: float = ...,
        retention_bytes: int = ...,
        ack: Literal["written", "memory", "synced"] = ...,
        lane_by: Literal["key", "producer"] = ...,
        cleanup: Literal["delete", "compact", "compact,delete"] = ...,
    ) -> StreamInfo:
        """Changes settings of a stream; those that are not named stay."""
    def delete_stream(self, name: str) -> None:
        """Deletes a stream with all of its records."""
    def stream(self, name: str) -> StreamInfo:
        """A stream."""
    def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
    def lanes(self, name: str) -> list[LaneInfo]:
        """A stream's lanes."""
    def groups(self) -> list[GroupInfo]:
        """All consumer groups, by name."""

def _finish_all() -> None: ...
def _forked() -> None: ...
