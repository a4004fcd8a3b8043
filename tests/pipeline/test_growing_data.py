import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from janus_shards.errors import ConfigError, ResumeError
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset, open_dataset
from janus_shards.world import World
from tests.growing import append_shards
from tests.pipeline.conftest import NUM_SAMPLES, write_samples

Load = Callable[..., Loader]
NUM_ALL = NUM_SAMPLES + 50


@pytest.fixture(scope="module")
def grown(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data set with 50 samples more, ``k1000`` and on, in a second generation."""
    folder = tmp_path_factory.mktemp("grown")
    shutil.copytree(root, folder / "train")
    write_samples(folder / "more", count=50, first=1000, prefix="more")
    append_shards(folder / "train", folder / "more")
    return str(folder / "train")


def whole(dataset: Dataset) -> Dataset:
    """All of it."""
    return dataset


def thirds(dataset: Dataset) -> Dataset:
    """A view that the new shards add to."""
    return dataset.where(dataset.column("number") % 3 == 1)


def first_side(dataset: Dataset) -> Dataset:
    """A side of a split, which is stable when the data set grows."""
    return dataset.split(0.6, seed=2)[0]


def keys(loader: Loader) -> list[list[str]]:
    """Keys of each batch of one pass."""
    return [batch.keys for batch in loader]


def stop_after(loader: Loader, num_epochs: int, num_batches: int) -> dict[str, Any]:
    """The state after whole epochs and some batches."""
    for _ in range(num_epochs):
        keys(loader)
    if num_batches:
        iterator = iter(loader)
        for _ in range(num_batches):
            next(iterator)
    return loader.state_dict()


@pytest.mark.parametrize("choose", [whole, thirds, first_side])
@pytest.mark.parametrize("shuffle", [True, "full", None])
@pytest.mark.parametrize("num_batches", [1, 5, 9])
def test_the_epoch_is_finished_on_what_it_began_with(
    load: Load, dataset: Dataset, grown: str, choose: Callable[[Dataset], Dataset], shuffle: Any, num_batches: int
) -> None:
    """With ``allow=("append",)`` exactly the rest of the old epoch comes, and the next one is of everything."""
    arguments = {"shuffle": shuffle, "batch_size": 7, "options": LoaderOptions(threads=2, tail="uneven")}
    before = load(choose(dataset), **arguments)
    state = stop_after(before, 1, num_batches)
    reference = load(choose(dataset), **arguments)
    keys(reference)
    expected = keys(reference)[num_batches:]

    resumed = load(choose(open_dataset(grown)), **arguments)
    resumed.load_state_dict(state, allow=("append",))
    assert resumed.state_dict() == state
    assert (resumed.steps_left, len(resumed)) == (len(expected), len(before))
    assert keys(resumed) == expected
    fresh = load(choose(open_dataset(grown)), **arguments)
    fresh.set_epoch(2)
    assert keys(resumed) == keys(fresh)
    assert len(resumed) == len(fresh)
    assert sum(len(batch) for batch in keys(resumed)) == len(choose(open_dataset(grown)))


def test_a_state_of_a_finished_epoch_goes_on_with_everything(load: Load, grown: str) -> None:
    """Nothing is left of the old epoch, so the next one has the new samples from its start."""
    resumed = load(grown, options=LoaderOptions(threads=2, tail="uneven"))
    resumed.load_state_dict(stop_after(load(), 1, 0), allow=("append",))
    assert (resumed.epoch, resumed.state_dict()["position"]) == (1, 0)
    assert sum(len(batch) for batch in keys(resumed)) == NUM_ALL


def test_states_taken_in_the_old_epoch_resume_again(load: Load, grown: str) -> None:
    """A second stop before the old epoch is over, and one after it, go on as the first one did."""
    state = stop_after(load(), 0, 20)
    reference = load(grown)
    reference.load_state_dict(state, allow=("append",))
    rest, following = keys(reference), keys(reference)
    for num_epochs, num_batches in ((0, 4), (1, 0), (1, 3)):
        loader, again = load(grown), load(grown)
        loader.load_state_dict(state, allow=("append",))
        again.load_state_dict(stop_after(loader, num_epochs, num_batches), allow=("append",))
        expected = [rest[num_batches:], following][num_epochs] if not num_epochs else following[num_batches:]
        assert keys(again) == expected


def test_resuming_on_another_world_after_an_append(load: Load, grown: str) -> None:
    """The rest of the old epoch is divided over the new ranks, nothing lost and nothing twice."""
    options = LoaderOptions(threads=1, tail="uneven")
    state = stop_after(load(batch_size=12, options=options), 0, 5)
    found = []
    for rank in range(3):
        loader = load(grown, batch_size=4, world=World(rank=rank, world_size=3), options=options)
        loader.load_state_dict(state, allow=("append",))
        found += [key for batch in keys(loader) for key in batch]
    served = load(batch_size=12, options=options)
    expected = [key for batch in keys(served)[5:] for key in batch]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("choose", [whole, thirds])
def test_refused_without_allow(load: Load, dataset: Dataset, grown: str, choose: Callable[[Dataset], Dataset]) -> None:
    """The error names what differs, old and new, and what to pass if shards were only appended."""
    state = stop_after(load(choose(dataset)), 0, 3)
    resumed = load(choose(open_dataset(grown)))
    with pytest.raises(ResumeError, match=r'num_shards: 7 -> 9.*pass allow=\("append",\)'):
        resumed.load_state_dict(state)


def test_what_has_not_only_grown_is_refused(load: Load, dataset: Dataset, grown: str) -> None:
    """``append`` covers no other seed, no other view of the old shards, and no state of the grown data set."""
    state = stop_after(load(), 0, 3)
    with pytest.raises(ResumeError, match=r"\(seed: 7 -> 8\)"):
        load(grown, seed=8).load_state_dict(state, allow=("append",))
    numbers = open_dataset(grown).column("number")
    view = open_dataset(grown).where(np.flatnonzero(numbers != 5))
    with pytest.raises(ResumeError, match="has not only grown"):
        load(view).load_state_dict(state, allow=("append",))
    with pytest.raises(ResumeError, match="num_shards: 9 -> 7"):
        load(dataset).load_state_dict(stop_after(load(grown), 0, 3), allow=("append",))
    with pytest.raises(ConfigError, match="expected a tuple of names"):
        load(grown).load_state_dict(state, allow="append")  # type: ignore[arg-type]


def test_a_state_that_was_changed_by_hand(load: Load, grown: str) -> None:
    """Is an error of the state whatever it says about shards."""
    state = stop_after(load(), 0, 3)
    for changed in (
        {"num_shards": 0},
        {"num_shards": 3},
        {"num_shards": 10**6},
        {"fingerprint": ""},
        {"position": 10**9},
    ):
        with pytest.raises(ResumeError):
            load(grown).load_state_dict({**state, **changed}, allow=("append",))
