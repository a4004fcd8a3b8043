import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from janus_shards.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    StorageError,
    TransientError,
)
from janus_shards.storage.base import Credentials, Storage, StorageOptions, TransferOptions
from janus_shards.storage.bridge import open_bridge
from janus_shards.storage.urls import expand_urls, open_storage, split_url
from tests.conftest import S3Server
from tests.contracts.storage import StorageContract


class TestCloudStorage(StorageContract):
    @pytest.fixture
    def storage(self, s3_server: S3Server, tmp_path: Path) -> Storage:
        """A prefix of an empty bucket on moto's server."""
        return open_storage(f"{s3_server.create_bucket()}/my set+", s3_server.options)


class Recorder(BaseHTTPRequestHandler):
    """Answers every GET and HEAD with ten bytes, and notes what was asked."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str, dict[str, str]]]] = []
    statuses: ClassVar[list[int]] = []  # to answer first

    def do_GET(self) -> None:  # noqa: D102 - named by http.server
        self.seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        status = self.statuses.pop(0) if self.statuses else 206 if self.headers["Range"] else 200
        body = b"0123456789" if status < 300 else b"<Error><Code>SlowDown</Code></Error>"
        if status == 206:
            start, stop = self.headers["Range"].removeprefix("bytes=").split("-")
            body = body[int(start) : int(stop) + 1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/10")
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - named by http.server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server that notes requests in ``Recorder.seen``."""
    Recorder.seen, Recorder.statuses = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), getattr(request, "param", Recorder))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def _options(endpoint: str, **settings: object) -> StorageOptions:
    return StorageOptions.from_mapping({"endpoint_url": endpoint, "region": "us-east-1", **settings})


KEYS = {"access_key_id": "test-key", "secret_access_key": "test-secret"}
# From shared/cases/S01: URLs and the path that must go over the wire.
ON_THE_WIRE = {
    "s3://bkt/plain/part-000000.tar": "/bkt/plain/part-000000.tar",
    "s3://bkt/with space/a+b.tar": "/bkt/with%20space/a%2Bb.tar",
    "s3://bkt/50%25 off/x%20y.tar": "/bkt/50%2525%20off/x%2520y.tar",
    "s3://bkt/scan/plate#7_cam2.tar": "/bkt/scan/plate%237_cam2.tar",
    "s3://bkt/what?/v=1&w=2.tar": "/bkt/what%3F/v%3D1%26w%3D2.tar",
    "s3://bkt/semi;colon,comma.tar": "/bkt/semi%3Bcolon%2Ccomma.tar",
    "s3://bkt/naïve/图-01.tar": "/bkt/na%C3%AFve/%E5%9B%BE-01.tar",
    "s3://bkt//double//slash.tar": "/bkt//double//slash.tar",
    "s3://bkt/a/../b/./c.tar": "/bkt/a/../b/./c.tar",
    "s3://my.dotted.bucket/k.tar": "/my.dotted.bucket/k.tar",
    "s3://bkt/tilde~and_(parens)'.tar": "/bkt/tilde~and_%28parens%29%27.tar",
}


@pytest.mark.parametrize("url", ON_THE_WIRE)
def test_key_goes_over_the_wire_byte_for_byte(recorder: str, url: str) -> None:
    """A key is percent-encoded once and neither cut, decoded nor normalised."""
    root, name = split_url(url)
    storage = open_storage(root, _options(recorder, **KEYS))
    assert bytes(storage.read(name, 2, 5)) == b"234"
    assert {path for _, path, _ in Recorder.seen} == {ON_THE_WIRE[url]}
    storage.close()


def test_read_is_one_conditional_ranged_request(recorder: str) -> None:
    """A read asks for its range only, of the version seen at open, and signs it."""
    open_storage("s3://bkt", _options(recorder, **KEYS)).read("x.tar", 2, 5, etag='"e"')
    [(method, _, headers)] = Recorder.seen
    assert (method, headers["range"], headers["if-match"]) == ("GET", "bytes=2-4", '"e"')
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=test-key/")


