from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from janus_shards.operations.listing import list_samples
from janus_shards.reader import Dataset, open_dataset
from janus_shards.writer import ShardWriter


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Ten samples in shards of three; every fourth has a caption."""
    with ShardWriter(str(tmp_path), prefix="train", max_samples=3) as writer:
        for number in range(10):
            caption = {"txt": "x" * number} if number % 4 == 0 else {}
            writer.write({"__key__": f"k{number}", "bin": bytes(number + 1), **caption})
    return open_dataset(str(tmp_path))


def test_all_samples_are_listed_in_order(dataset: Dataset) -> None:
    """Every sample comes once, with its shard and the sizes of the fields it has."""
    listed = list(list_samples(dataset))
    assert [sample.sample_id for sample in listed] == list(range(10))
    assert listed[4] == (4, "k4", "train-000001.tar", {"bin": 5, "txt": 4})
    assert listed[5].fields == {"bin": 6}


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 7), (9, 10), (8, 100), (10, 20)])
def test_a_part_is_that_part_of_the_whole(dataset: Dataset, start: int, stop: int) -> None:
    """Bounds cut like those of a list."""
    assert list(list_samples(dataset, start=start, stop=stop)) == list(list_samples(dataset))[start:stop]


def test_views_list_their_samples(dataset: Dataset) -> None:
    """A view lists what is in it, with the ids of the base."""
    view = dataset.where(np.array([1, 5, 8]))
    assert [sample.key for sample in list_samples(view)] == ["k1", "k5", "k8"]
    assert [sample.sample_id for sample in list_samples(view, start=1, stop=2)] == [5]


def test_no_shard_is_read(dataset: Dataset, tmp_path: Path, digests: Callable[[Path], dict[str, str]]) -> None:
    """The indexes are enough."""
    for shard in tmp_path.glob("*.tar"):
        shard.unlink()
    assert len(list(list_samples(dataset))) == 10
    assert all(name.endswith((".idx", ".msgpack")) for name in digests(tmp_path))
