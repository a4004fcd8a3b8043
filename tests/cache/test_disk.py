import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from janus_shards.cache.base import EntryKey
from janus_shards.cache.disk import DiskCache, Shares, open_disk_cache
from janus_shards.errors import ConfigError

OpenCache = Callable[..., DiskCache]
MakeKey = Callable[..., EntryKey]
Entries = Callable[[], list[Path]]
ENTRY_BYTES = 4096 + 900


def payload(number: int) -> bytes:
    """900 bytes that are different for each block."""
    return number.to_bytes(4, "little") * 225


def store(cache: DiskCache, key: MakeKey, *numbers: int, dataset: str = "a") -> list[int]:
    """Keep blocks, and say which of them were admitted."""
    return [n for n in numbers if cache.store_raw(key(n, dataset=dataset), [payload(n)[:100], payload(n)[100:]])]


def held(cache: DiskCache, key: MakeKey, *numbers: int) -> list[int]:
    """Which blocks come back; all of them right."""
    found = {number: cache.raw(key(number)) for number in numbers}
    for number, entry in found.items():
        assert entry is None or entry.read(0, 900) == payload(number)
    return [number for number, entry in found.items() if entry is not None]


def test_stored_bytes_come_back_for_every_process(open_cache: OpenCache, key: MakeKey) -> None:
    """Any part of a payload is read, by the process that stored it and by others, also after it ended."""
    first = open_cache()
    store(first, key, 1)
    first.close()
    for cache in (first, open_cache(), pickle.loads(pickle.dumps(first))):
        entry = cache.raw(key(1))
        assert entry is not None
        assert entry.num_bytes == 900
        assert entry.read(90, 20) == payload(1)[90:110]
        assert entry.read(0, 0) == b""
        assert entry.read(890, 11) is None
        assert cache.raw(key(2)) is None
        cache.close()


