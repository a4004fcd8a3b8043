from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import open_disk_cache

Run = Callable[..., Result]
KEY = EntryKey(dataset="d", shard="s", version="v", row_start=0, row_stop=4, fields=("jpg",))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a cache of one block."""
    cache = open_disk_cache(CacheOptions(directory=str(tmp_path), min_free_bytes=0), dataset="d")
    cache.store_raw(KEY, [bytes(900_000)])
    cache.close()
    return tmp_path


def test_status_shows_what_is_there(run: Run, run_json: Callable[..., Any], directory: Path) -> None:
    """People get lines, programs the same numbers."""
    text = run("cache", "status", directory).stdout
    assert "1 block, 904 kB" in text
    assert "0 processes" in text
    (folder,) = run_json("cache", "status", directory)
    assert (folder["raw_entries"], folder["raw_bytes"]) == (1, 904_096)


def test_damage_is_a_line_and_exit_code_one(run: Run, run_json: Callable[..., Any], directory: Path) -> None:
    """A sound cache gives 0; each damaged file is a line, and gives 1."""
    assert f"{directory}: sound\n1 entry, 904 kB" in run("cache", "verify", directory).stdout
    (path,) = directory.glob(f"*/{KEY.file_name}")
    path.write_bytes(path.read_bytes()[:-1])
    assert run("cache", "verify", directory, code=1).stdout.startswith(f"cache_damaged: {path}: ")
    document = run_json("cache", "verify", directory, code=1)
    assert (document["sound"], document["findings"][0]["file"]) == (False, str(path))


def test_clear_says_what_it_removed(run: Run, run_json: Callable[..., Any], directory: Path) -> None:
    """All entries are removed, and the second time there is nothing left."""
    assert run("cache", "clear", directory).stdout == f"{directory}: removed 1 entry, 904 kB\n"
    assert run_json("cache", "clear", directory) == {"entries": 0, "bytes": 0, "kept": 0}


def test_no_cache_is_a_fault_of_storage(error_line: Callable[..., str], tmp_path: Path) -> None:
    """Where no cache lies there is nothing to show."""
    assert "no cache" in error_line("cache", "status", tmp_path, code=3)


def test_unknown_actions_are_usage(error_line: Callable[..., str], tmp_path: Path) -> None:
    """What cannot be done to a cache is told with what can."""
    assert "'status', 'verify', 'clear'" in error_line("cache", "mend", tmp_path, code=2)
