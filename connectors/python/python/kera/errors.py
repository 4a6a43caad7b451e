"""What can go wrong. All exceptions but those about wrong types are a KeraError, and have the broker's own words."""


class KeraError(Exception):
    """The base of all."""

    #: The broker's code, such as "UNKNOWN_STREAM", if a broker refused.
    code: "str | None" = None
    #: Whether the same call may succeed later without any change.
    is_retryable: bool = False
    #: Whether it may have taken effect all the same.
    is_uncertain: bool = False


class SettingError(KeraError, ValueError):
    """A setting or an argument makes no sense."""


class ConnectionFailed(KeraError, ConnectionError):
    """No broker was reached, or not to the end."""


class LoginError(ConnectionFailed, PermissionError):
    """A broker does not let the user in: the text says who is refused, where and why. `is_retryable` where it may yet."""


class TlsError(ConnectionFailed):
    """Client and broker do not agree on TLS: one of them has none, or refuses the other's certificate. The text says what to do."""


class BrokerError(KeraError):
    """A broker refused."""


class UnknownStreamError(BrokerError, LookupError):
    """There is no such stream."""


class StreamExistsError(BrokerError):
    """There is such a stream already."""


class NotAuthorizedError(BrokerError, PermissionError):
    """The user has no right to that, or is not known."""


class ProduceError(KeraError):
    """A record was given up. `is_uncertain` says whether it may be stored all the same."""


class RecordTooLargeError(KeraError, ValueError):
    """A record is larger than a batch may be. It was not taken."""


class TransactionError(KeraError):
    """A transaction did not begin or end as it was to. If `is_uncertain`, nobody can tell how it ended."""


class FencedError(BrokerError, TransactionError):
    """Another producer has begun under the same transactional id."""


class TransactionAborted(TransactionError):
    """It was aborted: its time was over, somebody aborted it, or a record of it was given up."""


class TransactionCommitted(TransactionError):
    """It was committed, and cannot be aborted."""


class ConsumeError(KeraError):
    """There is no batch, or a commit did not take effect."""


class LaneError(ConsumeError):
    """One lane cannot be read. Call again to go on with the others."""


class DamagedBatchError(ConsumeError):
    """A batch cannot be read. The text says what to do."""


class StaleLeaseError(ConsumeError):
    """The batch's lease has ended: another consumer has its records, and nothing was committed."""


class ClosedError(KeraError):
    """The object was closed."""


class ForkedError(KeraError, RuntimeError):
    """The object belongs to the process that this one was forked from."""


class WaitTimeout(KeraError, TimeoutError):
    """What was waited for has not come yet. Waiting goes on with the next call."""
