"""Reads over connections that break, each in its own way; from shared/cases/S02."""

import re
import socket
import threading
from collections.abc import Iterator

import pytest

from janus_shards.errors import IntegrityError, TransientError
from janus_shards.storage.base import Storage, StorageOptions, TransferOptions
from janus_shards.storage.retry import Clock, RetryingStorage
from janus_shards.storage.urls import open_storage

BODY = bytes(range(256)) * 800
RESET = b"\1\0\0\0\0\0\0\0"  # struct linger: on, 0 s


class BreakingServer:
    """An HTTP server that serves ``BODY`` and breaks its first GETs as it is told.

    Args:
        fault: ``reset``, ``close``, ``chunked``, ``stall`` or ``slow_down``.
        times: GETs to break.
    """

    def __init__(self, fault: str, times: int) -> None:
        self.fault, self.times, self.gets = fault, times, 0
        self._done = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """End the server and what hangs in it."""
        self._done.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._done.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while request := b"".join(iter(lines.readline, b"\r\n")):
                found = re.search(rb"(?i)^range: bytes=(\d+)-(\d+)", request, re.MULTILINE)
                start, stop = (int(found[1]), int(found[2]) + 1) if found else (0, len(BODY))
                self.gets += request.startswith(b"GET")
                if not self._answer(connection, request.startswith(b"HEAD"), start, BODY[start:stop]):
                    return

    def _answer(self, connection: socket.socket, head: bool, start: int, body: bytes) -> bool:
        fault = self.fault if not head and self.gets <= self.times else ""
        if fault == "slow_down":
            connection.sendall(b"HTTP/1.1 503 SlowDown\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            return True
        lines = ["HTTP/1.1 200 OK" if head else "HTTP/1.1 206 Partial Content", 'ETag: "e"']
        lines += ["Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"]
        lines += [] if head else [f"Content-Range: bytes {start}-{start + len(body) - 1}/{len(BODY)}"]
        lines += ["Transfer-Encoding: chunked"] if fault == "chunked" else [f"Content-Length: {len(body)}"]
        part = body[: len(body) * 2 // 5] if fault else body
        if fault == "chunked":
            part = b"%x\r\n%b\r\n0\r\n\r\n" % (len(part), part)
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + (b"" if head else part))
        if fault == "stall":
            self._done.wait()
        if fault == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return fault in ("", "chunked")


def _open(server: BreakingServer, **settings: object) -> Storage:
    options = {"endpoint_url": server.url, "anonymous": True, "first_pause_s": 0.01, "stall_timeout_s": 0.3, **settings}
    return open_storage("s3://bkt", StorageOptions.from_mapping(options))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[BreakingServer]:
    """A server with the fault and number of times that the test names."""
    server = BreakingServer(*request.param)
    yield server
    server.stop()


@pytest.mark.parametrize("server", [("reset", 2), ("close", 1), ("chunked", 1), ("stall", 1)], indirect=True)
def test_broken_range_is_mended(server: BreakingServer) -> None:
    """However a transfer breaks, what arrives in the end is whole and right."""
    assert bytes(_open(server).read("x.tar", 1000, 200_000, etag='"e"')) == BODY[1000:200_000]
    assert server.gets == server.times + 1


@pytest.mark.parametrize("server", [("close", 1)], indirect=True)
def test_broken_object_is_mended(server: BreakingServer) -> None:
    """Reading to the end and streaming know the size, so a cut body is noticed there too."""
    assert bytes(_open(server).read("x.tar")) == BODY
    server.gets = 0
    assert b"".join(_open(server).stream("x.tar")) == BODY


@pytest.mark.parametrize("server", [("slow_down", 3)], indirect=True)
def test_throttled_read_waits_as_asked(server: BreakingServer) -> None:
    """A store that answers 503 SlowDown is left alone for at least the second it asks for, longer each time."""
    pauses: list[float] = []
    cloud = _open(server).inner  # type: ignore[attr-defined]
    storage = RetryingStorage(cloud, TransferOptions(), Clock(sleep=pauses.append))
    assert bytes(storage.read("x.tar", 0, 5)) == BODY[:5]
    assert len(pauses) == 3
    assert 1 <= pauses[0] < pauses[1] < pauses[2]


@pytest.mark.parametrize("server", [("reset", 99), ("stall", 99)], indirect=True)
def test_lasting_break_is_reported(server: BreakingServer) -> None:
    """A transfer that breaks every time ends with the object and the number of attempts, never with short data."""
    with pytest.raises(TransientError, match=r"s3://bkt/x\.tar.*gave up after 3 attempts") as caught:
        _open(server, max_attempts=3).read("x.tar", 0, len(BODY))
    assert (caught.value.kind, server.gets) == ("transfer_failed", 3)


@pytest.mark.parametrize("server", [("", 0)], indirect=True)
def test_other_version_is_never_mixed_in(server: BreakingServer) -> None:
    """A server that ignores If-Match is caught by the ETag of its answer."""
    with pytest.raises(IntegrityError, match='expected ETag "old", found "e"'):
        _open(server).read("x.tar", 0, 5, etag='"old"')
