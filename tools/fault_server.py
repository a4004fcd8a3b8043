"""Serve a folder as an S3 bucket on the loopback interface, and break the transfers that a script names.

    python tools/fault_server.py DIR --script FILE          # prints its address, then every request as a line of JSON

What is understood: GET with Range and If-Match, HEAD, and ListObjectsV2, all with the bucket in the path. Signatures
are not checked. A script is a JSON list of rules. A request meets the first rule that is meant for it and not used up:

    [{"times": 2, "part": 0.4, "end": "reset"}]                       the first two GETs break off by a reset
    [{"status": 503, "retry_after": "1", "times": 3}, {}, {"status": 500}]
    [{"key": "*.tar", "start": 1024, "stop": 2048, "end": "stall", "part": 0.5, "times": null}]

In tests: the ``fault_server`` fixture, or ``with FaultServer(folder, [Rule(part=0.4, end="reset")]) as server``.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

Operation = Literal["GET", "HEAD", "LIST", "*"]
End = Literal["finish", "close", "reset", "stall"]

_MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
_MODIFIED_ISO = "2015-10-21T07:28:00.000Z"
_SLICE_BYTES = 64 << 10
# What S3 calls these answers.
_CODES = {
    400: "BadRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What happens to some requests. One without a fault lets them pass.

    Attributes:
        operation: Requests it is meant for: ``GET``, ``HEAD``, ``LIST`` or ``*``.
        key: Shell pattern of the keys it is meant for; of the prefix for a list.
        start: First byte it is meant for; only requests whose range meets ``[start, stop)``.
        stop: First byte behind; ``None`` for the end of the object.
        times: Requests it is used for; ``None`` for any number.
        delay_s: Seconds before the answer begins.
        status: Answer with this HTTP status instead of the object.
        retry_after: Value of a Retry-After header.
        part: Share of the body that is sent.
        end: Behind that part: ``finish`` as HTTP wants it, ``close`` the connection, ``reset`` it, or ``stall`` for
            ever.
        length: How the length of the body is told: ``exact`` by Content-Length, ``chunked``, or ``none``: by closing.
        bytes_per_s: Speed of the body; ``None`` for as fast as possible.
        replace: From this request on the object has the bytes of the object with this key.
        conditions: Whether If-Match is looked at; some servers do not.
    """

    operation: Operation = "GET"
    key: str = "*"
    start: int = 0
    stop: int | None = None
    times: int | None = 1
    delay_s: float = 0.0
    status: int | None = None
    retry_after: str | None = None
    part: float = 1.0
    end: End = "finish"
    length: Literal["exact", "chunked", "none"] = "exact"
    bytes_per_s: float | None = None
    replace: str | None = None
    conditions: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise ValueError(f"part={self.part}: expected a share of the body, 0 to 1")
        if self.operation not in ("GET", "HEAD", "LIST", "*") or self.end not in ("finish", "close", "reset", "stall"):
            raise ValueError(f"operation={self.operation!r}, end={self.end!r}: unknown")

    @classmethod
    def from_json(cls, entry: Mapping[str, object]) -> Self:
        """The rule that an entry of a script describes."""
        unknown = set(entry) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"rule {dict(entry)}: {sorted(unknown)} is unknown")
        return cls(**entry)  # type: ignore[arg-type]  # from JSON: what is wrong shows at once

    def is_meant_for(self, request: "Request") -> bool:
        """Whether operation, key and range of a request are those of this rule."""
        meets = request.start < (self.stop if self.stop is not None else sys.maxsize) and self.start < request.stop
        return self.operation in (request.operation, "*") and fnmatchcase(request.key, self.key) and meets


