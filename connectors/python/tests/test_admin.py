"""Streams and groups."""

import contextlib
import socket
import threading
import time

import pytest

import kera


@pytest.fixture
def admin(shared):
    return kera.Admin(bootstrap=shared.address)


def test_streams_are_created_described_changed_and_deleted(admin, shared, name):
    made = admin.create_stream(name, streamlets=2, lanes=3, retention=3600.0, ack="synced")
    assert (made.name, made.streamlets, made.lanes, made.partitions) == (name, 2, 3, 6)
    assert made.owners == [shared.address] * 2
    again = admin.create_stream(name, if_not_exists=True)
    assert again.id == made.id == admin.stream(name).id
    assert name in repr(made)
    with kera.Producer(name, bootstrap=shared.address) as producer:
        for number in range(60):
            producer.send(b"%d" % number, b"%d" % number)
    lanes = admin.lanes(name)
    assert [(lane.streamlet, lane.lane) for lane in lanes] == [(s, n) for s in range(2) for n in range(3)]
    assert sum(lane.head - lane.start for lane in lanes) == 60 and all(lane.bytes > 0 for lane in lanes if lane.head)
    assert admin.alter_stream(name, retention_bytes=1 << 30).id == made.id
    assert name in [stream.name for stream in admin.streams()]
    admin.delete_stream(name)
    assert name not in [stream.name for stream in admin.streams()]


def test_refusals_name_the_stream(admin, name):
    for use in (lambda: admin.stream(name), lambda: admin.lanes(name), lambda: admin.delete_stream(name)):
        with pytest.raises(kera.UnknownStreamError, match=name) as told:
            use()
        assert told.value.code == "UNKNOWN_STREAM" and not told.value.is_uncertain
    admin.create_stream(name)
    with pytest.raises(kera.StreamExistsError, match=name) as told:
        admin.create_stream(name)
    assert told.value.code == "STREAM_EXISTS" and not told.value.is_uncertain
    with pytest.raises(kera.BrokerError) as told:
        admin.create_stream("no spaces please")
    assert told.value.code == "INVALID_NAME"
    with pytest.raises(kera.SettingError, match="ack: never is none; use one of written, memory, synced"):
        admin.create_stream(name + "-2", ack="never")
    with pytest.raises(TypeError, match="a stream has no setting colour; it has streamlets, lanes"):
        admin.create_stream(name + "-2", colour="blue")
    with pytest.raises(TypeError, match="Admin has no setting colour; it has bootstrap"):
        kera.Admin(colour="blue")


def test_another_broker_is_asked_when_the_first_is_gone(shared, new_broker, name):
    """For everything that any broker answers."""
    gone = new_broker()
    gone.kill()
    admin = kera.Admin(bootstrap=f"{gone.address},{shared.address}")
    admin.create_stream(name)
    assert name in [stream.name for stream in admin.streams()]
    with pytest.raises(kera.StreamExistsError) as told:
        kera.Admin(bootstrap=f"{gone.address},{shared.address}").create_stream(name)
    assert not told.value.is_uncertain, "the first was not reached"
    for call in ("streams", "groups"):
        getattr(kera.Admin(bootstrap=f"{gone.address},{shared.address}"), call)()


# See docs/protocol.md.
HELLO_REPLY_BYTES = 12
CALL_REPLY = 13


class Proxy:
    """Passes on what clients say, and what the broker says but for answers on the first connection, until that is cut: the
    first `answers` of them pass."""

    def __init__(self, address, answers=0):
        self.answers = answers
        self.broker = address.rsplit(":", 1)
        self.listens = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listens.getsockname()[1]
        self.first = None
        self.sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listens.accept()
                broker = socket.create_connection(self.broker)
                is_first = self.first is None
                self.first = self.first or (client, broker)
                self.sockets += (client, broker)
                threading.Thread(target=self._pass, args=(client, broker, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(broker, client, is_first), daemon=True).start()

    def _pass(self, here, there, without_answers):
        with contextlib.suppress(OSError):
            if without_answers:
                there.sendall(self._exactly(here, HELLO_REPLY_BYTES))
            while said := self._frame(here) if without_answers else here.recv(1 << 16):
                # All others keep the connection alive.
                is_answer = without_answers and said[4] == CALL_REPLY
                if not is_answer or self.answers > 0:
                    there.sendall(said)
                if is_answer:
                    self.answers -= 1

    @staticmethod
    def _exactly(here, count):
        read = b""
        while len(read) < count:
            more = here.recv(count - len(read))
            if not more:
                raise OSError("it ended")
            read += more
        return read

    def _frame(self, here):
        length = self._exactly(here, 4)
        return length + self._exactly(here, int.from_bytes(length, "little"))

    def cut(self):
        for end in self.first:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        for end in (self.listens, *self.sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.parametrize("what", ["create", "delete", "alter"])
def test_a_refusal_after_an_answer_that_was_lost_is_uncertain(admin, shared, name, what):
    """Of a change that the first attempt made, the second one is told something that the first one has brought about."""
    if what != "create":
        admin.create_stream(name)
    # What is to be deleted is looked up before.
    proxy = Proxy(shared.address, answers=1 if what == "delete" else 0)
    through = kera.Admin(bootstrap=proxy.address)
    changes = {
        "create": lambda: through.create_stream(name),
        "delete": lambda: through.delete_stream(name),
        "alter": lambda: through.alter_stream(name, retention_bytes=123 << 20),
    }
    came = []

    def change():
        try:
            came.append(changes[what]())
        except kera.KeraError as error:
            came.append(error)

    def is_made():
        if what == "alter":
            return str(123 << 20) in shared.run("stream", "describe", name, "--json")
        return (name in [stream.name for stream in admin.streams()]) == (what == "create")

    thread = threading.Thread(target=change)
    thread.start()
    while not is_made():
        assert not came, came
        time.sleep(0.01)
    if what == "alter":
        admin.delete_stream(name)
    proxy.cut()
    thread.join()
    proxy.close()
    [error] = came
    kind = kera.StreamExistsError if what == "create" else kera.UnknownStreamError
    assert isinstance(error, kind), error
    assert error.is_uncertain and not error.is_retryable
    assert "an earlier attempt may have done it: connection to broker" in str(error)
