import dataclasses
from typing import Any

import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.errors import ConfigError

KEY = EntryKey(
    dataset="d",
    shard="a.tar",
    version="0" * 64,
    row_start=0,
    row_stop=32,
    fields=("jpg", "txt"),
    transform="t",
    rows="",
)


@pytest.mark.parametrize(
    "change",
    [
        {"shard": "b.tar"},
        {"version": "1" * 64},
        {"row_start": 1},
        {"row_stop": 31},
        {"rows": "9"},
        {"fields": ("jpg",)},
        {"fields": ("txt", "jpg")},
        {"transform": "u"},
    ],
    ids=str,
)
def test_whatever_changes_the_bytes_changes_the_name(change: dict[str, Any]) -> None:
    """Entries with other bytes have other names: another version, other rows, fields or transform."""
    assert dataclasses.replace(KEY, **change).file_name != KEY.file_name


def test_generations_share_entries() -> None:
    """A shard that is part of two generations of a data set has the same entries in both."""
    assert dataclasses.replace(KEY, dataset="e").file_name == KEY.file_name


def test_names_tell_the_kind() -> None:
    """Stored bytes and decoded rows are told apart by their names."""
    assert KEY.file_name.endswith(".rows")
    assert dataclasses.replace(KEY, transform="").file_name.endswith(".raw")


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": 0},
        {"max_bytes": "a lot"},
        {"memory_bytes": -1},
        {"min_free_bytes": "-1"},
        {"directory": ""},
        {"directory": "s3://bucket/cache"},
        {"shared_group": "no such group"},
        {"shared_group": -1},
    ],
    ids=str,
)
def test_senseless_options_are_refused(options: dict[str, Any]) -> None:
    """Options that cannot work are refused where they are written, and the message names the option."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        CacheOptions(**{"directory": "x", **options})


def test_sizes_are_read_as_people_write_them() -> None:
    """Sizes are numbers or text, and 0 turns the memory tier and the floor off."""
    options = CacheOptions(directory="x", max_bytes="2GB", memory_bytes=0, min_free_bytes="1MiB")
    assert (options.budget_bytes, options.memory_budget_bytes, options.floor_bytes) == (2 * 10**9, 0, 2**20)