@dataclass(kw_only=True)
class Request:
    """One request and what became of it.

    Attributes:
        operation: ``GET``, ``HEAD`` or ``LIST``.
        key: Key of the object; the prefix for a list.
        path: Path and query as they came over the wire.
        headers: By name in lower case.
        connection: Number of the connection; one client that keeps its connection keeps the number.
        at_s: Seconds since the server began.
        start: First byte asked for.
        stop: First byte behind what was asked for.
        status: HTTP status of the answer; 0 while there is none.
        sent_bytes: Bytes of the body that were sent.
    """

    operation: Operation
    key: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    connection: int
    at_s: float
    start: int = 0
    stop: int = sys.maxsize
    status: int = 0
    sent_bytes: int = 0


class FaultServer:
    """An HTTP server in threads of this process, for one bucket.

    Args:
        source: Folder whose files are the objects, or bytes by key.
        rules: What goes wrong.
        bucket: Name of the bucket.
        page_size: Keys in one page of a list, at most.
        tokens: Whether a page that is not the last names the token for the next one; some servers do not.
        port: TCP port; 0 for any free one.
        on_request: Called with each request once it is answered.

    Attributes:
        requests: What came, in order.
        endpoint: ``http://127.0.0.1:port``.
        url: ``s3://bucket``.
    """

    def __init__(
        self,
        source: Path | Mapping[str, bytes],
        rules: Sequence[Rule] = (),
        *,
        bucket: str = "bkt",
        page_size: int = 1000,
        tokens: bool = True,
        port: int = 0,
        on_request: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self.bucket = bucket
        self.page_size = page_size
        self.tokens = tokens
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self.on_request = on_request
        self.objects = _Objects(source)
        self._lock = threading.Lock()
        self._num_connections = 0
        self._began_s = time.monotonic()
        self.set_rules(rules)
        self._http = _HttpServer(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self.url = f"s3://{bucket}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End at once, also what stalls."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Replace the script: from the next request on these rules hold, none of them used yet."""
        with self._lock:
            self._rules = [_Use(rule, rule.times) for rule in rules]

    def of(self, operation: Operation, key: str = "*") -> list[Request]:
        """The requests of one kind so far, for keys that match a shell pattern."""
        return [each for each in self.requests if each.operation == operation and fnmatchcase(each.key, key)]

    def connect(self) -> int:
        """Number of a new connection."""
        with self._lock:
            self._num_connections += 1
            return self._num_connections

    def note(self, request: Request) -> Rule:
        """Record a request; the rule that it meets."""
        request.at_s = time.monotonic() - self._began_s
        with self._lock:
            self.requests.append(request)
            for use in self._rules:
                if use.left != 0 and use.rule.is_meant_for(request):
                    use.left = None if use.left is None else use.left - 1
                    return use.rule
        return Rule()


@dataclass
class _Use:
    """A rule, and for how many requests it is still good."""

    rule: Rule
    left: int | None


class _Objects:
    """Objects of the bucket by key: files of a folder or bytes of a mapping, some of them replaced."""

    def __init__(self, source: Path | Mapping[str, bytes]) -> None:
        self._source = source
        self._replaced: dict[str, str] = {}

    def replace(self, key: str, other: str) -> None:
        """Give an object the bytes of another one."""
        self._replaced[key] = other

    def sorted_keys(self) -> list[str]:
        """All keys in the order of their UTF-8 bytes."""
        if isinstance(self._source, Path):
            root = self._source
            found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
        else:
            found = list(self._source)
        return sorted(found, key=str.encode)

    def size_and_etag(self, key: str) -> tuple[int, str] | None:
        """Length and quoted ETag of an object; ``None`` where there is none."""
        key = self._replaced.get(key, key)
        if not isinstance(self._source, Path):
            data = self._source.get(key)
            return None if data is None else (len(data), f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')
        path = self._path(key)
        if path is None:
            return None
        stat = path.stat()
        return stat.st_size, f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Bytes ``[start, stop)`` of an object that exists."""
        key = self._replaced.get(key, key)
        if not isinstance(self._source, Path):
            return self._source[key][start:stop]
        with (self._source / key).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def _path(self, key: str) -> Path | None:
        if not isinstance(self._source, Path):
            return None
        path = (self._source / key).resolve()
        return path if path.is_relative_to(self._source.resolve()) and path.is_file() else None


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    # Loaders open many connections at once.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], faults: FaultServer) -> None:
        self.faults = faults
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ValueError | OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # handed through


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two packets; the second would wait 40 ms for the client to acknowledge the first.
    disable_nagle_algorithm = True
    server: _HttpServer

    def setup(self) -> None:
        super().setup()
        self.faults = self.server.faults
        self.number = self.faults.connect()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are noted elsewhere."""

    def do_PUT(self) -> None:  # named by http.server
        self.close_connection = True  # the body is not read
        request = self._request()
        self.faults.note(request)
        self._refuse(request, Rule(status=501))

    do_POST = do_DELETE = do_PUT  # noqa: N815  the same

    def do_GET(self) -> None:  # named by http.server
        request = self._request()
        rule = self.faults.note(request)
        self.faults.stopping.wait(rule.delay_s)
        if rule.replace is not None:
            self.faults.objects.replace(request.key, rule.replace)
        try:
            if rule.status is not None:
                self._refuse(request, rule)
            elif request.operation == "LIST":
                self._list(request, rule)
            else:
                self._object(request, rule)
        finally:
            self.faults.on_request(request)

    do_HEAD = do_GET  # noqa: N815  the same

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path.removeprefix("/")).partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        listing = self.command == "GET" and not key and "list-type" in query
        request = Request(
            operation="LIST" if listing else "HEAD" if self.command == "HEAD" else "GET",
            key=query.get("prefix", [""])[0] if listing else key if bucket == self.faults.bucket else f"{bucket}/{key}",
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            connection=self.number,
            at_s=0.0,
        )
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked:
            request.start, request.stop = int(asked[1]), int(asked[2]) + 1 if asked[2] else sys.maxsize
        return request

    def _object(self, request: Request, rule: Rule) -> None:
        found = self.faults.objects.size_and_etag(request.key)
        if found is None:
            self._refuse(request, Rule(status=404))
            return
        size, etag = found
        if rule.conditions and request.headers.get("if-match", etag) not in (etag, "*"):
            self._refuse(request, Rule(status=412))
            return
        ranged = "range" in request.headers and request.operation == "GET"
        if ranged and request.start >= size:
            self._refuse(request, Rule(status=416))
            return
        stop = min(request.stop, size)
        headers = {"ETag": etag, "Last-Modified": _MODIFIED, "Accept-Ranges": "bytes"}
        if ranged:
            headers["Content-Range"] = f"bytes {request.start}-{stop - 1}/{size}"
        self._start(request, HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK, headers, rule)
        body = b"" if request.operation == "HEAD" else self.faults.objects.read(request.key, request.start, stop)
        self._finish(request, body, rule, stop - request.start)

    def _list(self, request: Request, rule: Rule) -> None:
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()
        }
        page = _list_page(self.faults, query)
        self._start(request, HTTPStatus.OK, {"Content-Type": "application/xml"}, rule)
        self._finish(request, page, rule, len(page))

    def _refuse(self, request: Request, rule: Rule) -> None:
        status = rule.status or 500
        body = f"<Error><Code>{_CODES.get(status, 'Error')}</Code><Message>as told</Message></Error>".encode()
        self._start(request, status, {"Content-Type": "application/xml"}, rule)
        self._finish(request, b"" if request.operation == "HEAD" else body, rule, len(body))

    def _start(self, request: Request, status: int, headers: Mapping[str, str], rule: Rule) -> None:
        request.status = int(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if rule.retry_after is not None:
            self.send_header("Retry-After", rule.retry_after)

    def _finish(self, request: Request, body: bytes, rule: Rule, length: int) -> None:
        """The length, the body as far as the rule lets it, and the end."""
        if rule.length == "exact" or request.operation == "HEAD":
            self.send_header("Content-Length", str(length))
        elif rule.length == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        sent = body[: int(len(body) * rule.part)]
        for piece in self._paced(sent, rule.bytes_per_s):
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if rule.length == "chunked" else piece
            self.wfile.write(framed)
            request.sent_bytes += len(piece)
        if rule.length == "chunked" and rule.end == "finish" and request.operation != "HEAD":
            self.wfile.write(b"0\r\n\r\n")
        self._end(rule, is_whole=rule.length == "chunked" or (rule.length == "exact" and len(sent) == len(body)))

    def _paced(self, body: bytes, bytes_per_s: float | None) -> Iterator[bytes]:
        step = _SLICE_BYTES if bytes_per_s is None else max(1, min(_SLICE_BYTES, int(bytes_per_s / 10)))
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            yield piece
            if bytes_per_s is not None and self.faults.stopping.wait(len(piece) / bytes_per_s):
                return

    def _end(self, rule: Rule, *, is_whole: bool) -> None:
        if rule.end == "stall":
            self.faults.stopping.wait()
        elif rule.end == "reset":
            # Closing with data to be lingered over for 0 s is what makes the kernel send a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        if rule.end != "finish" or not is_whole:
            self.close_connection = True


def _list_page(faults: FaultServer, query: Mapping[str, str]) -> bytes:
    """One page of ListObjectsV2."""
    prefix, limit = query.get("prefix", ""), min(int(query.get("max-keys", 1000)), faults.page_size)
    after = query.get("continuation-token") or query.get("start-after", "")
    rows = _rows(faults.objects.sorted_keys(), prefix, query.get("delimiter", ""), after)
    page = list(itertools.islice(rows, limit + 1))
    more, page = len(page) > limit, page[:limit]
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more and faults.tokens else ""
    shown = quote if query.get("encoding-type") == "url" else escape
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{faults.bucket}</Name><Prefix>{shown(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
        f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        f"{''.join(_row(faults, name, shown) for name in page)}</ListBucketResult>"
    ).encode()


def _rows(keys: Sequence[str], prefix: str, delimiter: str, after: str) -> Iterator[str]:
    """Keys behind ``after`` that start with a prefix; those with the delimiter further on fall together to a folder."""
    last = ""
    for key in keys:
        if key.startswith(prefix) and key.encode() > after.encode():
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key[len(prefix) :], "", "")
            name = prefix + head + found
            if name != last and name != after:
                yield name
            last = name


def _row(faults: FaultServer, name: str, shown: Callable[[str], str]) -> str:
    found = faults.objects.size_and_etag(name)
    if found is None:
        return f"<CommonPrefixes><Prefix>{shown(name)}</Prefix></CommonPrefixes>"
    return (
        f"<Contents><Key>{shown(name)}</Key><LastModified>{_MODIFIED_ISO}</LastModified><ETag>{escape(found[1])}</ETag>"
        f"<Size>{found[0]}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def load_script(path: Path) -> list[Rule]:
    """The rules of a script file.

    Raises:
        ValueError: It is no JSON list of rules.
    """
    entries = json.loads(path.read_text("utf-8"))
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a JSON list of rules")
    return [Rule.from_json(entry) for entry in entries]


def _print_request(request: Request) -> None:
    print(json.dumps(asdict(request)), flush=True)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a folder as an S3 bucket that breaks transfers by script.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--script", type=Path, help="JSON list of rules")
    parser.add_argument("--bucket", default="bkt")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--page-size", type=int, default=1000)
    parser.add_argument("--no-tokens", action="store_true", help="name no token for the next page of a list")
    given = parser.parse_args()
    server = FaultServer(
        given.folder,
        load_script(given.script) if given.script else (),
        bucket=given.bucket,
        page_size=given.page_size,
        tokens=not given.no_tokens,
        port=given.port,
        on_request=_print_request,
    )
    with server:
        print(f"{server.url} at {server.endpoint}: AWS_ENDPOINT_URL={server.endpoint}", file=sys.stderr, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
