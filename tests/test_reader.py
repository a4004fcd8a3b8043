import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_shards.catalog import Catalog, load_manifest
from janus_shards.errors import ConfigError, DecodeError, MissingFieldError
from janus_shards.reader import Dataset, open_dataset
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta
from janus_shards.storage.memory import MemoryStorage
from janus_shards.writer import ShardWriter
from tests.growing import append_shards

NUM_SAMPLES = 45
# Where one `bin` begins behind the last: its own bytes in blocks of 512, and the headers and bytes of txt and cls.
SAMPLE_BYTES = 512 + 5120 + 1024 + 1024


def write(root: Path, *, prefix: str = "part", first: int = 0, count: int = NUM_SAMPLES) -> Path:
    """A data set of 10 samples a shard: ``bin`` lies in the shard, ``txt``, ``cls`` a rare ``note`` in the index."""
    with ShardWriter(str(root), prefix=prefix, max_samples=10) as writer:
        for number in range(first, first + count):
            sample: dict[str, Any] = {"bin": bytes([number]) * 5000, "txt": f"text {number}", "cls": number}
            if number % 9 == 4:
                sample["note"] = b"rare"
            columns = {"number": number, "even": number % 2 == 0, "half": number / 2, "name": f"n{number}"}
            writer.write({"__key__": f"k{number:03d}", **sample}, columns=columns)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the data set; not to be changed."""
    return write(tmp_path_factory.mktemp("reader") / "train")


@pytest.fixture(scope="module")
def dataset(root: Path) -> Dataset:
    """The data set, opened."""
    return open_dataset(str(root))


class CountingStorage(MemoryStorage):
    """A remote store that notes what is read: name, start and stop, or name alone for a HEAD."""

    is_local = False

    def __init__(self, root: Path) -> None:
        super().__init__("fake://bucket/train")
        self.asked: list[tuple[Any, ...]] = []
        for path in root.iterdir():
            self.put(path.name, path.read_bytes())
        self.asked.clear()

    def head(self, name: str) -> ObjectMeta:
        """Note, then answer."""
        self.asked.append((name,))
        return super().head(name)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Note, then answer."""
        self.asked.append((name, start, stop))
        return super().read(name, start, stop, etag=etag)

    def ranges(self) -> list[tuple[str, int, int]]:
        """Ranges of shards that were read since the last call; forgets everything."""
        found = [(name, *rest) for name, *rest in self.asked if name.endswith(".tar") and rest]
        self.asked.clear()
        return found


@pytest.fixture
def store(root: Path) -> CountingStorage:
    """The data set's objects in a remote store."""
    return CountingStorage(root)


@pytest.fixture
def remote(store: CountingStorage) -> Dataset:
    """The data set, opened over that store."""
    return Dataset(Catalog(load_manifest(store), storage=store, index_storage=store))


def ids(dataset: Dataset) -> list[int]:
    """Ids of all samples of a data set or view."""
    return [sample.sample_id for sample in dataset]


def test_positions(dataset: Dataset) -> None:
    """Samples count from 0 over all shards, and from -1 backwards; iteration gives all in order."""
    assert [dataset[at].key for at in (0, 9, 10, 44, -1, -45)] == ["k000", "k009", "k010", "k044", "k044", "k000"]
    assert [sample.key for sample in dataset] == [f"k{number:03d}" for number in range(NUM_SAMPLES)]
    assert (dataset[np.int64(7)].sample_id, type(dataset[np.int64(7)].sample_id)) == (7, int)
    assert len(dataset) == NUM_SAMPLES


@pytest.mark.parametrize(
    ("position", "error"),
    [(45, IndexError), (-46, IndexError), (1.0, TypeError), ("k000", TypeError), (slice(2), TypeError)],
)
def test_positions_that_are_none(dataset: Dataset, position: Any, error: type[Exception]) -> None:
    """Outside is an ``IndexError``, as the iteration protocol needs it; anything but an integer a ``TypeError``."""
    with pytest.raises(error):
        dataset[position]


