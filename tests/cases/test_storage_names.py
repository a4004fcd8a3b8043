"""URLs and patterns that broke other clients: each names the object of its case, on the wire too."""

import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import janus_shards as js
from janus_shards.errors import ConfigError
from janus_shards.operations.index import index_shards
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import expand_pattern, expand_urls, open_storage, split_url
from tests.cases import expectations

CASES = [case for case in expectations.cases("S") if case.kind == "function"]
URLS = [pytest.param(entry, id=entry["url"]) for case in CASES for entry in case.expect["urls"]]
PATTERNS = [pytest.param(entry, id=entry["pattern"]) for case in CASES for entry in case.expect["patterns"]]


class Recorder:
    """A server that answers every GET with ``body`` and remembers the paths asked for, byte for byte."""

    body = b"0123456789"

    def __init__(self) -> None:
        self.paths: list[str] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.paths.append(self.path)
                self.send_response(206 if self.headers["Range"] else 200)
                self.send_header("Content-Length", str(len(recorder.body)))
                self.send_header("Content-Range", f"bytes 0-{len(recorder.body) - 1}/{len(recorder.body)}")
                self.send_header("ETag", '"e"')
                self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(recorder.body)

            do_HEAD = do_GET  # noqa: N815  the name that the base class looks for

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """A server for the tests of this module."""
    server = Recorder()
    yield server
    server.close()


@pytest.mark.parametrize("entry", URLS)
def test_url_is_bucket_and_key_byte_for_byte(entry: Mapping[str, str]) -> None:
    """Nothing in an s3 URL is decoded, dropped or normalised."""
    assert expectations.bucket_and_key(entry["url"]) == (entry["bucket"], entry["key"])


@pytest.mark.parametrize("entry", URLS)
def test_key_is_encoded_once_on_the_wire(entry: Mapping[str, str], recorder: Recorder) -> None:
    """What is asked of the server is the path of the case, below the bucket."""
    recorder.paths.clear()
    root, name = split_url(entry["url"])
    options = {"endpoint_url": recorder.endpoint, "region": "us-east-1", "key": "k", "secret": "s", "max_attempts": 1}
    with_options = StorageOptions.from_mapping(options)
    assert bytes(open_storage(root, with_options).read(name, 0, 10)) == Recorder.body
    assert set(recorder.paths) == {f"/{entry['bucket']}{entry['path_on_wire']}"}


@pytest.mark.parametrize("entry", PATTERNS)
def test_pattern_stands_for_the_names_of_its_case(entry: Mapping[str, Any]) -> None:
    """Names, their number and order are those of the case, or its error, within 2 s of CPU time and 200 MB."""
    tracemalloc.start()
    # CPU time: the machine may be busy with other tests.
    started = time.process_time()
    try:
        answer: ConfigError | list[str] = expand_pattern(entry["pattern"])
    except ConfigError as exc:
        answer = exc
    finally:
        seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (seconds < 2, peak < 200e6) == (True, True)
    if isinstance(answer, ConfigError):
        assert answer.kind in (entry.get("error"), entry.get("or_error"))
        assert entry["pattern"] in str(answer)
    else:
        assert len(answer) == entry["count"]
        assert answer == entry.get("result", answer)
        assert (answer[0], answer[-1]) == (entry.get("first", answer[0]), entry.get("last", answer[-1]))


@pytest.mark.parametrize("pattern", ["*.tar", "none-*/x.tar", "", "p-{000..002}.tar", "{a,b}/p.tar"])
def test_what_matches_nothing_is_an_error_at_the_start(pattern: str, tmp_path: Path) -> None:
    """A pattern, glob or folder without shards is ``empty_dataset``, and no object is ever called ``*``."""
    url = f"{tmp_path}/{pattern}"
    with pytest.raises(ConfigError) as caught:
        index_shards(url)
    assert caught.value.kind == "empty_dataset"
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(js.JanusShardsError):
        js.open_dataset(url)


def test_a_glob_without_a_list_is_refused() -> None:
    """Where nothing can be listed, a star is a bad pattern rather than a name."""
    with pytest.raises(ConfigError) as caught:
        expand_urls("https://example.invalid/*.tar")
    assert caught.value.kind == "bad_pattern"
