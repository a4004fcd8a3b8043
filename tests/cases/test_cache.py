"""Shared and stale caches (C): two jobs on one folder, damaged entries, and shards that are replaced under one name."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import janus_shards as js
from janus_shards.operations.index import IndexOptions, index_shards
from tests.cases.expectations import Case, cases
from tests.cases.scenarios import Digests, loader_digests
from tests.conftest import OpenFaultServer
from tools.fault_server import FaultServer, Rule

CASES = [pytest.param(case, id=case.id) for case in cases("C")]


def version(case: Case, name: str, folder: Path) -> Path:
    """A folder with one version of the remote shards, indexed."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in case.expect["inputs"]:
        if entry["path"].startswith(f"{name}/"):
            shutil.copyfile(case.file(entry["path"], folder), folder / Path(entry["path"]).name)
    index_shards(
        str(folder / "*.tar"), options=IndexOptions(workers=1, overwrite=(folder / "manifest.msgpack").exists())
    )
    return folder


def expected(case: Case, name: str) -> Digests:
    """What the samples of a version hold."""
    samples = [
        sample
        for entry in case.expect["inputs"]
        if entry["path"].startswith(f"{name}/")
        for sample in entry["any_of"][0]["samples"]
    ]
    return {
        sample["key"]: {name: content["sha256"] for name, content in sample["fields"].items()} for sample in samples
    }


def open_job(server: FaultServer, cache: Path) -> js.Loader:
    """A loader of stored bytes with the cache of the scenario."""
    return js.open_loader(
        server.url,
        batch_size=2,
        storage_options={"endpoint_url": server.endpoint, "anonymous": True},
        cache=js.CacheOptions(directory=str(cache), min_free_bytes=0),
        options=js.LoaderOptions(decode=False, tail="uneven", threads=1),
    )


def shard_requests(server: FaultServer) -> int:
    """GETs of shards so far."""
    return len(server.of("GET", "*.tar"))


@pytest.mark.parametrize("case", CASES)
def test_jobs_that_start_at_once_share_a_cache(case: Case, fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """Two jobs on one empty folder deliver everything with at most two GETs a shard, and leave whole files only."""
    root = version(case, "remote_v1", tmp_path / "remote")
    server = fault_server(root, Rule(key="*.tar", delay_s=0.2, times=None))
    found: list[Digests] = []
    jobs = [
        threading.Thread(target=lambda: found.append(loader_digests(open_job(server, tmp_path / "ssd")))) for _ in "ab"
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert found == [expected(case, "remote_v1")] * 2
    assert shard_requests(server) <= 2
    assert not [path for path in (tmp_path / "ssd").rglob("*") if "tmp" in path.name]


@pytest.mark.parametrize("damage", ["cut", "changed"])
@pytest.mark.parametrize("case", CASES)
def test_damaged_entries_are_fetched_again(
    case: Case, fault_server: OpenFaultServer, tmp_path: Path, damage: str
) -> None:
    """An entry that was cut, or changed at the same size, is a miss: the next run fetches the right bytes."""
    server = fault_server(version(case, "remote_v1", tmp_path / "remote"))
    loader_digests(open_job(server, tmp_path / "ssd"))
    entries = list((tmp_path / "ssd").rglob("*.raw"))
    assert entries
    for path in entries:
        data = bytearray(path.read_bytes())
        data[-10] ^= 0xFF
        path.write_bytes(data if damage == "changed" else data[: len(data) // 2])
    before = shard_requests(server)
    assert loader_digests(open_job(server, tmp_path / "ssd")) == expected(case, "remote_v1")
    assert shard_requests(server) > before


@pytest.mark.parametrize("case", CASES)
def test_replaced_shards_are_delivered_anew(case: Case, fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """After shards were replaced by others of the same name and size, the next run delivers the new ones."""
    root = version(case, "remote_v1", tmp_path / "remote")
    server = fault_server(root)
    assert loader_digests(open_job(server, tmp_path / "ssd")) == expected(case, "remote_v1")
    size = (root / "part-000000.tar").stat().st_size
    version(case, "remote_v2", root)
    assert (root / "part-000000.tar").stat().st_size == size
    assert loader_digests(open_job(server, tmp_path / "ssd")) == expected(case, "remote_v2")


@pytest.mark.parametrize("case", CASES)
def test_second_epoch_asks_the_store_for_nothing(case: Case, fault_server: OpenFaultServer, tmp_path: Path) -> None:
    """What the first epoch cached, the second one reads from the folder."""
    server = fault_server(version(case, "remote_v1", tmp_path / "remote"))
    loader = open_job(server, tmp_path / "ssd")
    first: Any = loader_digests(loader)
    before = shard_requests(server)
    assert loader_digests(loader) == first == expected(case, "remote_v1")
    assert shard_requests(server) == before