def test_what_a_data_set_says_of_itself(dataset: Dataset, root: Path) -> None:
    """Fields, columns with their types, root, and a fingerprint that a copy has too."""
    assert dataset.fields == ("bin", "cls", "note", "txt")
    assert dataset.columns == {"number": "int64", "even": "bool", "half": "float64", "name": "str"}
    assert dataset.url == str(root)
    assert repr(dataset) == f"Dataset('{root}', 45 samples in 5 shards)"
    assert len(bytes.fromhex(dataset.fingerprint)) == 32


def test_copies_have_the_same_fingerprint(dataset: Dataset, remote: Dataset) -> None:
    """It is a matter of the contents, not of the place."""
    assert remote.fingerprint == dataset.fingerprint
    assert remote.where([3, 4]).fingerprint == dataset.where([4, 3]).fingerprint


def test_samples_are_lazy(remote: Dataset, store: CountingStorage) -> None:
    """Opening reads the manifest, a sample its index, a field of the index nothing, any other field its own bytes."""
    assert [name for name, *_ in store.asked] == ["manifest.msgpack", "manifest-000001.msgpack"]
    store.asked.clear()
    sample = remote[13]
    assert (sample.key, list(sample), len(sample)) == ("k013", ["bin", "txt", "cls", "note"], 4)
    assert [name for name, *_ in store.asked] == ["part-000001.idx"]
    assert (sample["txt"], sample["cls"], remote[17]["txt"]) == ("text 13", 13, "text 17")
    assert len(store.asked) == 1
    assert sample.raw("bin") == bytes([13]) * 5000 == sample["bin"]
    assert [stop - start for _, start, stop in store.ranges()] == [5000]


def test_column_and_views_read_indexes_only(remote: Dataset, store: CountingStorage) -> None:
    """Choosing samples by metadata reads no byte of a shard, and a view nothing at all."""
    mask = remote.column("number") > 30
    store.asked.clear()
    view = remote.where(mask)
    assert (len(view), store.asked) == (14, [])


def test_by_key(dataset: Dataset) -> None:
    """Finds the sample, or says which key is missing where."""
    assert dataset.by_key("k031").sample_id == 31
    with pytest.raises(KeyError) as caught:
        dataset.by_key("k999")
    assert str(caught.value) == f"{dataset.url}: no sample has the key 'k999'"
    assert isinstance(caught.value, MissingFieldError)
    assert (caught.value.kind, caught.value.key) == ("missing_key", "k999")


def test_by_key_of_a_view(dataset: Dataset) -> None:
    """A view knows its own samples only."""
    view = dataset.where([3, 31])
    assert view.by_key("k031").sample_id == 31
    with pytest.raises(KeyError, match="k004"):
        view.by_key("k004")


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [("number", "int64", 7), ("even", "bool", False), ("half", "float64", 3.5), ("name", "object", "n7")],
)
def test_columns(dataset: Dataset, name: str, dtype: str, expected: object) -> None:
    """A column has one value a sample, in order, of the type it was written with; of a view, those of its samples."""
    column = dataset.column(name)
    assert (column.shape, str(column.dtype), column.tolist()[7]) == ((NUM_SAMPLES,), dtype, expected)
    view = dataset.where([7, 2, 44])
    assert view.column(name).tolist() == [column.tolist()[at] for at in (2, 7, 44)]
    empty = dataset.where([]).column(name)
    assert (empty.shape, str(empty.dtype)) == ((0,), dtype)


def test_unknown_column(dataset: Dataset) -> None:
    """The error names those there are."""
    with pytest.raises(ConfigError, match=r"one of the columns \['even', 'half', 'name', 'number'\], found 'width'"):
        dataset.column("width")


def test_where_with_masks_and_ids(dataset: Dataset) -> None:
    """A mask counts over the data set, ids are those of the base, in any order; both give ascending ids."""
    assert ids(dataset.where(dataset.column("name") == "n7")) == [7]
    assert ids(dataset.where([30, 2, 2, 11])) == [2, 11, 30]
    assert ids(dataset.where(np.array([5], np.uint8))) == [5]
    assert ids(dataset.where([])) == []
    assert len(dataset.where(np.zeros(NUM_SAMPLES, bool))) == 0


