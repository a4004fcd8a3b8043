"""Listing and access (S): nothing is left out of a list, and it is clear who asks and who pays."""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest

import janus_shards as js
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import expand_urls
from tests.cases.expectations import Case, cases
from tests.cases.scenarios import dataset_digests, expected_digests, indexed
from tests.conftest import OpenFaultServer
from tools.fault_server import FaultServer

KEYS = {"access_key_id": "test-key", "secret_access_key": "test-secret"}
LISTINGS = [case for case in cases("S") if "listing" in case.expect]
# Any small set will do for who asks and who pays.
SMALL = cases("L01")[0]


def bucket_keys(case: Case, scratch: Path) -> list[str]:
    """Keys of the bucket that a case describes."""
    description = case.expect["bucket_keys"]
    found: list[str] = msgpack.unpackb(case.file(description["path"], scratch).read_bytes())["keys"]
    assert len(found) == description["count"]
    return found


def options(server: FaultServer, **more: object) -> StorageOptions:
    """Options that reach the server."""
    return StorageOptions.from_mapping({"endpoint_url": server.endpoint, **more})


def assert_complete(listing: Mapping[str, Any], found: list[str]) -> None:
    """The shards of the pattern and nothing else, in name order."""
    bucket = re.match(r"s3://[^/]+", listing["pattern"])
    assert bucket is not None
    assert len(found) == listing["n_shards"]
    assert (found[0], found[-1]) == (f"{bucket[0]}/{listing['first']}", f"{bucket[0]}/{listing['last']}")
    assert found == sorted(found)


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("case", LISTINGS, ids=lambda case: str(case.id))
def test_pattern_finds_every_shard(case: Case, tokens: bool, fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """A pattern over many pages finds all shards with a request a page, also where pages name no token."""
    listing = case.expect["listing"]
    contents = dict.fromkeys(bucket_keys(case, tmp_path), b"")
    server = fault_server(contents, page_size=listing["page_size"], tokens=tokens)
    assert_complete(listing, expand_urls(listing["pattern"], options(server, anonymous=True)))
    assert len(server.of("LIST")) == listing["pages"]


@pytest.mark.parametrize("page_size", [100, 500])
@pytest.mark.parametrize("case", LISTINGS, ids=lambda case: str(case.id))
def test_small_pages_without_tokens_are_followed(
    case: Case, page_size: int, fault_server: OpenFaultServer, tmp_path: Path
) -> None:
    """Pages of another size are gone through as well."""
    listing = case.expect["listing"]
    server = fault_server(dict.fromkeys(bucket_keys(case, tmp_path), b""), page_size=page_size, tokens=False)
    assert_complete(listing, expand_urls(listing["pattern"], options(server, anonymous=True)))


@pytest.mark.parametrize("case", LISTINGS, ids=lambda case: str(case.id))
def test_list_that_cannot_go_on_is_an_error(case: Case, fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """Where the client that lists cannot go on without a token, there is no short list."""
    contents = dict.fromkeys(bucket_keys(case, tmp_path), b"")
    server = fault_server(contents, page_size=case.expect["listing"]["page_size"], tokens=False)
    with pytest.raises(js.StorageError, match="more objects follow") as caught:
        expand_urls(case.expect["listing"]["pattern"], options(server, requester_pays=True, **KEYS))
    assert caught.value.kind == "incomplete_listing"


def test_anonymous_requests_are_unsigned(fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """A public bucket is read and listed without keys and without a signature."""
    server = fault_server(indexed(SMALL, tmp_path / "bucket"))
    dataset = js.open_dataset(server.url, storage_options=options(server, anonymous=True))
    assert dataset_digests(dataset) == expected_digests(SMALL)
    assert len(expand_urls(f"{server.url}/*.tar", options(server, anonymous=True))) == len(SMALL.expect["inputs"])
    assert {each.operation for each in server.requests} == {"GET", "HEAD", "LIST"}
    assert not [each for each in server.requests if "authorization" in each.headers]


def test_missing_credentials_are_said_at_once(fault_server: OpenFaultServer) -> None:
    """Without keys anywhere the error names the option for public buckets, and nobody waits for it."""
    server = fault_server({})
    began = time.monotonic()
    for ask in (
        lambda: js.open_dataset(server.url, storage_options=options(server)),
        lambda: expand_urls(f"{server.url}/*.tar", options(server)),
    ):
        with pytest.raises(js.AccessDeniedError, match="anonymous") as caught:
            ask()
        assert caught.value.kind == "no_credentials"
    assert time.monotonic() - began < 5


def test_payer_says_so_on_every_request(fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """Reading, asking for the size, and listing all accept the cost, under the signature."""
    server = fault_server(indexed(SMALL, tmp_path / "bucket"))
    paying = options(server, requester_pays=True, **KEYS)
    assert len(js.open_dataset(server.url, storage_options=paying)) == len(expected_digests(SMALL))
    assert len(expand_urls(f"{server.url}/*.tar", paying)) == len(SMALL.expect["inputs"])
    assert {each.operation for each in server.requests} == {"GET", "HEAD", "LIST"}
    for each in server.requests:
        assert each.headers["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in each.headers["authorization"]


@pytest.mark.parametrize("bucket", ["bkt", "my.dotted.bucket"])
def test_own_endpoint_gets_bucket_and_key_in_the_path(
    bucket: str, fault_server: OpenFaultServer, tmp_path: Path
) -> None:
    """An endpoint with a port is asked for ``/bucket/key``, whatever the bucket is called."""
    server = fault_server(indexed(SMALL, tmp_path / "bucket"), bucket=bucket)
    found = expand_urls(f"s3://{bucket}/*.tar", options(server, **KEYS))
    dataset = js.open_dataset(f"s3://{bucket}", storage_options=options(server, **KEYS))
    assert dataset_digests(dataset).keys() == expected_digests(SMALL).keys()
    assert found == [
        f"s3://{bucket}/{name}" for name in sorted(Path(each["path"]).name for each in SMALL.expect["inputs"])
    ]
    host = server.endpoint.removeprefix("http://")
    assert {each.headers["host"] for each in server.requests} == {host}
    assert all(re.match(rf"/{re.escape(bucket)}(/|\?|$)", each.path) for each in server.requests)
