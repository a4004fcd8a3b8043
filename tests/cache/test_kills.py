import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.disk import DiskCache, open_disk_cache
from tests.contracts.cache import NUM_ROWS

MakeKey = Callable[..., EntryKey]
Fork = Callable[[Callable[[], Iterator[str]]], Any]
BUDGET = 3_000_000
PAYLOAD = 40_000
RECORD = 60_000


def payload(number: int) -> bytes:
    """What the store has of a block."""
    return np.random.default_rng(number).bytes(PAYLOAD)


def row(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A decoded row."""
    return np.frombuffer(np.random.default_rng(number).bytes(RECORD), np.uint8)


def touch_block(cache: DiskCache, key: MakeKey, number: int) -> None:
    """What a loader does with a block; wrong bytes end the process."""
    with cache.flight(key(number)):
        entry = cache.raw(key(number)) or cache.store_raw(key(number), [payload(number)])
    assert entry is None or entry.read(0, PAYLOAD) == payload(number)
    block = cache.decoded(key(number, transform="t"), record_bytes=RECORD)
    out = np.empty(RECORD, np.uint8)
    for at in range(NUM_ROWS):
        if not block.read_into(at, [memoryview(out)]):
            block.write(at, [memoryview(row(number + at))])
        else:
            assert np.array_equal(out, row(number + at))
    block.release()


def work(options: CacheOptions, key: MakeKey, seed: int) -> Iterator[str]:
    """Use the cache for ever, and say so after each block."""
    cache = open_disk_cache(options, dataset="ab"[seed % 2])
    choice = random.Random(seed)
    for step in count():
        if step % 20 == 0:
            cache.begin_epoch(step // 20)
        touch_block(cache, key, choice.randrange(40))
        yield "."


def entry_bytes(directory: Path) -> int:
    """Bytes of all entries and of what is being written, without those that vanish meanwhile."""
    total = 0
    for path in directory.glob("*/*"):
        if path.suffix or path.name.startswith("tmp-"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
    return total


@pytest.mark.slow
def test_killed_processes_leave_nothing_to_clean(tmp_path: Path, key: MakeKey, fork: Fork) -> None:
    """Two processes at a time, killed at random moments, sixty times: no wrong byte, the budget is kept, and whoever
    comes next removes what was left and uses all of the budget.
    """
    options = CacheOptions(directory=str(tmp_path), max_bytes=BUDGET, min_free_bytes=0)
    choice = random.Random(1)
    for seed in range(0, 60, 2):
        for child in [fork(partial(work, options, key, seed + at)) for at in range(2)]:
            for _ in range(choice.randrange(1, 40)):
                assert child.read(1) == ".", "a process met wrong bytes or an error"
            child.kill()
        files = [path for path in tmp_path.glob("*/*") if path.suffix or path.name.startswith("tmp-")]
        assert sum(path.stat().st_size for path in files) <= BUDGET
    cache = open_disk_cache(options, dataset="a")
    for epoch in range(3):
        cache.begin_epoch(epoch)
        for number in range(60):
            touch_block(cache, key, number)
    assert BUDGET * 0.9 < cache.stats()["bytes"] <= BUDGET
    assert not list(tmp_path.glob("*/tmp-*"))


def test_processes_fetch_each_block_once(tmp_path: Path, key: MakeKey, fork: Fork) -> None:
    """Processes that start at once on an empty cache fetch each block once between them."""
    options = CacheOptions(directory=str(tmp_path), min_free_bytes=0)

    def work() -> Iterator[str]:
        cache, fetched = open_disk_cache(options, dataset="a"), 0
        cache.begin_epoch(0)
        for number in range(300):
            with cache.flight(key(number)):
                if cache.raw(key(number)) is None:
                    fetched += 1
                    cache.store_raw(key(number), [bytes(2000)])
        yield str(fetched)

    children = [fork(work) for _ in range(3)]
    assert sum(int(child.result()) for child in children) == 300
    assert len(list(tmp_path.glob("*/*.raw"))) == 300


def test_a_stopped_process_does_not_stop_others(tmp_path: Path, key: MakeKey) -> None:
    """A lock that its owner does not free is given up on: here the owner is the other cache, in another flight."""
    options = CacheOptions(directory=str(tmp_path), min_free_bytes=0)
    one, other = open_disk_cache(options, dataset="a"), DiskCache(options, dataset="a", flight_wait_s=0.05)
    with one.flight(key(1)), other.flight(key(1)):
        assert other.store_raw(key(1), [b"x"]) is not None
