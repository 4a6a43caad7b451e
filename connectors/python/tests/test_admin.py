"""Streams and groups."""

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
    for call in ("streams", "groups"):
        getattr(kera.Admin(bootstrap=f"{gone.address},{shared.address}"), call)()