def test_views_of_views(dataset: Dataset) -> None:
    """A mask over a view counts its samples, ids stay those of the base, and nothing outside comes in."""
    odd = dataset.where(~dataset.column("even"))
    last = odd.where(odd.column("number") >= 35)
    assert ids(last) == [35, 37, 39, 41, 43]
    assert (last[0].key, last[-1].key, len(last)) == ("k035", "k043", 5)
    assert ids(last.where([37, 43])) == [37, 43]
    assert last.fingerprint == dataset.where([35, 37, 39, 41, 43]).fingerprint
    with pytest.raises(ConfigError, match="sample id 36 is not in this data set"):
        last.where([37, 36])


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (np.ones(44, bool), r"expected a mask of shape \(45,\), found \(44,\)"),
        ([True], r"found \(1,\)"),
        ([45], "sample id 45 is not in"),
        ([-1], "sample id -1 is not in"),
        ([1.5], "integers in one dimension, found float64"),
        (["k001"], "integers in one dimension"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (3, r"shape \(\)"),
        ([None], "integers"),
    ],
)
def test_where_refuses_what_is_neither_mask_nor_ids(dataset: Dataset, chosen: Any, words: str) -> None:
    """The error says what was expected and found, and on which data set."""
    with pytest.raises(ConfigError, match=words) as caught:
        dataset.where(chosen)
    assert dataset.url in str(caught.value)


def test_take(dataset: Dataset) -> None:
    """The same seed takes the same samples, of which fewer are a part; another takes others."""
    chosen = ids(dataset.take(20, seed=3))
    assert (len(set(chosen)), chosen) == (20, sorted(chosen))
    assert ids(dataset.take(20, seed=3)) == chosen != ids(dataset.take(20, seed=4))
    assert set(ids(dataset.take(5, seed=3))) < set(chosen)
    assert (len(dataset.take(0)), len(dataset.take(NUM_SAMPLES))) == (0, NUM_SAMPLES)
    view = dataset.where(dataset.column("even"))
    assert set(ids(view.take(6))) < set(ids(view))
    for n in (-1, 46):
        with pytest.raises(ConfigError, match="expected 0 to 45 samples"):
            dataset.take(n)


@settings(max_examples=25)
@given(fraction=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_split_is_disjoint_and_complete(dataset: Dataset, fraction: float, seed: int) -> None:
    """Each sample is on exactly one side, always on the same one."""
    first, second = dataset.split(fraction, seed=seed)
    assert sorted(ids(first) + ids(second)) == list(range(NUM_SAMPLES))
    assert ids(dataset.split(fraction, seed=seed)[0]) == ids(first)


def test_split_sizes(dataset: Dataset) -> None:
    """The ends are exact, and between them more fraction means a larger first side that holds the smaller ones."""
    sides = [set(ids(dataset.split(fraction, seed=5)[0])) for fraction in (0, 0.2, 0.5, 0.8, 1)]
    assert (len(sides[0]), len(sides[-1])) == (0, NUM_SAMPLES)
    assert all(smaller <= larger for smaller, larger in itertools.pairwise(sides))
    assert 10 < len(sides[2]) < 35
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="expected a fraction from 0 to 1"):
            dataset.split(fraction)


def test_split_is_stable_when_the_data_set_grows(tmp_path: Path) -> None:
    """A sample stays on its side, so nothing of the validation set gets into training later."""
    base = write(tmp_path / "train")
    before = [{sample.key for sample in side} for side in open_dataset(str(base)).split(0.7, seed=1)]
    append_shards(base, write(tmp_path / "more", prefix="more", first=100, count=30))
    after = [{sample.key for sample in side} for side in open_dataset(str(base)).split(0.7, seed=1)]
    assert before[0] < after[0]
    assert before[1] < after[1]
    assert len(after[0] | after[1]) == 75


def test_read_gives_the_order_asked(dataset: Dataset) -> None:
    """Also over shards, and with repeats."""
    asked = [31, 2, 44, 2, 30]
    samples = dataset.read(asked)
    assert [sample.sample_id for sample in samples] == asked
    assert [sample.raw("bin")[0] for sample in samples] == asked
    assert dataset.read([]) == []


