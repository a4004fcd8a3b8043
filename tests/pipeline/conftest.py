"""Small data sets for loader tests, and loaders over them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from janus_shards.pipeline.loader import Loader, build_loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset, open_dataset
from janus_shards.world import World
from janus_shards.writer import ShardWriter

NUM_SAMPLES = 203


def write_samples(
    root: Path, *, count: int = NUM_SAMPLES, samples_a_shard: int = 30, first: int = 0, prefix: str = "part"
) -> None:
    """A data set of tiny pictures, captions and labels; sample i has key ``k<i>``, ``caption i``, label i mod 7."""
    with ShardWriter(str(root), prefix=prefix, max_samples=samples_a_shard) as writer:
        for number in range(first, first + count):
            picture = np.full((6 + number % 5, 8, 3), number % 256, np.uint8)
            sample = {"__key__": f"k{number:04d}", "png": picture, "txt": f"caption {number}", "cls": number % 7}
            writer.write(sample, columns={"number": number})


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a data set of 203 samples in 7 shards; not to be changed."""
    folder = tmp_path_factory.mktemp("pipeline") / "train"
    write_samples(folder)
    return folder


@pytest.fixture
def dataset(root: Path) -> Dataset:
    """The data set, opened."""
    return open_dataset(str(root))


@pytest.fixture
def load(dataset: Dataset) -> Callable[..., Loader]:
    """Opens a loader of captions; every argument can be replaced."""

    def build(source: Dataset | str | None = None, **changed: Any) -> Loader:
        arguments: dict[str, Any] = {
            "batch_size": 4,
            "global_batch_size": None,
            "fields": ("txt",),
            "transform": None,
            "shuffle": True,
            "seed": 7,
            "world": World(),
            "options": LoaderOptions(threads=2),
            "storage_options": None,
        }
        if "global_batch_size" in changed:
            arguments["batch_size"] = None
        return build_loader(dataset if source is None else source, **{**arguments, **changed})

    return build
