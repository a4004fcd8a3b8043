import gc
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from janus_shards.errors import ConfigError, DecodeError, ResumeError
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset
from janus_shards.world import World
from janus_shards.writer import ShardWriter

NUM_SAMPLES = 203
Load = Callable[..., Loader]


def keys(loader: Loader) -> list[list[str]]:
    """Keys of each batch of one pass."""
    return [batch.keys for batch in loader]


def flat(batches: list[list[str]]) -> list[str]:
    """Keys in the order of delivery."""
    return list(itertools.chain.from_iterable(batches))


def our_threads() -> list[str]:
    """Names of the loader threads of this process that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("janus-")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No test of this file may leave a thread behind."""
    yield
    if our_threads():  # collecting takes 0.3 s where torch is loaded
        gc.collect()
    assert our_threads() == []


def test_every_epoch_delivers_each_sample_once(load: Load) -> None:
    """With tail='uneven' an epoch is a permutation of the data set, and each epoch is another one."""
    loader = load(options=LoaderOptions(threads=2, tail="uneven"))
    epochs = [flat(keys(loader)) for _ in range(3)]
    assert all(sorted(epoch) == [f"k{number:04d}" for number in range(NUM_SAMPLES)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_values_belong_to_their_keys(load: Load) -> None:
    """Captions, labels, ids and keys of a batch are of the same samples."""
    for batch in load(fields=("cls", "txt")):
        numbers = [int(key[1:]) for key in batch.keys]
        assert batch["txt"] == [f"caption {number}" for number in numbers]
        assert batch["cls"].tolist() == [number % 7 for number in numbers]
        assert batch["cls"].dtype == np.int64
        assert batch.sample_ids.tolist() == numbers
        assert batch.valid.all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_order_does_not_depend_on_threads(load: Load, threads: int) -> None:
    """Any number of threads gives the batches of one thread."""
    assert keys(load(options=LoaderOptions(threads=threads))) == keys(load(options=LoaderOptions(threads=1)))


def test_another_seed_is_another_order(load: Load) -> None:
    """The seed decides the order, and the same seed gives it again."""
    assert keys(load(seed=1)) == keys(load(seed=1)) != keys(load(seed=2))


@pytest.mark.parametrize("shuffle", [None, False])
def test_without_shuffle_order_is_stored_order(load: Load, shuffle: bool | None) -> None:
    """``shuffle=None`` and ``False`` deliver samples as they are stored."""
    assert flat(keys(load(shuffle=shuffle))) == [f"k{number:04d}" for number in range(200)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_worlds_divide_the_same_global_batches(load: Load, world_size: int) -> None:
    """Global batches are the same sets on any world size, ranks are disjoint, and all have the same number of steps."""
    ranks = [load(global_batch_size=12, world=World(rank=rank, world_size=world_size)) for rank in range(world_size)]
    steps = list(zip(*(keys(loader) for loader in ranks), strict=True))
    whole = keys(load(batch_size=12))
    assert [sorted(flat(list(step))) for step in steps] == [sorted(batch) for batch in whole]
    assert {len(loader) for loader in ranks} == {len(whole)}


@pytest.mark.parametrize(("tail", "steps", "rows"), [("drop", 50, 200), ("pad", 51, 204), ("uneven", 51, 203)])
def test_tail(load: Load, tail: str, steps: int, rows: int) -> None:
    """203 samples in batches of 4: drop loses 3, pad repeats one and says so, uneven ends with a short batch."""
    loader = load(options=LoaderOptions(threads=2, tail=tail))
    batches = list(loader)
    assert len(loader) == len(batches) == steps
    assert sum(len(batch) for batch in batches) == rows
    assert sum(int(batch.valid.sum()) for batch in batches) == min(rows, NUM_SAMPLES)


def test_steps_left_counts_down(load: Load) -> None:
    """``len`` stays the epoch's length while ``steps_left`` falls from it to 0."""
    loader = load()
    assert loader.steps_left == len(loader) == 50
    left = [loader.steps_left for _ in loader]
    assert left == list(range(49, -1, -1))
    assert len(loader) == 50


def test_next_pass_is_the_next_epoch_after_break(load: Load) -> None:
    """``break`` ends an epoch; the next ``iter`` begins the next one."""
    loader, reference = load(), load()
    epochs = [keys(reference), keys(reference)]
    assert next(iter(loader)).keys == epochs[0][0]
    assert keys(loader) == epochs[1]


def test_break_leaves_the_position_behind_the_last_batch(load: Load) -> None:
    """What was prefetched but not returned does not count."""
    loader = load()
    for _, batch in zip(range(3), loader, strict=False):
        last = batch
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 12)
    resumed = load()
    resumed.load_state_dict(state)
    assert last.keys == keys(load())[2]
    assert keys(resumed) == keys(load())[3:]


def test_resuming_at_every_step_equals_the_uninterrupted_run(load: Load) -> None:
    """A state taken after any number of batches goes on with the rest of the epoch, and then the next epoch."""
    reference = load()
    first, second = keys(reference), keys(reference)
    loader = load()
    states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    resumed = load()
    for done, state in enumerate(states):
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert keys(resumed) == (first[done:] if done < 50 else second)
    assert keys(resumed) != second


@pytest.mark.parametrize(("world_size", "global_batch"), [(1, 12), (2, 12), (3, 12), (5, 20), (4, 8)])
def test_resuming_on_another_world_serves_what_is_left(load: Load, world_size: int, global_batch: int) -> None:
    """A state of one rank with batches of 12 goes on with any ranks and batch size: nothing lost, nothing twice."""
    loader = load(batch_size=12, options=LoaderOptions(threads=2, tail="uneven"))
    served = flat([batch.keys for _, batch in zip(range(5), loader, strict=False)])
    state = loader.state_dict()
    for rank in range(world_size):
        other = load(
            global_batch_size=global_batch,
            world=World(rank=rank, world_size=world_size),
            options=LoaderOptions(threads=1, tail="uneven"),
        )
        other.load_state_dict(state)
        served += flat(keys(other))
    assert sorted(served) == [f"k{number:04d}" for number in range(NUM_SAMPLES)]


def test_state_is_small_plain_and_stable(load: Load) -> None:
    """A state is JSON below 1 KB, the same when taken twice, and the same right after it was loaded."""
    loader = load()
    next(iter(loader))
    state = loader.state_dict()
    assert state == loader.state_dict() == json.loads(json.dumps(state))
    assert len(json.dumps(state)) < 1000
    other = load()
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_set_epoch_chooses_the_next_pass(load: Load) -> None:
    """``set_epoch(2)`` gives what the third pass of another loader gives."""
    reference, loader = load(), load()
    third = [keys(reference) for _ in range(3)][2]
    loader.set_epoch(2)
    assert keys(loader) == third
    with pytest.raises(ConfigError, match="counted from 0"):
        loader.set_epoch(-1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 8}, "seed: 7 -> 8"),
        ({"shuffle": "full"}, "shuffle: True -> full"),
        ({"options": LoaderOptions(window=2)}, "window: 1 -> 2"),
        ({"options": LoaderOptions(block_rows=8, lanes=6)}, "block_rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_of_another_order_is_refused(load: Load, changed: dict[str, object], named: str) -> None:
    """A state that does not fit is refused with what differs, old and new."""
    state = load().state_dict()
    with pytest.raises(ResumeError, match=named):
        load(**changed).load_state_dict(state)


def test_state_of_another_data_set_is_refused(load: Load, dataset: Dataset) -> None:
    """A state of the data set does not fit a view of it."""
    with pytest.raises(ResumeError, match="fingerprint"):
        load(dataset.take(100)).load_state_dict(load().state_dict())


@pytest.mark.parametrize("fields", [("txt",), ("cls",), ("png", "cls")])
def test_state_does_not_depend_on_fields(load: Load, fields: tuple[str, ...]) -> None:
    """Fields may change between runs: they do not belong to the order."""
    loader = load(fields=fields, batch_size=8)
    loader.load_state_dict(load().state_dict())
    assert len(keys(loader)) == 25


def test_view_delivers_its_own_samples(load: Load, dataset: Dataset) -> None:
    """A loader over a view serves the view's samples under their ids in the base data set."""
    view = dataset.where(dataset.column("number") % 3 == 1)
    loader = load(view, options=LoaderOptions(threads=2, tail="uneven"))
    found = np.concatenate([batch.sample_ids for batch in loader])
    assert sorted(found.tolist()) == list(range(1, NUM_SAMPLES, 3))


def test_unknown_field_is_named(load: Load) -> None:
    """A field that no sample has is refused before anything is read, naming those there are."""
    with pytest.raises(ConfigError, match="no field 'jpg'; it has cls, png, txt"):
        load(fields=("jpg",))


def test_batch_larger_than_the_data_set_is_refused(load: Load) -> None:
    """With tail='drop' a batch of more samples than there are would never come: an error at once."""
    with pytest.raises(ConfigError, match="only 203 samples"):
        load(batch_size=204)


@pytest.mark.parametrize("threads", [1, 4])
def test_damaged_sample_raises_in_its_place(load: Load, tmp_path: Path, threads: int) -> None:
    """The batches before a damaged sample are delivered, then an error names shard, key and field."""
    with ShardWriter(str(tmp_path / "bad"), prefix="bad", max_samples=10) as writer:
        for number in range(20):
            text = b"\xff\xfe\xff" if number == 13 else b"fine"
            writer.write({"__key__": f"k{number}", "txt": text})
    loader = load(str(tmp_path / "bad"), shuffle=None, options=LoaderOptions(threads=threads))
    delivered = []
    with pytest.raises(DecodeError) as caught:
        delivered.extend(batch.keys for batch in loader)
    assert len(delivered) == 3
    assert (caught.value.key, caught.value.field) == ("k13", "txt")
    assert all(word in str(caught.value) for word in ("bad-000001.tar", "k13", "txt"))
    assert loader.state_dict()["position"] == 12


def test_threads_end_with_the_pass(load: Load) -> None:
    """Threads run during a pass and are gone after it, after ``close``, and when the iterator is dropped."""
    loader = load()
    iterator = iter(loader)
    next(iterator)
    assert our_threads()
    loader.close()
    assert not our_threads()
    assert next(iterator, None) is None
    for _ in loader:
        break
    gc.collect()
    assert not our_threads()


def test_second_iterator_ends_the_first(load: Load) -> None:
    """Only one iterator of a loader is alive; the older one ends instead of mixing two epochs."""
    loader = load()
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(first, None) is None
    assert next(second).keys


def test_kept_batches_stay_valid(load: Load) -> None:
    """A caller that keeps batches keeps their pictures: memory is reused only when nobody looks at it."""
    from janus_shards.decode.image import ImageTransform

    transform = {"png": ImageTransform(size=16, fit="stretch", engine="pillow")}
    kept = list(load(fields=("png",), transform=transform))
    for batch in kept:
        numbers = [int(key[1:]) % 256 for key in batch.keys]
        assert batch["png"].shape == (4, 3, 16, 16)
        assert (batch["png"] == np.array(numbers, np.uint8)[:, None, None, None]).all()


def test_dropped_batches_are_reused(load: Load) -> None:
    """Memory of batches that the consumer lets go is used again instead of growing."""
    from janus_shards.decode.image import ImageTransform

    loader = load(fields=("png",), transform={"png": ImageTransform(size=16, fit="stretch", engine="pillow")})
    places = [batch["png"].__array_interface__["data"][0] for batch in loader]
    assert len(set(places)) < len(places) / 3
    assert all(place % 128 == 0 for place in places)


def test_decode_false_gives_stored_bytes(load: Load, dataset: Dataset) -> None:
    """``decode=False`` delivers the bytes of every field as stored."""
    batch = next(iter(load(fields=("png", "txt"), options=LoaderOptions(decode=False))))
    sample = dataset.by_key(batch.keys[0])
    assert batch["png"][0] == sample.raw("png")
    assert batch["txt"][0] == sample.raw("txt")