def test_anonymous_requests_are_unsigned_and_payers_say_so(recorder: str) -> None:
    """Anonymous reads carry no signature; requester-pays reads carry the header on GET and HEAD."""
    open_storage("s3://bkt", _options(recorder, anonymous=True)).read("x.tar", 2, 5)
    assert "authorization" not in Recorder.seen[0][2]
    payer = open_storage("s3://bkt", _options(recorder, requester_pays=True, **KEYS))
    payer.read("x.tar", 2, 5)
    payer.head("x.tar")
    assert [headers["x-amz-request-payer"] for _, _, headers in Recorder.seen[1:]] == ["requester"] * 2


def test_throttled_reads_wait_and_go_on(recorder: str) -> None:
    """A store that asks for fewer requests gets them later; the data arrives."""
    Recorder.statuses = [500, 500]
    storage = open_storage("s3://bkt", _options(recorder, first_pause_s=0.01, **KEYS))
    assert bytes(storage.read("x.tar", 0, 10)) == b"0123456789"
    assert len(Recorder.seen) == 3


def test_lasting_failure_says_how_often_it_was_tried(recorder: str) -> None:
    """After the last try the error names object, cause and number of attempts; it is no longer retried."""
    Recorder.statuses = [500] * 9
    storage = open_storage("s3://bkt/a", _options(recorder, first_pause_s=0.01, max_attempts=3, **KEYS))
    with pytest.raises(TransientError, match=r"s3://bkt/a/x\.tar: the store failed \(HTTP 500.*3 attempts") as caught:
        storage.read("x.tar", 0, 10)
    assert (caught.value.kind, caught.value.shard, len(Recorder.seen)) == ("transfer_failed", "x.tar", 3)


@pytest.mark.parametrize(("status", "error"), [(403, AccessDeniedError), (404, ObjectNotFoundError)])
def test_refusals_are_not_retried(recorder: str, status: int, error: type[Exception]) -> None:
    """Asking again does not help where access is denied or nothing is there."""
    Recorder.statuses = [status] * 9
    with pytest.raises(error, match=r"x\.tar"):
        open_storage("s3://bkt", _options(recorder, **KEYS)).read("x.tar", 0, 10)
    assert len(Recorder.seen) == 1


def test_web_server_is_read_by_ranges(recorder: str) -> None:
    """Objects of a web server are read like those of a store; the query string goes along, and is in no message."""
    root, name = split_url(f"{recorder}/a%20b/x%2By.tar?X-Amz-Signature=secret")
    storage = open_storage(root, StorageOptions(transfer=TransferOptions(max_attempts=1)))
    assert bytes(storage.read(name, 2, 5)) == b"234"
    assert Recorder.seen[0][1] == "/a%20b/x+y.tar?X-Amz-Signature=secret"
    Recorder.statuses = [500]
    with pytest.raises(TransientError) as caught:
        storage.read(name, 2, 5)
    causes = [caught.value, caught.value.__cause__, caught.value.__cause__ and caught.value.__cause__.__cause__]
    assert "secret" not in " ".join(map(str, causes)) + storage.url
    with pytest.raises(StorageError, match="cannot be listed"):
        list(storage.list())


def test_web_server_is_read_through_fsspec_alike(recorder: str) -> None:
    """What a forked child reads from a web server is asked for with the same path and query."""
    assert open_bridge(f"{recorder}/a%20b?sig=s", StorageOptions()).read("x+%.tar", 2, 5) == b"234"
    assert Recorder.seen[0][1] in ("/a%20b/x+%25.tar?sig=s", "/a%20b/x%2B%25.tar?sig=s")


def test_no_server_is_a_clear_error() -> None:
    """An address where nobody answers is named as such."""
    storage = open_storage("s3://bkt", _options("http://127.0.0.1:9", max_attempts=1, **KEYS))
    with pytest.raises(TransientError, match="no connection"):
        storage.head("x.tar")


def test_missing_bucket_is_named(s3_server: S3Server) -> None:
    """A bucket that is not there is told from an object that is not there."""
    storage = open_storage("s3://no-such-bucket/a", s3_server.options)
    for access in (lambda: storage.read("x.tar", 0, 5), lambda: list(storage.list()), lambda: storage.put("x", b"")):
        with pytest.raises(ObjectNotFoundError, match="bucket 'no-such-bucket' does not exist"):
            access()


