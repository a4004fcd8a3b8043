import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from janus_shards.cache.base import CacheOptions, EntryKey
from janus_shards.cache.budget import Budget
from janus_shards.cache.disk import DiskCache, open_disk_cache
from janus_shards.cache.folder import folder_name, open_folder
from janus_shards.cache.locks import FileLocks
from tests.contracts.cache import NUM_ROWS, RECORD_BYTES, read, record, write

BUDGET = 60_000
NUMBERS = st.integers(0, 11)
ROWS = st.integers(0, NUM_ROWS - 1)
DATASETS = st.sampled_from(["a", "b"])


def raw_key(number: int, dataset: str = "a") -> EntryKey:
    """Name of the stored bytes of a block."""
    return EntryKey(
        dataset=dataset, shard="s", version="v", row_start=number, row_stop=number + NUM_ROWS, fields=("jpg",)
    )


def rows_key(number: int, dataset: str = "a") -> EntryKey:
    """Name of the decoded rows of a block."""
    return EntryKey(
        dataset=dataset,
        shard="s",
        version="v",
        row_start=number,
        row_stop=number + NUM_ROWS,
        fields=("jpg",),
        transform="t",
    )


def payload(number: int) -> bytes:
    """What the store has of a block: another length for each."""
    return np.random.default_rng(number).bytes(700 * number)


class CacheMachine(RuleBasedStateMachine):
    """Processes come, store, read, are killed and come back, while somebody damages files and adds others.

    The model is what the store holds: whatever comes out of the cache is equal to it. The budget holds at every moment,
    and files that the cache did not write stay as they are.
    """

    caches: Bundle[DiskCache] = Bundle("caches")

    @initialize()
    def make_folder(self) -> None:
        """An empty directory."""
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / folder_name(None)
        self.foreign: dict[Path, bytes] = {}
        self.opened: list[DiskCache] = []
        self.epochs: dict[int, int] = {}

    def teardown(self) -> None:
        """Remove the directory."""
        for cache in self.opened:
            cache.close()
        shutil.rmtree(self.root)

    def options(self) -> CacheOptions:
        """The same for every process."""
        return CacheOptions(directory=str(self.root), max_bytes=BUDGET, min_free_bytes=0)

    def files(self) -> list[Path]:
        """What the cache wrote."""
        found = sorted(self.folder.glob("*.r*")) + sorted(self.folder.glob("tmp-*"))
        return [path for path in found if path not in self.foreign]

    @rule(target=caches, dataset=DATASETS)
    def start(self, dataset: str) -> DiskCache:
        """A process begins."""
        self.opened.append(open_disk_cache(self.options(), dataset=dataset))
        return self.opened[-1]

    @rule(cache=caches, whole=st.booleans())
    def begin_epoch(self, cache: DiskCache, whole: bool) -> None:
        """A process begins its next epoch."""
        self.epochs[id(cache)] = self.epochs.get(id(cache), -1) + 1
        cache.begin_epoch(self.epochs[id(cache)], whole=whole)

    @rule(cache=caches, number=NUMBERS)
    def want(self, cache: DiskCache, number: int) -> None:
        """A process reads the stored bytes of a block, or fetches and keeps them."""
        with cache.flight(raw_key(number)):
            entry = cache.raw(raw_key(number))
            if entry is None:
                data = payload(number)
                entry = cache.store_raw(raw_key(number), [data[:100], data[100:]])
        if entry is not None:
            assert entry.read(0, entry.num_bytes) == payload(number)

    @rule(cache=caches, number=NUMBERS, rows=st.sets(ROWS))
    def want_rows(self, cache: DiskCache, number: int, rows: set[int]) -> None:
        """A process reads some decoded rows of a block, or decodes and keeps them."""
        block = cache.decoded(rows_key(number), record_bytes=RECORD_BYTES)
        for row in rows:
            expected = record(100 * number + row)
            found = read(block, row)
            if found is None:
                write(block, row, expected)
                found = read(block, row)
            if found is not None:
                np.testing.assert_array_equal(found, expected)
        block.release()

    @rule(cache=caches)
    def close(self, cache: DiskCache) -> None:
        """A process ends, or lets go for a while."""
        cache.close()

    @rule(cache=consumes(caches))
    def kill(self, cache: DiskCache) -> None:
        """A process is killed: the system takes its locks, nothing is given back."""
        cache.after_fork()
        self.opened.remove(cache)

    @rule(number=NUMBERS, done=st.floats(0, 1))
    def die_while_storing(self, number: int, done: float) -> None:
        """A process is killed in the middle of a file."""
        folder = open_folder(str(self.root), None)
        budget = Budget(folder, FileLocks(), self.options(), "a")
        data = b"JSHCACHE" + bytes(4088) + payload(number)
        if budget.reserve(len(data)):
            _, fd = folder.create_temp(budget.slot)
            os.write(fd, data[: int(done * len(data))])
            os.close(fd)
        budget.forget()

    @rule(number=NUMBERS, decoded=st.booleans(), data=st.binary(min_size=1, max_size=200))
    def add_foreign_entry(self, number: int, decoded: bool, data: bytes) -> None:
        """Somebody puts a file where an entry would be."""
        if self.folder.is_dir():
            path = self.folder / (rows_key(number) if decoded else raw_key(number)).file_name
            path.unlink(missing_ok=True)
            self.foreign[path] = b"not ours" + data
            path.write_bytes(self.foreign[path])

    @rule(slot=st.integers(0, 3), data=st.binary(max_size=200))
    def add_foreign_temp(self, slot: int, data: bytes) -> None:
        """Somebody's file has a name like those of ours."""
        if self.folder.is_dir():
            path = self.folder / f"tmp-{slot:03d}-{len(self.foreign):016x}"
            self.foreign[path] = b"not ours" + data
            path.write_bytes(self.foreign[path])

    @rule(choice=st.integers(0, 99), place=st.floats(0, 1, exclude_max=True), cut=st.booleans())
    def damage(self, choice: int, place: float, cut: bool) -> None:
        """A file is damaged while no process runs: what is verified once a process was not verified since."""
        files = self.files()
        if files:
            self._kill_all()
            path = files[choice % len(files)]
            data = bytearray(path.read_bytes())
            at = int(place * len(data))
            if data and not cut:
                data[at] ^= 0x11
            path.write_bytes(data[:at] if cut else data)

    @rule(choice=st.integers(0, 99))
    def remove(self, choice: int) -> None:
        """Somebody removes an entry."""
        files = self.files()
        if files:
            files[choice % len(files)].unlink()

    @rule(data=st.binary(max_size=64), place=st.integers(0, 16383))
    def damage_usage(self, data: bytes, place: int) -> None:
        """The file that shares the budget is damaged while no process runs."""
        if (self.folder / "usage").is_file():
            self._kill_all()
            with (self.folder / "usage").open("r+b") as file:
                file.seek(place)
                file.write(data)

    def _kill_all(self) -> None:
        for cache in self.opened:
            cache.after_fork()

    @invariant()
    def keeps_the_budget(self) -> None:
        """All files of the cache together take no more than the budget."""
        if hasattr(self, "root"):
            assert sum(path.stat().st_size for path in self.files()) <= BUDGET

    @invariant()
    def leaves_foreign_files(self) -> None:
        """Files of others are as they were."""
        for path, data in getattr(self, "foreign", {}).items():
            assert path.read_bytes() == data


CacheMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
