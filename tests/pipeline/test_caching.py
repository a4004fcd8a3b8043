import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from janus_shards.cache.base import CacheOptions
from janus_shards.catalog import Catalog, load_manifest
from janus_shards.decode.image import ImageTransform
from janus_shards.decode.transform import TensorSpec
from janus_shards.errors import ConfigError
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset, open_dataset
from janus_shards.sample import RawBytes
from janus_shards.storage.memory import MemoryStorage
from janus_shards.world import World
from janus_shards.writer import ShardWriter

Load = Callable[..., Loader]
TRANSFORM = {"png": ImageTransform(size=16, fit="stretch", engine="pillow")}
RECORD_BYTES = 3 * 16 * 16
NUM_SAMPLES = 203


class RemoteStorage(MemoryStorage):
    """A store that is not local and counts the reads of shards."""

    is_local = False

    def __init__(self) -> None:
        super().__init__("fake://bucket")
        self.num_reads = 0

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Count, then read."""
        self.num_reads += name.endswith(".tar")
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


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., CacheOptions]:
    """Cache options in a folder of the test."""

    def build(**changed: Any) -> CacheOptions:
        return CacheOptions(directory=str(tmp_path / "ssd"), **{"max_bytes": "1GB", "min_free_bytes": 0, **changed})

    return build


def contents(batches: Loader) -> list[tuple[list[str], bytes]]:
    """Keys and pixels of each batch of a pass."""
    return [(batch.keys, batch["png"].tobytes()) for batch in batches]


def pictures(load: Load, source: Dataset | None = None, **changed: Any) -> Loader:
    """A loader of small pictures and captions that leaves nothing out."""
    arguments = {"fields": ("png", "txt"), "transform": TRANSFORM, "options": LoaderOptions(threads=2, tail="uneven")}
    return load(source, **{**arguments, **changed})


@pytest.mark.parametrize(
    "tiers",
    [{"decoded": True}, {"memory_bytes": "10MB"}, {"decoded": True, "memory_bytes": 100 * RECORD_BYTES}, {}],
    ids=["disk", "memory", "both", "raw"],
)
@pytest.mark.parametrize("place", ["local", "remote"])
def test_cached_epochs_equal_uncached_ones(
    load: Load, remote: Dataset, options: Callable[..., CacheOptions], tiers: dict[str, Any], place: str
) -> None:
    """Whatever is cached, every epoch has the keys and pixels that it has without a cache."""
    source = remote if place == "remote" else None
    plain, cached = pictures(load, source), pictures(load, source, cache=options(**tiers))
    for _ in range(3):
        assert contents(cached) == contents(plain)


def test_second_epoch_decodes_and_reads_nothing(
    load: Load, remote: Dataset, store: RemoteStorage, options: Callable[..., CacheOptions]
) -> None:
    """With room for all decoded rows, epoch 2 asks the store for nothing and hits every row."""
    loader = pictures(load, remote, cache=options(decoded=True))
    contents(loader)
    assert loader.stats()["cache"]["misses"] == NUM_SAMPLES
    store.num_reads = 0
    contents(loader)
    assert store.num_reads == 0
    assert loader.stats()["cache"]["hit_rate"] == 1.0
    assert loader.stats()["store"] == {"requests": 0, "bytes": 0}


def test_raw_blocks_are_fetched_once(
    load: Load, remote: Dataset, store: RemoteStorage, options: Callable[..., CacheOptions]
) -> None:
    """Stored bytes of a block come from the store once; later epochs and later loaders find them on disk."""
    loader = pictures(load, remote, cache=options())
    contents(loader)
    store.num_reads = 0
    first = contents(loader)
    other = pictures(load, remote, cache=options())
    other.set_epoch(1)
    assert contents(other) == first
    assert store.num_reads == 0
    assert other.stats()["cache"]["hit_rate"] == 1.0


def test_decoded_rows_survive_the_process_that_made_them(load: Load, options: Callable[..., CacheOptions]) -> None:
    """Another loader with the same transform hits every row that the first one decoded."""
    contents(pictures(load, cache=options(decoded=True)))
    other = pictures(load, cache=options(decoded=True))
    contents(other)
    assert other.stats()["cache"]["hits"] == NUM_SAMPLES


def test_another_transform_has_other_rows(load: Load, options: Callable[..., CacheOptions]) -> None:
    """Rows of one transform are never delivered for another, even of the same shape."""
    contents(pictures(load, cache=options(decoded=True)))
    other = {"png": ImageTransform(size=16, fit="pad", engine="pillow", fill=0)}
    padded = pictures(load, transform=other, cache=options(decoded=True))
    assert contents(padded) == contents(pictures(load, transform=other))
    assert padded.stats()["cache"]["hits"] == 0


def test_ranks_share_the_folder(load: Load, remote: Dataset, options: Callable[..., CacheOptions]) -> None:
    """After two ranks served an epoch, one rank alone finds all of it in their folder."""
    for rank in range(2):
        contents(pictures(load, remote, cache=options(decoded=True), world=World(rank=rank, world_size=2)))
    alone = pictures(load, remote, cache=options(decoded=True))
    contents(alone)
    assert alone.stats()["cache"]["hit_rate"] == 1.0


def test_resuming_with_a_cache_serves_the_same_batches(load: Load, options: Callable[..., CacheOptions]) -> None:
    """A state taken in mid-epoch goes on with the same batches when part of them is cached."""
    reference = contents(pictures(load))
    loader = pictures(load, cache=options(decoded=True))
    for _ in zip(range(20), loader, strict=False):
        pass
    resumed = pictures(load, cache=options(decoded=True))
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    loader.close()
    assert contents(resumed) == reference[20:]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_views_have_entries_of_their_own(
    load: Load, dataset: Dataset, remote: Dataset, options: Callable[..., CacheOptions], place: str
) -> None:
    """A view and its base share a folder without mixing rows."""
    base = remote if place == "remote" else dataset
    view = base.where(np.arange(0, NUM_SAMPLES, 3))
    for source in (base, view, base, view):
        cached = contents(pictures(load, source, cache=options(decoded=True)))
        assert cached == contents(pictures(load, source))


def test_rewritten_shards_are_not_served_from_the_cache(
    load: Load, tmp_path: Path, options: Callable[..., CacheOptions]
) -> None:
    """New pictures under the same names and sizes are delivered, not those that the cache holds."""
    for level in (10, 200):
        with ShardWriter(str(tmp_path / "train"), prefix="part", overwrite=True) as writer:
            for number in range(8):
                writer.write({"__key__": f"k{number}", "png": np.full((8, 8, 3), level, np.uint8), "txt": "x"})
        source = open_dataset(str(tmp_path / "train"))
        loader = pictures(load, source, cache=options(decoded=True))
        assert all((batch["png"] == level).all() for batch in loader)


class Noise:
    """A field transform with a random part."""

    fingerprint = "noise-1"
    shape = (4,)
    dtype = np.dtype(np.float32)
    num_applied = 0

    def apply(self, data: RawBytes, out: NDArray[Any]) -> None:
        """Deterministic part: the label."""
        type(self).num_applied += 1
        out[...] = int(bytes(data))

    def augment(self, out: NDArray[Any], rng: np.random.Generator) -> None:
        """Random part."""
        out += rng.random(4, dtype=np.float32)


def test_random_augmentation_runs_behind_the_cache(load: Load, options: Callable[..., CacheOptions]) -> None:
    """Cached rows are augmented at each delivery: the same as without a cache, different in each epoch."""

    def rows(loader: Loader) -> dict[int, list[float]]:
        return {int(i): row.tolist() for batch in loader for i, row in zip(batch.sample_ids, batch["cls"], strict=True)}

    arguments = {"fields": ("cls",), "transform": {"cls": Noise()}}
    plain, cached = load(**arguments), load(**arguments, cache=options(decoded=True))
    assert rows(plain) == rows(cached)
    applied = Noise.num_applied
    second = rows(cached)
    assert Noise.num_applied - applied <= 8  # rows that the tail dropped from the first epoch
    assert second == rows(plain)


class Stats:
    """A sample transform with two outputs, one of them a scalar."""

    fingerprint = "stats-1"
    outputs: Mapping[str, TensorSpec] = {
        "mean": TensorSpec((), np.dtype(np.float32)),
        "pixels": TensorSpec((2, 3), np.dtype(np.uint8)),
    }

    def apply(self, sample: Mapping[str, Any], out: Mapping[str, NDArray[Any]]) -> None:
        """Mean and a corner of the picture."""
        out["mean"][...] = sample["png"].mean()
        out["pixels"][...] = sample["png"][:2, 0]


def test_sample_transforms_are_cached_as_one_record(load: Load, options: Callable[..., CacheOptions]) -> None:
    """All outputs of a sample transform come back from one record."""

    def rows(batches: Loader) -> list[tuple[list[float], bytes]]:
        return [(batch["mean"].tolist(), batch["pixels"].tobytes()) for batch in batches]

    arguments = {"fields": ("png",), "transform": Stats()}
    cached = load(**arguments, cache=options(decoded=True))
    plain = load(**arguments)
    assert rows(cached) == rows(plain)
    assert rows(cached) == rows(plain)
    assert cached.stats()["cache"]["hit_rate"] > 0.9


def test_bad_samples_are_not_cached(load: Load, tmp_path: Path, options: Callable[..., CacheOptions]) -> None:
    """A row that could not be decoded is tried again in each epoch and stays invalid."""
    with ShardWriter(str(tmp_path / "bad"), prefix="part") as writer:
        for number in range(8):
            picture: Any = b"no picture" if number == 3 else np.full((8, 8, 3), number, np.uint8)
            writer.write({"__key__": f"k{number}", "png": picture, "txt": "x"})
    source = open_dataset(str(tmp_path / "bad"))
    loader = pictures(
        load, source, cache=options(decoded=True), options=LoaderOptions(threads=2, tail="uneven", on_bad="skip")
    )

    def invalid(batch: Batch) -> list[str]:
        return [key for key, valid in zip(batch.keys, batch.valid, strict=True) if not valid]

    with pytest.warns(UserWarning, match="bad sample"):
        first = [key for batch in loader for key in invalid(batch)]
    assert [key for batch in loader for key in invalid(batch)] == first == ["k3"]
    assert loader.stats()["cache"]["hits"] == 7


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_hit_rate_is_the_share_that_fits(load: Load, options: Callable[..., CacheOptions], share: float) -> None:
    """From the second epoch on, the hit rate is what the budget holds of the data: the provable maximum."""
    arguments = {"transform": {"png": ImageTransform(size=128, fit="stretch", engine="pillow")}}
    max_bytes = int(share * NUM_SAMPLES * 3 * 128 * 128)
    loader = pictures(load, cache=options(decoded=True, max_bytes=max_bytes), **arguments)
    rates = []
    for _ in range(4):
        contents(loader)
        rates.append(loader.stats()["cache"]["hit_rate"])
    assert all(abs(rate - share) < 0.2 for rate in rates[1:])


def test_resized_job_reaches_the_optimum_within_two_epochs(load: Load, options: Callable[..., CacheOptions]) -> None:
    """When a node gets other blocks, entries that nobody touches for an epoch make room: epoch 3 hits what fits."""
    transform = {"png": ImageTransform(size=128, fit="stretch", engine="pillow")}
    # Room for what one of four ranks serves, and a tenth for headers.
    max_bytes = int(1.1 * NUM_SAMPLES / 4 * 3 * 128 * 128)
    small_blocks = LoaderOptions(threads=2, tail="uneven", block_rows=4)
    arguments = {
        "transform": transform,
        "cache": options(decoded=True, max_bytes=max_bytes),
        "options": small_blocks,
    }
    before = pictures(load, world=World(rank=0, world_size=2), **arguments)
    for _ in range(2):
        contents(before)
    assert before.stats()["cache"]["hit_rate"] > 0.3
    del before  # the old job is gone, and with it its claim to what it touched last
    after = pictures(load, world=World(rank=3, world_size=4), **arguments)
    after.set_epoch(2)
    rates = []
    for _ in range(4):
        contents(after)
        rates.append(after.stats()["cache"]["hit_rate"])
    assert rates[2] > 0.8
    assert rates[3] > 0.8


def test_cache_folder_that_is_a_file_is_refused(
    load: Load, tmp_path: Path, options: Callable[..., CacheOptions]
) -> None:
    """A user's mistake is named at opening, not met as a slow epoch."""
    (tmp_path / "ssd").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="expected a folder"):
        contents(pictures(load, cache=options(decoded=True)))