def test_an_entry_is_read_after_it_was_evicted(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """An entry that is in use can still be read when another process removes its file."""
    cache = open_cache()
    store(cache, key, 1)
    entry = cache.raw(key(1))
    entries()[0].unlink()
    assert entry is not None
    assert entry.read(0, 900) == payload(1)


def test_a_block_that_is_there_is_not_stored_twice(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """Whoever was slower gets the entry of the faster one, and the budget pays once."""
    one, other = open_cache(), open_cache()
    store(one, key, 1)
    store(other, key, 1)
    assert len(entries()) == 1
    assert one.stats()["bytes"] == ENTRY_BYTES
    assert [cache.stats()["admitted"] for cache in (one, other)] == [1, 0]


def test_empty_blocks_are_entries(open_cache: OpenCache, key: MakeKey) -> None:
    """A block without stored bytes is a hit as well; pieces may be many and empty."""
    cache = open_cache()
    assert cache.store_raw(key(0), []) is not None
    assert cache.store_raw(key(1), [b"", *[b"x"] * 3000, b""]) is not None
    found = open_cache().raw(key(1))
    assert found is not None
    assert found.read(0, 3000) == b"x" * 3000


def test_what_was_admitted_is_kept(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """A full cache keeps what it has, however often other blocks are asked for; ``admits`` says so beforehand."""
    cache = open_cache(max_bytes=10 * ENTRY_BYTES)
    for epoch in range(4):
        cache.begin_epoch(epoch)
        for number in range(20):
            if cache.raw(key(number)) is None and cache.admits(900):
                assert store(cache, key, number)
        assert held(cache, key, *range(20)) == list(range(10))
    assert sum(path.stat().st_size for path in entries()) == cache.stats()["bytes"] == 10 * ENTRY_BYTES


@pytest.mark.parametrize("percent", [10, 25, 50, 75])
@pytest.mark.parametrize("ranks", [1, 2])
def test_hits_are_the_share_that_fits(open_cache: OpenCache, key: MakeKey, percent: int, ranks: int) -> None:
    """From the second epoch on, hits are the share of the data that fits, within two points: no policy can do better.
    One rank, and two that share the directory, in another order each epoch.
    """
    blocks = 200
    caches = [open_cache(max_bytes=percent * blocks * ENTRY_BYTES // 100) for _ in range(ranks)]
    for epoch in range(3):
        hits = 0
        for cache in caches:
            cache.begin_epoch(epoch)
        for at in range(blocks):
            number = (at * 37 + epoch * 59) % blocks
            cache = caches[number % ranks]
            if cache.raw(key(number)) is not None:
                hits += 1
            else:
                store(cache, key, number)
        assert hits == 0 if epoch == 0 else abs(100 * hits / blocks - percent) <= 2


def test_the_budget_is_shared(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """Several processes together stay within one budget, and what one of them leaves the other one takes."""
    caches = [open_cache(max_bytes=20 * ENTRY_BYTES) for _ in range(3)]
    for number in range(90):
        store(caches[number % 3], key, number)
        assert sum(path.stat().st_size for path in entries()) <= 20 * ENTRY_BYTES
    caches[0].close()
    caches[1].close()
    caches[2].begin_epoch(0)
    store(caches[2], key, *range(100, 120))
    assert len(entries()) == 20


def test_other_data_sets_make_room(open_cache: OpenCache, key: MakeKey) -> None:
    """Entries of a data set that nobody reads any more go before anything of those that are read is refused."""
    old = open_cache(dataset="old", max_bytes=10 * ENTRY_BYTES)
    old.begin_epoch(0)
    store(old, key, *range(10), dataset="old")
    new = open_cache(dataset="new", max_bytes=10 * ENTRY_BYTES)
    new.begin_epoch(0)
    assert store(new, key, 20, dataset="new") == []
    old.close()
    new.begin_epoch(1)
    assert store(new, key, *range(20, 40), dataset="new") == list(range(20, 30))
    assert held(new, key, *range(10)) == []
    assert new.stats()["evicted"] == 10


def test_a_resized_job_reaches_the_optimum_again(open_cache: OpenCache, key: MakeKey) -> None:
    """A job that meets other blocks than before observes one epoch, makes room in the next, and hits all it can."""
    before = open_cache(max_bytes=10 * ENTRY_BYTES)
    before.begin_epoch(0)
    store(before, key, *range(10))
    before.close()
    # Half of the old blocks, and as many that no cache of this node has met.
    blocks, hits = range(5, 15), []
    after = open_cache(max_bytes=10 * ENTRY_BYTES)
    for epoch in range(4):
        after.begin_epoch(epoch)
        hits.append(0)
        for number in blocks:
            if after.raw(key(number)) is not None:
                hits[-1] += 1
            else:
                store(after, key, number)
    assert hits == [5, 5, 10, 10]


def test_an_epoch_cut_short_tells_nothing(open_cache: OpenCache, key: MakeKey) -> None:
    """Blocks that an epoch did not come to are kept when it was broken off."""
    cache = open_cache(max_bytes=10 * ENTRY_BYTES)
    cache.begin_epoch(0)
    store(cache, key, *range(10))
    cache.begin_epoch(1)
    assert held(cache, key, 0, 1) == [0, 1]
    cache.begin_epoch(2, whole=False)
    store(cache, key, 20)
    assert held(cache, key, *range(21)) == list(range(10))


def test_new_processes_of_a_run_know_its_epochs(open_cache: OpenCache, key: MakeKey) -> None:
    """Processes that live for one epoch, as the workers of a DataLoader do, go on with the clock of those before."""
    for epoch in range(4):
        cache = open_cache(max_bytes=10 * ENTRY_BYTES)
        cache.begin_epoch(epoch)
        blocks = range(10) if epoch == 0 else range(5, 15)
        for number in blocks:
            if cache.raw(key(number)) is None:
                store(cache, key, number)
        found = held(cache, key, *blocks)
        cache.close()
    assert found == list(range(5, 15))


def test_shares_choose_blocks_beforehand(tmp_path: Path, key: MakeKey, open_cache: OpenCache) -> None:
    """With a share, every process keeps the same part of the blocks, however much room there is."""
    options = open_cache().options
    kept = []
    for _ in range(2):
        cache = open_disk_cache(options, dataset="a", shares=Shares(raw=0.5))
        kept.append(store(cache, key, *range(100)))
        cache.close()
    assert kept[0] == kept[1]
    assert 30 < len(kept[0]) < 70


def test_threads_fetch_a_block_once(open_cache: OpenCache, key: MakeKey) -> None:
    """Of threads and caches that want a block at once, one fetches it and the others find it."""
    caches, fetched = [open_cache(), open_cache()], []

    def want(number: int) -> bool:
        cache = caches[number % 2]
        with cache.flight(key(7)):
            if cache.raw(key(7)) is None:
                fetched.append(number)
                store(cache, key, 7)
        return held(cache, key, 7) == [7]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(want, range(32)))
    assert len(fetched) == 1


def test_flights_of_other_blocks_do_not_wait(open_cache: OpenCache, key: MakeKey) -> None:
    """While one block is fetched, another one may be, in the same process and in others."""
    one, other = open_cache(), open_cache()
    with one.flight(key(1)), one.flight(key(2)), other.flight(key(3)):
        store(one, key, 1)


def test_a_forked_child_has_a_part_of_its_own(
    open_cache: OpenCache, key: MakeKey, entries: Entries, fork: Callable[[Callable[[], Iterator[str]]], Any]
) -> None:
    """A child reads and stores as another process would: parent and child together keep the budget, and neither holds
    the other's locks.
    """
    cache = open_cache(max_bytes=10 * ENTRY_BYTES)
    store(cache, key, 0)

    def work() -> Iterator[str]:
        yield str((held(cache, key, 0), store(cache, key, 1, 2, 3)))
        cache.close()

    with cache.flight(key(5)):
        assert fork(work).result() == "([0], [1, 2, 3])"
    assert held(cache, key, 0, 1, 2, 3) == [0, 1, 2, 3]
    store(cache, key, *range(4, 30))
    assert len(entries()) == 10


def test_what_a_dead_process_leaves_is_cleared(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """After a process was killed, its lease is free again and its unfinished file is removed."""
    killed = open_cache(max_bytes=10 * ENTRY_BYTES)
    store(killed, key, 0, 1)
    folder = entries()[0].parent
    (folder / "tmp-000-0123456789abcdef").write_bytes(b"JSHCACHE" + bytes(3 * ENTRY_BYTES))
    killed.after_fork()  # lets go of everything without giving anything back, as the end of a process does
    cache = open_cache(max_bytes=10 * ENTRY_BYTES)
    assert store(cache, key, *range(2, 20)) == list(range(2, 10))
    assert [path.suffix for path in entries()] == [".raw"] * 10


@pytest.mark.parametrize("damage", ["cut", "longer", "payload", "header", "identity", "empty", "zeros"])
def test_damaged_entries_are_misses(open_cache: OpenCache, key: MakeKey, entries: Entries, damage: str) -> None:
    """A file that is not what was written is a miss, whatever became of it, and never an error."""
    store(open_cache(), key, 1)
    (path,) = entries()
    data = bytearray(path.read_bytes())
    changed = {"payload": 4096 + 100, "header": 20, "identity": 130}
    if damage in changed:
        data[changed[damage]] ^= 1
    path.write_bytes(
        {"cut": data[:-1], "longer": data + b"x", "empty": b"", "zeros": bytes(len(data))}.get(damage, data)
    )
    cache = open_cache()
    assert held(cache, key, 1) == []
    # What has lost its header could be anybody's: it stays, and the block goes uncached.
    assert store(cache, key, 1) == ([] if damage in ("header", "identity") else [1])


def test_entries_swapped_on_disk_are_misses(open_cache: OpenCache, key: MakeKey, entries: Entries) -> None:
    """A file under the name of another entry is not that entry."""
    store(open_cache(), key, 1, 2)
    one, other = entries()
    one.write_bytes(other.read_bytes())
    assert len(held(open_cache(), key, 1, 2)) == 1


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path, open_cache: OpenCache) -> None:
    """A user's mistake is told, and not taken for a failing disk."""
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(ConfigError, match="expected a folder"):
        open_cache()
