"""Reads over connections that break, each in its own way."""

import pytest

from janus_shards.errors import IntegrityError, TransientError
from janus_shards.storage.base import Storage, StorageOptions, TransferOptions
from janus_shards.storage.retry import Clock, RetryingStorage
from janus_shards.storage.urls import open_storage
from tests.conftest import OpenFaultServer
from tools.fault_server import FaultServer, Rule

BODY = bytes(range(256)) * 800
RESET = Rule(part=0.4, end="reset")
STALL = Rule(part=0.4, end="stall")
CLOSE = Rule(part=0.4, end="close")
CHUNKED = Rule(part=0.4, length="chunked")
ALWAYS_RESET = Rule(part=0.4, end="reset", times=None)
ALWAYS_STALL = Rule(part=0.4, end="stall", times=None)


def _open(server: FaultServer, **settings: object) -> Storage:
    options = {"endpoint_url": server.endpoint, "anonymous": True, "first_pause_s": 0.01, "stall_timeout_s": 0.3}
    return open_storage(server.url, StorageOptions.from_mapping({**options, **settings}))


@pytest.mark.parametrize("rules", [(RESET, RESET), (CLOSE,), (CHUNKED,), (STALL,)], ids=repr)
def test_broken_range_is_mended(fault_server: OpenFaultServer, rules: tuple[Rule, ...]) -> None:
    """However a transfer breaks, what arrives in the end is whole and right, and of one version."""
    server = fault_server({"x.tar": BODY}, *rules)
    storage = _open(server)
    assert bytes(storage.read("x.tar", 1000, 200_000, etag=storage.head("x.tar").etag)) == BODY[1000:200_000]
    gets = server.of("GET")
    assert len(gets) == len(rules) + 1
    assert all({"range", "if-match"} <= set(each.headers) for each in gets)


@pytest.mark.parametrize("rule", [CLOSE, CHUNKED], ids=repr)
def test_broken_object_is_mended(fault_server: OpenFaultServer, rule: Rule) -> None:
    """Reading to the end and streaming know the size, so a cut body is noticed there too."""
    server = fault_server({"x.tar": BODY}, rule)
    assert bytes(_open(server).read("x.tar")) == BODY
    server.set_rules([rule])
    assert b"".join(_open(server).stream("x.tar")) == BODY


@pytest.mark.parametrize("status", [503, 429])
def test_throttled_read_waits_longer_and_longer(fault_server: OpenFaultServer, status: int) -> None:
    """A store that asks for fewer requests is left alone for at least a second, longer each time."""
    server = fault_server({"x.tar": BODY}, Rule(status=status, retry_after="1", times=3))
    pauses: list[float] = []
    cloud = _open(server).inner  # type: ignore[attr-defined]
    storage = RetryingStorage(cloud, TransferOptions(), Clock(sleep=pauses.append))
    assert bytes(storage.read("x.tar", 0, 5)) == BODY[:5]
    assert len(pauses) == 3
    assert 1 <= pauses[0] < pauses[1] < pauses[2]
    assert sum(pauses) < 20


@pytest.mark.parametrize("rule", [ALWAYS_RESET, ALWAYS_STALL, Rule(status=500, times=None)], ids=repr)
def test_lasting_break_is_reported(fault_server: OpenFaultServer, rule: Rule) -> None:
    """A transfer that breaks every time ends with the object and the number of attempts, never with short data."""
    server = fault_server({"x.tar": BODY}, rule)
    with pytest.raises(TransientError, match=r"s3://bkt/x\.tar.*gave up after 3 attempts") as caught:
        _open(server, max_attempts=3).read("x.tar", 0, len(BODY))
    assert (caught.value.kind, len(server.requests)) == ("transfer_failed", 3)


def test_other_version_is_never_mixed_in(fault_server: OpenFaultServer) -> None:
    """An object that is replaced between two tries of one read is an error, not a mixture."""
    server = fault_server({"x.tar": BODY, "new": BODY[::-1]}, RESET, Rule(replace="new"))
    storage = _open(server)
    with pytest.raises(IntegrityError, match="changed") as caught:
        storage.read("x.tar", 0, 1000, etag=storage.head("x.tar").etag)
    assert caught.value.kind == "shard_changed"
    assert bytes(storage.read("x.tar", 0, 1000)) == BODY[::-1][:1000]


def test_server_that_ignores_conditions_is_caught(fault_server: OpenFaultServer) -> None:
    """The ETag of each answer is compared, so that If-Match need not be understood."""
    server = fault_server({"x.tar": BODY}, Rule(conditions=False))
    with pytest.raises(IntegrityError, match='expected ETag "old", found '):
        _open(server).read("x.tar", 0, 5, etag='"old"')
