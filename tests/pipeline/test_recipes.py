import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from janus_shards.decode.image import ImageTransform, image_size
from janus_shards.decode.transform import TensorSpec
from janus_shards.errors import ConfigError, DecodeError, MissingFieldError, SampleError
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.world import World
from janus_shards.writer import ShardWriter

Load = Callable[..., Loader]


class Sides:
    """A field transform: height and width of a picture; its random part adds a number below a million."""

    fingerprint = "sides"
    shape = (2,)
    dtype = np.int64  # as users write it; the protocol says np.dtype

    def apply(self, data: bytes, out: NDArray[np.int64]) -> None:
        """Width, height."""
        out[:] = image_size(data)


class RandomSides(Sides):
    """The same with a random part."""

    def augment(self, out: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Add a random number."""
        out += rng.integers(1_000_000)


class Numbered:
    """A sample transform: the number of the caption, and as text length."""

    fingerprint = "numbered"

    def __init__(self) -> None:
        self.outputs = {"number": TensorSpec((), np.dtype(np.int32)), "wide": TensorSpec((3,), np.dtype(np.float32))}

    def apply(self, sample: Mapping[str, Any], out: Mapping[str, NDArray[Any]]) -> None:
        """Write both arrays."""
        number = int(sample["txt"].split()[1])
        out["number"][...] = number
        out["wide"][:] = number / 2


class RandomNumbered(Numbered):
    """The same with a random part."""

    def augment(self, out: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> None:
        """Add a random number."""
        out["number"][...] += rng.integers(1_000_000, dtype=np.int32)


def with_rng(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A function that asks for a generator."""
    return {"drawn": rng.random(4)}


def with_globals(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A function that draws from every global generator."""
    drawn = [random.random(), np.random.random(), float(torch.rand(()))]  # noqa: NPY002  the point of the test
    return {"drawn": np.array(drawn)}


RANDOM_TRANSFORMS = {
    "field": (("png",), {"png": RandomSides()}, "png"),
    "sample": (("txt",), RandomNumbered(), "number"),
    "function with rng": (("txt",), with_rng, "drawn"),
    "function with global generators": (("txt",), with_globals, "drawn"),
}


def by_key(loader: Loader, name: str) -> dict[str, list[float]]:
    """Values of one name by the key of their sample, over one pass."""
    return {
        key: np.atleast_1d(value).tolist()
        for batch in loader
        for key, value in zip(batch.keys, batch[name], strict=True)
    }


def write(root: Path, samples: list[dict[str, Any]]) -> str:
    """A data set of these samples, with keys ``k0``, ``k1``, …"""
    with ShardWriter(str(root), prefix="own", max_samples=4) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"k{number}", **sample})
    return str(root)


def test_mapping_gives_arrays_for_its_fields(load: Load) -> None:
    """A field with a transform becomes an array of its shape and dtype; the others are decoded as ever."""
    batch = next(iter(load(fields=("cls", "png", "txt"), transform={"png": Sides()})))
    numbers = [int(key[1:]) for key in batch.keys]
    assert list(batch) == ["cls", "png", "txt"]
    assert (batch["png"].dtype, batch["png"].tolist()) == (np.int64, [[8, 6 + number % 5] for number in numbers])
    assert batch["txt"] == [f"caption {number}" for number in numbers]
    assert batch["cls"].tolist() == [number % 7 for number in numbers]


def test_sample_transform_gives_its_outputs(load: Load) -> None:
    """A sample transform decides which arrays there are; its values belong to the keys of the batch."""
    batch = next(iter(load(transform=Numbered())))
    numbers = [int(key[1:]) for key in batch.keys]
    assert list(batch) == ["number", "wide"]
    assert (batch["number"].dtype, batch["number"].tolist()) == (np.int32, numbers)
    assert batch["wide"].tolist() == [[number / 2] * 3 for number in numbers]


@pytest.mark.parametrize("kind", RANDOM_TRANSFORMS)
def test_random_values_depend_on_sample_and_epoch_alone(load: Load, kind: str) -> None:
    """What a sample draws is the same on any world, thread count and batch size, and another in the next epoch."""
    fields, transform, name = RANDOM_TRANSFORMS[kind]

    def open_one(rank: int = 0, world_size: int = 1, threads: int = 1, batch_size: int = 7) -> Loader:
        return load(
            fields=fields,
            transform=transform,
            batch_size=batch_size,
            world=World(rank=rank, world_size=world_size),
            options=LoaderOptions(threads=threads, tail="uneven"),
        )

    reference = open_one()
    first, second = by_key(reference, name), by_key(reference, name)
    assert len(first) == 203
    assert all(first[key] != second[key] for key in first)
    assert len({tuple(values) for values in first.values()}) > 195
    assert by_key(open_one(threads=4, batch_size=20), name) == first
    ranks = [by_key(open_one(rank, 3, threads=2), name) for rank in range(3)]
    assert ranks[0] | ranks[1] | ranks[2] == first


@pytest.mark.parametrize("kind", RANDOM_TRANSFORMS)
def test_random_values_are_the_same_after_resuming(load: Load, kind: str) -> None:
    """A loader that goes on in mid-epoch draws what the uninterrupted one would have."""
    fields, transform, name = RANDOM_TRANSFORMS[kind]
    loader, other = (load(fields=fields, transform=transform, batch_size=16) for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    other.load_state_dict(loader.state_dict())
    for expected, found in zip(iterator, other, strict=True):
        assert (found.keys, found[name].tolist()) == (expected.keys, expected[name].tolist())


def test_two_fields_of_a_sample_get_the_same_random_numbers(load: Load, tmp_path: Path) -> None:
    """A picture and its mask are augmented alike."""
    picture = np.zeros((4, 6, 3), np.uint8)
    root = write(tmp_path / "own", [{"png": picture, "seg.png": picture} for _ in range(8)])
    transform = {"png": RandomSides(), "seg.png": RandomSides()}
    for batch in load(root, fields=("png", "seg.png"), transform=transform):
        assert (batch["png"] == batch["seg.png"]).all()


def test_function_without_rng_runs_in_the_consumers_thread(load: Load) -> None:
    """It sees the samples one at a time, in delivery order, in the thread that asks for the batches."""
    seen: list[tuple[int, str]] = []

    def note(sample: Any) -> dict[str, Any]:
        seen.append((threading.get_ident(), sample.key))
        return {"txt": sample["txt"]}

    delivered = [key for batch in load(transform=note, options=LoaderOptions(threads=4)) for key in batch.keys]
    assert seen == [(threading.get_ident(), key) for key in delivered]


def test_function_with_rng_runs_on_workers(load: Load) -> None:
    """It keeps the consumer's thread free."""
    threads: set[str] = set()

    def note(sample: Any, rng: np.random.Generator) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        return {"txt": sample["txt"]}

    assert next(iter(load(transform=note)))["txt"][0].startswith("caption")
    assert all(name.startswith("janus-decode") for name in threads)


def test_global_generators_are_left_as_they_were(load: Load) -> None:
    """Seeding them for each sample does not disturb the caller's own random numbers."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  the point of the test
    torch.manual_seed(1)
    expected = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    next(iter(load(transform=with_globals)))
    assert expected == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, "int64", (4,)),
        (0.5, "float64", (4,)),
        (True, "bool", (4,)),
        (np.float32(0.5), "float32", (4,)),
        (np.zeros((2, 3), np.uint8), "uint8", (4, 2, 3)),
        (np.zeros((), np.int16), "int16", (4,)),
        (torch.zeros(5, dtype=torch.float16), "float16", (4, 5)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple | str) else "",
)
@pytest.mark.parametrize("takes_rng", [False, True])
def test_numbers_and_arrays_of_one_shape_are_stacked(
    load: Load, value: object, dtype: str, shape: tuple[int, ...], takes_rng: bool
) -> None:
    """A function's numbers, arrays and tensors become one array a batch, of their own dtype."""
    transform = (lambda sample, rng: {"x": value}) if takes_rng else (lambda sample: {"x": value})
    found = next(iter(load(transform=transform)))["x"]
    assert (str(found.dtype), found.shape) == (dtype, shape)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        b"bytes",
        None,
        [1, 2],
        (1, 2),
        {"a": 1},
        np.str_("text"),
        2**70,
        np.array(["a"]),
        Image.new("RGB", (2, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_else_stays_a_list(load: Load, value: object) -> None:
    """What is no number or array of numbers comes as the list of what the function returned."""
    assert next(iter(load(transform=lambda sample: {"x": value})))["x"] == [value] * 4


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda number: {"x": np.zeros(number + 1)}, ("'x'", "shape", "cannot be stacked")),
        (lambda number: {"x": 1, f"y{number}": 1}, ("same names", "['x', 'y")),
        (lambda number: None, ("expected a mapping", "NoneType")),
        (lambda number: [1], ("expected a mapping", "a list")),
        (lambda number: {"x": torch.zeros(1, dtype=torch.bfloat16)}, ("'x'", "Tensor", "BFloat16")),
        (lambda number: {"x": torch.zeros(1, requires_grad=True)}, ("'x'", "Tensor", "grad")),
    ],
    ids=["shapes", "names", "None", "list", "bfloat16", "gradient"],
)
def test_results_that_make_no_batch_are_refused(
    load: Load, result: Callable[[int], object], words: tuple[str, ...]
) -> None:
    """The error says what does not fit, and at which key."""
    loader = load(transform=lambda sample: result(sample.sample_id))
    with pytest.raises(ConfigError) as caught:
        next(iter(loader))
    assert all(word in str(caught.value) for word in (*words, str(caught.value.key)))


def test_lists_of_arrays_need_not_fit(load: Load) -> None:
    """The advice of that error works: wrapped in a list, arrays of any shapes are delivered."""
    batch = next(iter(load(transform=lambda sample: {"x": [np.zeros(sample.sample_id)]})))
    assert [len(value[0]) for value in batch["x"]] == batch.sample_ids.tolist()


SPARSE = [{"txt": "a", "cls": 1, "png": np.zeros((4, 4, 3), np.uint8)}, {"txt": "b"}]


@pytest.mark.parametrize("transform", [None, {"png": Sides()}, Numbered(), lambda sample: {"x": sample["png"]}])
def test_missing_field_raises(load: Load, tmp_path: Path, transform: object) -> None:
    """By default a sample without a field that is used is an error that names shard, key and field."""
    root = write(tmp_path / "own", SPARSE if not isinstance(transform, Numbered) else [{"txt": "x 1"}, {"cls": 1}])
    field = "txt" if isinstance(transform, Numbered) else "png"
    loader = load(root, fields=(field,), transform=transform, shuffle=None, batch_size=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(MissingFieldError) as caught:
        next(iterator)
    assert (caught.value.key, caught.value.field) == ("k1", field)
    assert "own-000000.tar" in str(caught.value)


def test_missing_fields_may_be_delivered_as_such(load: Load, tmp_path: Path) -> None:
    """With ``on_missing="none"`` they are zeros or ``None``, and ``present`` tells them from zeros that are there."""
    options = LoaderOptions(threads=1, on_missing="none")
    arguments = {"fields": ("txt", "cls", "png"), "shuffle": None, "batch_size": 2, "options": options}
    root = write(tmp_path / "own", SPARSE)
    batch = next(iter(load(root, transform={"png": Sides()}, **arguments)))
    assert (batch["png"].tolist(), batch["cls"].tolist(), batch["txt"]) == ([[4, 4], [0, 0]], [1, 0], ["a", "b"])
    present = {"txt": [True, True], "cls": [True, False], "png": [True, False]}
    assert {name: flags.tolist() for name, flags in batch.present.items()} == present
    assert next(iter(load(root, **arguments)))["png"][1] is None


@pytest.mark.parametrize("transform", [lambda sample: {"n": len(sample)}, lambda sample, rng: {"n": len(sample)}])
def test_present_is_known_for_functions_too(load: Load, tmp_path: Path, transform: object) -> None:
    """A function sees only the fields that a sample has, and ``present`` says which of the requested ones."""
    root = write(tmp_path / "own", SPARSE)
    options = LoaderOptions(threads=1, on_missing="none")
    loader = load(root, fields=("txt", "png"), transform=transform, shuffle=None, batch_size=2, options=options)
    batch = next(iter(loader))
    assert batch["n"].tolist() == [2, 1]
    assert batch.present["png"].tolist() == [True, False]
    assert batch.present["txt"].tolist() == [True, True]


@pytest.mark.parametrize("transform", [None, lambda sample: dict(sample), lambda sample, rng: dict(sample)])
def test_decoders_of_the_caller(load: Load, transform: object) -> None:
    """They win over the built-in ones, for fields and inside the samples that a function gets."""
    options = LoaderOptions(threads=1, decoders={"txt": lambda data: f"<{bytes(data).decode()}>"})
    batch = next(iter(load(transform=transform, options=options)))
    assert batch["txt"] == [f"<caption {number}>" for number in batch.sample_ids.tolist()]


def test_failing_decoder_of_the_caller(load: Load) -> None:
    """Whatever it raises becomes a decode error with shard, key, field and the cause."""

    def fail(data: object) -> object:
        raise ValueError("no such thing")

    loader = load(shuffle=None, options=LoaderOptions(threads=1, decoders={"txt": fail}))
    with pytest.raises(DecodeError, match=r"part-000000.tar.*'k0000'.*ValueError: no such thing") as caught:
        next(iter(loader))
    assert (caught.value.key, caught.value.field) == ("k0000", "txt")


class Failing(Sides):
    """A field transform with a fault."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error

    def apply(self, data: bytes, out: NDArray[np.int64]) -> None:
        """Fail."""
        raise self.error()


class FailingSample(Numbered):
    """A sample transform with a fault."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.error = error

    def apply(self, sample: Mapping[str, Any], out: Mapping[str, NDArray[Any]]) -> None:
        """Fail."""
        raise self.error()


def failing(kind: str, error: Callable[[], Exception]) -> object:
    """A transform of some kind that raises a new error for each sample."""

    def plain(sample: object) -> dict[str, Any]:
        raise error()

    def random(sample: object, rng: object) -> dict[str, Any]:
        raise error()

    return {"field": {"png": Failing(error)}, "sample": FailingSample(error), "plain": plain, "random": random}[kind]


@pytest.mark.parametrize("kind", ["field", "sample", "plain", "random"])
def test_faults_of_the_callers_code_name_the_sample(load: Load, kind: str) -> None:
    """The exception arrives as it was raised, with a note that says at which key of which shard."""
    loader = load(fields=("png",), transform=failing(kind, lambda: ZeroDivisionError("mine")), shuffle=None)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        next(iter(loader))
    assert "'k0000'" in caught.value.__notes__[0]
    assert "part-000000.tar" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", ["field", "sample", "plain", "random"])
def test_a_stray_stop_iteration_does_not_end_the_epoch(load: Load, kind: str) -> None:
    """``next()`` of something empty inside a transform is an error, not the end of the data."""
    loader = load(fields=("png",), transform=failing(kind, StopIteration), shuffle=None)
    with pytest.raises(RuntimeError, match=r"'k0000' of shard .*part-000000.tar raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("kind", ["field", "sample", "plain", "random"])
def test_a_bad_sample_reported_by_the_callers_code(load: Load, kind: str) -> None:
    """A ``SampleError`` of the caller learns its shard and key, and counts as a bad sample."""
    arguments = {"fields": ("png",), "transform": failing(kind, lambda: SampleError("too dark")), "shuffle": None}
    with pytest.raises(SampleError, match="too dark") as caught:
        next(iter(load(**arguments)))
    assert caught.value.key == "k0000"
    assert "part-000000.tar" in str(caught.value.shard)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ({"jpg": Sides()}, "'jpg' is not among"),
        ({"png": lambda data: data}, "expected a FieldTransform .* found a function"),
        ({"png": ImageTransform}, "found the class ImageTransform"),
        ({"png": None}, "found a NoneType"),
        (ImageTransform(size=8), "expected a mapping from field"),
        (ImageTransform, "found the class ImageTransform"),
        (Numbered, r"takes \(\)"),
        (3, "found a int"),
        ("png", "found a str"),
        ([Sides()], "found a list"),
        (lambda sample, number: {}, r"takes \(sample, number\)"),
    ],
)
def test_what_is_no_transform_is_refused_at_opening(load: Load, transform: object, words: str) -> None:
    """Before anything is read, with what was expected and found."""
    with pytest.raises(ConfigError, match=words):
        load(fields=("png",), transform=transform)


def test_a_transform_without_a_usable_shape_is_refused(load: Load) -> None:
    """Before anything is read, naming the field."""
    sides = Sides()
    sides.dtype = "colour"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="'png': expected a shape and a dtype"):
        load(fields=("png",), transform={"png": sides})


@pytest.mark.parametrize(
    ("transform", "name", "shape"),
    [
        (None, "txt", None),
        (Numbered(), "wide", (0, 3)),
        (lambda sample: {"x": np.zeros((2, 2)), "n": 1, "t": "text"}, "x", (0, 2, 2)),
        (lambda sample, rng: {"x": np.float32(1), "t": []}, "x", (0,)),
    ],
)
def test_empty_batch_of_an_uneven_tail(load: Load, transform: object, name: str, shape: tuple[int, ...] | None) -> None:
    """A rank that has nothing in the last step gets a batch with the same names and no rows."""
    options = LoaderOptions(threads=1, tail="uneven")
    loaders = [
        load(transform=transform, batch_size=7, world=World(rank=rank, world_size=8), options=options)
        for rank in range(8)
    ]
    last = [list(loader)[-1] for loader in loaders]
    short = min(last, key=len)
    assert len(short) == len(short[name]) < 7
    empties = [batch for batch in last if not len(batch)]
    assert all(set(batch) == set(last[0]) for batch in last)
    for batch in empties:
        assert len(batch[name]) == 0
        assert shape is None or batch[name].shape == shape
