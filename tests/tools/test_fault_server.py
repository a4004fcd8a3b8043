"""The fault server speaks enough of S3, and breaks what its script names and nothing else."""

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import open_storage
from tests.conftest import OpenFaultServer
from tools.fault_server import FaultServer, Rule, load_script

BODY = bytes(range(256)) * 40


def ask(
    server: FaultServer, path: str = "/bkt/a.tar", method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of one request on a connection of its own."""
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=5)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.fixture
def server(fault_server: OpenFaultServer) -> FaultServer:
    """A bucket with one object, and no fault."""
    return fault_server({"a.tar": BODY})


def test_object_is_served_whole_in_ranges_and_by_condition(server: FaultServer) -> None:
    """GET, Range, If-Match and HEAD answer as S3 does; every request is recorded."""
    status, body, headers = ask(server)
    assert (status, body) == (200, BODY)
    assert ask(server, Range="bytes=10-19", If_Match=headers["ETag"])[:2] == (206, BODY[10:20])
    assert ask(server, method="HEAD")[2]["Content-Length"] == str(len(BODY))
    assert ask(server, If_Match='"other"')[0] == 412
    assert ask(server, Range=f"bytes={len(BODY)}-")[0] == 416
    assert ask(server, "/bkt/b.tar")[0] == ask(server, "/other/a.tar")[0] == 404
    assert [each.operation for each in server.requests].count("HEAD") == 1
    assert (server.requests[1].start, server.requests[1].stop, server.requests[1].status) == (10, 20, 206)


def test_folder_is_a_bucket(fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """Files are objects under their path; nothing outside the folder is one."""
    folder = tmp_path / "bucket"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a+b.tar").write_bytes(BODY)
    (tmp_path / "secret").write_bytes(b"secret")
    server = fault_server(folder)
    assert ask(server, "/bkt/sub/a%2Bb.tar")[:2] == (200, BODY)
    assert ask(server, "/bkt/../secret")[0] == ask(server, "/bkt/%2e%2e/secret")[0] == 404


@pytest.mark.parametrize("tokens", [True, False])
def test_lists_come_in_pages(fault_server: OpenFaultServer, tokens: bool) -> None:
    """A client gets all keys page by page; without tokens it is told that more follows, and no more."""
    keys = [f"set/{number:03d}.tar" for number in range(25)]
    server = fault_server(dict.fromkeys([*keys, "other"], b"x"), page_size=10, tokens=tokens)
    _, page, _ = ask(server, "/bkt?list-type=2&prefix=set/")
    assert page.count(b"<Key>") == 10
    assert b"<IsTruncated>true</IsTruncated>" in page
    assert (b"NextContinuationToken" in page) == tokens
    _, page, _ = ask(server, "/bkt?list-type=2&prefix=set/&start-after=set/019.tar")
    assert page.count(b"<Key>") == 5
    assert b"<IsTruncated>false</IsTruncated>" in page
    assert ask(server, "/bkt?list-type=2&delimiter=/")[1].count(b"<CommonPrefixes>") == 1


def test_client_lists_by_tokens(fault_server: OpenFaultServer) -> None:
    """The library's own client goes through the pages."""
    server = fault_server({f"set/{number:03d}.tar": b"x" for number in range(25)}, page_size=10)
    options = StorageOptions(endpoint_url=server.endpoint, anonymous=True)
    assert len(list(open_storage(f"{server.url}/set", options).list())) == 25
    assert len(server.of("LIST")) == 3


def test_rules_are_met_in_order_and_used_up(fault_server: OpenFaultServer) -> None:
    """A script is consumed a request at a time; what it is not meant for passes."""
    server = fault_server({"a.tar": BODY, "b.tar": BODY}, Rule(status=503, retry_after="2"), Rule(), Rule(status=500))
    status, body, headers = ask(server, method="HEAD") and ask(server)
    assert (status, headers["Retry-After"]) == (503, "2")
    assert b"SlowDown" in body
    assert [ask(server)[0] for _ in range(3)] == [200, 500, 200]


def test_rules_choose_keys_and_ranges(fault_server: OpenFaultServer) -> None:
    """A rule can be meant for some keys and for requests that meet a range."""
    server = fault_server(
        {"a.tar": BODY, "a.idx": BODY}, Rule(key="*.tar", start=100, stop=200, status=500, times=None)
    )
    assert ask(server, "/bkt/a.idx", Range="bytes=150-160")[0] == 206
    assert ask(server, Range="bytes=0-99")[0] == ask(server, Range="bytes=200-299")[0] == 206
    assert ask(server, Range="bytes=0-100")[0] == ask(server)[0] == 500


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (Rule(part=0.4, end="reset"), ConnectionResetError),
        (Rule(part=0.6, end="close"), http.client.IncompleteRead),
        (Rule(part=0.6, end="close", length="chunked"), http.client.IncompleteRead),
        (Rule(part=0.4, end="stall"), TimeoutError),
    ],
)
def test_bodies_break(fault_server: OpenFaultServer, rule: Rule, error: type[Exception]) -> None:
    """A body ends as the rule says, after the share that it says."""
    server = fault_server({"a.tar": BODY}, rule)
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=0.3)
    connection.request("GET", "/bkt/a.tar")
    with pytest.raises(error):
        connection.getresponse().read()
    connection.close()
    assert server.requests[0].sent_bytes == int(len(BODY) * rule.part)


