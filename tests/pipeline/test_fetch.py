import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from janus_shards.catalog import Catalog, load_manifest
from janus_shards.errors import TransientError
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset
from janus_shards.sample import RawBytes
from janus_shards.storage.memory import MemoryStorage
from janus_shards.world import World

Load = Callable[..., Loader]
NO_INLINE_FIELDS = ("png",)


class RemoteStorage(MemoryStorage):
    """A store that is not local: records the ranges of shards that are read, and fails or waits when told to."""

    is_local = False

    def __init__(self) -> None:
        super().__init__("fake://bucket")
        self.reads: list[tuple[str, int, int]] = []
        self.fail_at: int | None = None
        self.gate: threading.Event | None = None

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Record, then read."""
        if name.endswith(".tar"):
            if self.gate is not None:
                self.gate.wait(20)
            self.reads.append((name, start, stop or 0))
            if self.fail_at is not None and len(self.reads) > self.fail_at:
                raise TransientError(f"fake://bucket/{name}: gave up after 6 attempts", shard=name)
        return super().read(name, start, stop, etag=etag)


@pytest.fixture
def store(root: Path) -> RemoteStorage:
    """The data set's objects in a remote store."""
    storage = RemoteStorage()
    for path in sorted(root.iterdir()):
        storage.put(path.name, path.read_bytes())
    return storage


@pytest.fixture
def remote(store: RemoteStorage) -> Dataset:
    """The data set, opened over the remote store."""
    return Dataset(Catalog(load_manifest(store), storage=store, index_storage=store))


@pytest.mark.parametrize("shuffle", [True, "full", None])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_remote_stream_equals_local_stream(load: Load, remote: Dataset, shuffle: object, batch_size: int) -> None:
    """Whatever is fetched ahead, the batches of a remote store are those of local shards, epoch after epoch."""
    arguments = {"fields": ("png", "txt"), "shuffle": shuffle, "batch_size": batch_size}
    options = LoaderOptions(threads=2, tail="pad", decode=False)
    local, far = load(options=options, **arguments), load(remote, options=options, **arguments)
    for _ in range(2):
        for one, other in zip(local, far, strict=True):
            assert one.keys == other.keys
            assert one["png"] == other["png"]
            assert one["txt"] == other["txt"]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_remote_ranks_read_each_row_once(load: Load, remote: Dataset, store: RemoteStorage, world_size: int) -> None:
    """Over all ranks no byte of a shard is fetched twice, also when ranks share lanes."""
    ranks = [
        load(
            remote,
            fields=NO_INLINE_FIELDS,
            global_batch_size=12,
            world=World(rank=rank, world_size=world_size),
            options=LoaderOptions(threads=1, tail="uneven"),
        )
        for rank in range(world_size)
    ]
    delivered = sum(len(batch) for loader in ranks for batch in loader)
    assert delivered == 203
    reads = sorted(store.reads)
    overlaps = sum(max(0, a[2] - b[1]) for a, b in itertools.pairwise(reads) if a[0] == b[0])
    # Merged ranges may cover a neighbour's rows in a gap; whole ranges are never read again.
    assert len(set(reads)) == len(reads)
    assert overlaps <= sum(stop - start for _, start, stop in reads) / 2


def test_blocks_are_read_with_few_requests(load: Load, remote: Dataset, store: RemoteStorage) -> None:
    """Rows of a block come in one request, except those of the first batches, which are read singly."""
    loader = load(remote, fields=NO_INLINE_FIELDS, options=LoaderOptions(threads=2, prefetch=2, tail="uneven"))
    assert sum(len(batch) for batch in loader) == 203
    num_single = 2 * 4
    assert len(store.reads) <= num_single + 7 * 2 + 7
    assert loader.stats()["store"] == {
        "requests": len(store.reads),
        "bytes": sum(stop - start for _, start, stop in store.reads),
    }


def test_inline_fields_read_no_shard(load: Load, remote: Dataset, store: RemoteStorage) -> None:
    """Captions that the indexes keep cost no request at all."""
    assert sum(len(batch) for batch in load(remote, fields=("txt", "cls"))) == 200
    assert store.reads == []


def test_small_memory_falls_back_to_single_rows(load: Load, remote: Dataset, store: RemoteStorage) -> None:
    """When blocks do not fit the budget, rows are fetched singly; the stream is the same."""
    options = LoaderOptions(threads=2, memory_bytes=2000, tail="uneven")
    loader = load(remote, fields=NO_INLINE_FIELDS, options=options)
    assert [batch.keys for batch in loader] == [
        batch.keys for batch in load(options=LoaderOptions(threads=1, tail="uneven"))
    ]
    assert len(store.reads) > 150


def test_storage_error_is_raised_in_its_place(load: Load, remote: Dataset, store: RemoteStorage) -> None:
    """A store that gives up ends the pass with its own error behind the complete batches; no thread stays."""
    store.fail_at = 8
    loader = load(remote, fields=NO_INLINE_FIELDS, options=LoaderOptions(threads=2, prefetch=2))
    reference = [batch.keys for batch in load()]
    delivered = []
    with pytest.raises(TransientError, match="gave up after 6 attempts"):
        delivered.extend(batch.keys for batch in loader)
    assert delivered == reference[: len(delivered)]
    assert loader.state_dict()["position"] == 4 * len(delivered)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("janus-decode")]


def test_closing_wakes_workers_that_wait_for_bytes(load: Load, remote: Dataset, store: RemoteStorage) -> None:
    """A loader over a store that hangs can be closed: nobody waits for bytes that may never come."""
    store.gate = threading.Event()
    loader = load(remote, fields=NO_INLINE_FIELDS)
    iterator = iter(loader)
    loader.close()
    store.gate.set()
    assert next(iterator, None) is None
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("janus-decode")]