def test_read_merges_neighbours(remote: Dataset, store: CountingStorage) -> None:
    """Rows side by side come in one request, rows far apart in two, and each shard has its own."""
    samples = remote.read([13, 11, 12, 19, 31])
    ranges = store.ranges()
    assert [name for name, *_ in ranges] == ["part-000001.tar", "part-000001.tar", "part-000003.tar"]
    assert [stop - start for _, start, stop in ranges] == [2 * SAMPLE_BYTES + 5000, 5000, 5000]
    assert [sample["bin"][0] for sample in samples] == [13, 11, 12, 19, 31]
    assert store.asked == []


def test_read_of_some_fields(remote: Dataset, store: CountingStorage) -> None:
    """Only these are read at once; any other field of the same samples is read when it is used."""
    samples = remote.read([3, 4], fields=("txt",))
    assert store.ranges() == []
    assert [sample["txt"] for sample in samples] == ["text 3", "text 4"]
    assert samples[1]["bin"][0] == 4
    assert len(store.ranges()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([45],), "sample ids from 0 to 44"),
        (([-1],), "sample ids from 0 to 44"),
        (([0.5],), "as integers"),
        ((np.ones(45, bool),), "as integers"),
        (([0], ("jpg",)), "has no field 'jpg'; it has bin, cls, note, txt"),
        (([0], "txt"), r"expected several names, such as fields=\('txt',\)"),
    ],
)
def test_read_refuses_what_is_not_there(dataset: Dataset, arguments: tuple[Any, ...], words: str) -> None:
    """Ids outside, and fields that no sample has, are errors before anything is read."""
    with pytest.raises(ConfigError, match=words):
        dataset.read(arguments[0], fields=arguments[1] if len(arguments) > 1 else None)


@pytest.mark.parametrize("get", [lambda ds: ds[0], lambda ds: ds.read([0])[0]], ids=["item", "read"])
def test_missing_field(dataset: Dataset, get: Callable[[Dataset], Any]) -> None:
    """It is an error with shard, key and field, and a ``KeyError``, so that ``get`` and ``in`` work."""
    sample = get(dataset)
    with pytest.raises(MissingFieldError, match="the sample has bin, txt, cls") as caught:
        sample["note"]
    assert (caught.value.shard, caught.value.key, caught.value.field) == ("part-000000.tar", "k000", "note")
    assert (sample.get("note"), "note" in sample, "note" in dataset[4]) == (None, False, True)
    with pytest.raises(MissingFieldError):
        sample.raw("note")


def test_undecodable_field(tmp_path: Path) -> None:
    """The error says shard, key and field; the bytes stay at hand."""
    with ShardWriter(str(tmp_path / "bad"), prefix="bad") as writer:
        writer.write({"__key__": "k", "json": b"{", "jpg": b"no picture"})
    sample = open_dataset(str(tmp_path / "bad"))[0]
    for field in ("json", "jpg"):
        with pytest.raises(DecodeError) as caught:
            sample[field]
        assert (caught.value.shard, caught.value.key, caught.value.field) == ("bad-000000.tar", "k", field)
    assert sample.raw("json") == b"{"


def test_fields_of_no_length(tmp_path: Path) -> None:
    """They are there, and empty: in the index, in the shard, and between others in one range."""
    with ShardWriter(str(tmp_path / "out"), prefix="out", inline_bytes=0) as writer:
        for number in range(3):
            writer.write({"__key__": f"k{number}", "txt": "" if number == 1 else "full", "bin": b""})
    dataset = open_dataset(str(tmp_path / "out"))
    assert [sample["txt"] for sample in dataset.read([0, 1, 2])] == ["full", "", "full"]
    assert [sample.raw("bin") for sample in dataset] == [b""] * 3


def test_pickled_data_sets(dataset: Dataset) -> None:
    """A copy opens its own files and has the same samples; what was read stays behind, so it is small."""
    view = dataset.where([3, 31])
    view.by_key("k003")
    dataset.by_key("k003")
    arrived = pickle.loads(pickle.dumps(view))
    assert [sample["txt"] for sample in arrived] == ["text 3", "text 31"]
    assert arrived.fingerprint == view.fingerprint
    assert arrived.by_key("k031").raw("bin") == bytes([31]) * 5000
    assert len(pickle.dumps(dataset)) < 3000