def test_short_bodies_that_end_well(fault_server: OpenFaultServer) -> None:
    """A body without a length can be short without a sign."""
    server = fault_server({"a.tar": BODY}, Rule(part=0.5, length="chunked"), Rule(part=0.5, length="none"))
    assert ask(server)[1] == ask(server)[1] == BODY[: len(BODY) // 2]


def test_delay_and_speed(fault_server: OpenFaultServer) -> None:
    """An answer can be late, and slow."""
    server = fault_server({"a.tar": BODY}, Rule(delay_s=0.1), Rule(bytes_per_s=len(BODY) * 5))
    began = [ask(server) and server.requests[-1].at_s for _ in range(3)]
    assert began[1] - began[0] >= 0.1
    assert began[2] - began[1] >= 0.1


def test_object_is_replaced(fault_server: OpenFaultServer) -> None:
    """From a request on, an object has other bytes and another ETag."""
    server = fault_server({"a.tar": BODY, "new": b"new"}, Rule(), Rule(replace="new"))
    etag = ask(server)[2]["ETag"]
    assert ask(server, If_Match=etag)[0] == 412
    assert ask(server)[1] == b"new"


def test_stop_ends_what_stalls(fault_server: OpenFaultServer) -> None:
    """Stopping the server frees clients that hang in it."""
    server = fault_server({"a.tar": BODY}, Rule(part=0, end="stall"))
    with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2])), timeout=5) as client:
        client.sendall(b"GET /bkt/a.tar HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        server.stop()
        while client.recv(4096):
            pass


def test_scripts_are_checked(tmp_path: Path) -> None:
    """A script is a JSON list of rules, and a misspelt rule is named."""
    script = tmp_path / "script.json"
    script.write_text('[{"times": 2, "part": 0.4, "end": "reset"}, {"status": 503, "times": null}]')
    assert load_script(script) == [Rule(times=2, part=0.4, end="reset"), Rule(status=503, times=None)]
    for text in ('{"times": 2}', '[{"tmies": 2}]', '[{"end": "explode"}]', '[{"part": 2}]'):
        script.write_text(text)
        with pytest.raises(ValueError, match=r"expected|unknown"):
            load_script(script)


def test_command_line_serves_and_prints(tmp_path: Path) -> None:
    """The command serves a folder by a script, tells its address, and prints requests as JSON."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a.tar").write_bytes(BODY)
    (tmp_path / "script.json").write_text('[{"status": 503}]')
    command = [
        sys.executable,
        "tools/fault_server.py",
        str(tmp_path / "bucket"),
        "--script",
        str(tmp_path / "script.json"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        endpoint = process.stderr.readline().rpartition("=")[2].strip()
        connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=20)
        connection.request("GET", "/bkt/a.tar")
        assert connection.getresponse().status == 503
        connection.close()
        record = json.loads(process.stdout.readline())
        assert (record["key"], record["status"]) == ("a.tar", 503)
        process.terminate()