def test_no_credentials_anywhere_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys the error names the ways to give them, --anonymous among them."""
    storage = open_storage("s3://bkt", _options("http://127.0.0.1:9"))
    with pytest.raises(AccessDeniedError, match="--anonymous") as caught:
        storage.read("x.tar")
    assert caught.value.kind == "no_credentials"


def test_unknown_profile_is_named() -> None:
    """A profile that no file defines is the user's mistake, not an empty set of keys."""
    with pytest.raises(ConfigError, match="nobody"):
        open_storage("s3://bkt", _options("http://127.0.0.1:9", profile="nobody")).head("x")


def test_profile_gives_keys_and_region(recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of the AWS files is used through boto3's chain."""
    (tmp_path / "config").write_text(
        "[profile team]\naws_access_key_id = file-key\naws_secret_access_key = s\nregion = eu-west-3\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    open_storage("s3://bkt", StorageOptions(endpoint_url=recorder, profile="team")).read("x.tar", 0, 5)
    authorization = Recorder.seen[0][2]["authorization"]
    assert "Credential=file-key/" in authorization
    assert "/eu-west-3/s3/" in authorization


def test_environment_gives_endpoint_and_keys(recorder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual AWS variables work without any option; keys given in the program replace all of theirs."""
    for name, value in {
        "ENDPOINT_URL": recorder,
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
        "SESSION_TOKEN": "t",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    open_storage("s3://bkt").read("x.tar", 0, 5)
    open_storage("s3://bkt", StorageOptions(credentials=Credentials("mine", "s"))).read("x.tar", 0, 5)
    first, second = (headers for _, _, headers in Recorder.seen)
    assert "Credential=k/" in first["authorization"]
    assert first["x-amz-security-token"] == "t"
    assert "Credential=mine/" in second["authorization"]
    assert "x-amz-security-token" not in second


def test_listing_goes_on_over_pages(s3_server: S3Server) -> None:
    """More objects than one page holds are listed, in order; other prefixes and folder marks are not."""
    bucket = s3_server.create_bucket()
    names = [f"part-{number:06d}.tar" for number in range(2501)]
    s3_server.fill(bucket, [f"set/{name}" for name in ("", "_SUCCESS", "sub/part-0.tar", *names)])
    storage = open_storage(f"{bucket}/set", s3_server.options)
    assert [meta.name for meta in storage.list("part-")] == names
    assert [meta.name for meta in storage.list("part-0020")] == names[2000:2100]
    assert expand_urls(f"{bucket}/set/part-*00.tar", s3_server.options)[-1] == f"{bucket}/set/part-002500.tar"


class NoTokens(Recorder):
    """Lists 2,000 keys a thousand at a time, says that more follow, but not how to ask for them."""

    def do_GET(self) -> None:
        """One page behind ``start-after``."""
        asked = parse_qs(urlsplit(self.path).query)
        self.seen.append((self.command, self.path, {}))
        keys = [
            key for key in (f"set/{number:04d}" for number in range(2000)) if key > asked.get("start-after", [""])[0]
        ]
        page = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2015-10-21T07:28:00Z</LastModified></Contents>"
            for key in keys[:1000]
        )
        truncated = str(len(keys) > 1000).lower()
        body = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{page}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("recorder", [NoTokens], indirect=True)
def test_listing_goes_on_without_a_token(recorder: str) -> None:
    """A server that sends no token for the next page does not make the list end at 1,000."""
    names = [meta.name for meta in open_storage("s3://bkt/set", _options(recorder, **KEYS)).list()]
    assert names == [f"{number:04d}" for number in range(2000)]
    assert len(Recorder.seen) == 3


def test_listing_survives_keys_that_obstore_cannot_name(s3_server: S3Server) -> None:
    """A key with an empty folder name among the others neither hides them nor is lost."""
    url = s3_server.create_bucket()
    storage = open_storage(url, s3_server.options)
    for name in ("a.tar", "b//c.tar", "d.tar"):
        storage.put(name, name.encode())
    assert [meta.name for meta in storage.list()] == ["a.tar", "b//c.tar", "d.tar"]
    assert bytes(storage.read("b//c.tar", 0, 4)) == b"b//c"


def test_unfinished_uploads_leave_nothing(s3_server: S3Server) -> None:
    """An aborted upload is gone from the server too; one of a killed writer is aborted on request."""
    bucket = s3_server.create_bucket()
    storage = open_storage(f"{bucket}/set", s3_server.options)
    with storage.open_upload("train-0.tar") as upload:
        upload.write(b"x" * (9 * 2**20))
    assert s3_server.unfinished_uploads(bucket) == []
    left = [storage.open_upload(name) for name in ("train-1.tar", "val-0.tar")]
    for upload in left:
        upload.write(b"x" * (9 * 2**20))
    assert storage.stale_uploads("") == ["train-1.tar", "val-0.tar"]
    assert storage.abort_stale_uploads("train-") == 1
    assert s3_server.unfinished_uploads(bucket) == ["set/val-0.tar"]


def test_keys_do_not_travel_but_options_do(recorder: str) -> None:
    """A pickled copy has everything but the keys, and says so when it finds none."""
    storage = open_storage("s3://bkt", _options(recorder, **KEYS))
    storage.read("x.tar", 0, 5)
    copy = pickle.loads(pickle.dumps(storage))
    with pytest.raises(AccessDeniedError, match="do not travel") as caught:
        copy.read("x.tar", 0, 5)
    assert caught.value.kind == "no_credentials"


WITH_KEYS = """
import multiprocessing, sys
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import open_storage

def read(storage, answers):
    answers.put(bytes(storage.read("x.tar", 0, 5)))

if __name__ == "__main__":
    settings = {"endpoint_url": sys.argv[1], "access_key_id": "test-key", "secret_access_key": "test-secret"}
    storage = open_storage("s3://bkt", StorageOptions.from_mapping(settings))
    context = multiprocessing.get_context(sys.argv[2])
    answers = context.Queue()
    child = context.Process(target=read, args=(storage, answers))
    child.start()
    print(answers.get(timeout=20), flush=True)
    child.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_keys_reach_a_child_that_is_started(recorder: str, tmp_path: Path, method: str) -> None:
    """A process that multiprocessing starts signs with the keys its parent was given in the program."""
    (tmp_path / "script.py").write_text(WITH_KEYS)
    path = os.pathsep.join(filter(None, sys.path))
    answer = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), recorder, method],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert answer.stdout == "b'01234'\n", answer.stderr
    assert "Credential=test-key/" in Recorder.seen[0][2]["authorization"]


IN_A_CHILD = """
import multiprocessing, sys
from janus_shards.storage.urls import open_storage

def read(storage, answers):
    answers.put(bytes(storage.read("x.tar", 0, 5, etag=storage.head("x.tar").etag)))

if __name__ == "__main__":
    storage = open_storage(sys.argv[1])
    storage.put("x.tar", b"hello world")
    context = multiprocessing.get_context(sys.argv[2])
    answers = context.Queue()
    child = context.Process(target=read, args=(storage, answers))
    child.start()
    print(answers.get(timeout=20), bytes(storage.read("x.tar", 6, 11)), flush=True)
    child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_read_on(s3_server: S3Server, tmp_path: Path, method: str) -> None:
    """A storage that was used works in a child of every start method, and the parent reads on."""
    (tmp_path / "script.py").write_text(IN_A_CHILD)
    answer = _run([str(tmp_path / "script.py"), s3_server.create_bucket(), method], s3_server)
    assert answer.stdout == "b'hello' b'world'\n", answer.stderr


def _run(arguments: list[str], server: S3Server) -> "subprocess.CompletedProcess[str]":
    # The child finds the package as this process does, installed or not.
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, **server.env, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_forked_child_without_fsspec_gets_a_clear_error(s3_server: S3Server) -> None:
    """Where nothing can read in a forked child, the error names the start methods that work, at once."""
    bucket = s3_server.create_bucket()
    script = """
import os, sys
from janus_shards.storage.base import StorageOptions, TransferOptions
from janus_shards.storage.urls import open_storage
storage = open_storage(sys.argv[1])
storage.put("x.tar", b"x")
sys.modules["fsspec"] = None
pid = os.fork()
if pid == 0:
    try:
        storage.read("x.tar")
    except ValueError as exc:
        print(exc, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    answer = _run(["-c", script, bucket], s3_server)
    assert "spawn or forkserver" in answer.stdout, answer.stderr


def test_import_loads_no_client() -> None:
    """Opening URLs needs neither obstore nor fsspec until a store is used."""
    script = (
        "import json, sys; from janus_shards.storage.urls import open_storage\n"
        "import janus_shards.storage.cloud, janus_shards.storage.bridge; open_storage('s3://bkt/x')\n"
        "print(json.dumps([name for name in ('obstore', 'fsspec', 'boto3') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == []
