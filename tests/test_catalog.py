import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from janus_shards.catalog import Catalog, load_manifest, open_catalog
from janus_shards.errors import (
    ConfigError,
    DecodeError,
    FormatError,
    IndexFormatError,
    IntegrityError,
    ManifestError,
    ObjectNotFoundError,
)
from janus_shards.format.manifest import ManifestPointer
from janus_shards.format.naming import MANIFEST_NAME, generation_name
from janus_shards.reader import Dataset, open_dataset
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.memory import MemoryStorage
from janus_shards.storage.urls import open_storage
from janus_shards.writer import ShardWriter
from tests.conftest import OpenFaultServer, S3Server
from tests.growing import append_shards, publish


def write(root: Path, *, prefix: str = "part", count: int = 25) -> Path:
    """A data set of 10 samples a shard: ``bin`` of 5,000 bytes in the shard, and ``txt`` in the index."""
    with ShardWriter(str(root), prefix=prefix, max_samples=10) as writer:
        for number in range(count):
            writer.write({"__key__": f"{prefix}{number:03d}", "bin": bytes([number]) * 5000, "txt": f"text {number}"})
    return root


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three shards; not to be changed."""
    return write(tmp_path_factory.mktemp("catalog") / "train")


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(original, tmp_path / "train"))


def test_nothing_there(tmp_path: Path, root: Path) -> None:
    """A missing folder, a file and a folder without a manifest are told apart, with what to do."""
    with pytest.raises(ObjectNotFoundError, match=r"nowhere: there is no such folder.*`janus-shards pack`") as caught:
        open_dataset(str(tmp_path / "nowhere"))
    assert caught.value.kind == "no_manifest"
    with pytest.raises(ObjectNotFoundError, match="there is no such folder"):
        open_dataset(str(root / "part-000000.tar"))
    (root / MANIFEST_NAME).unlink()
    with pytest.raises(ObjectNotFoundError, match=r"found no manifest.msgpack.*`janus-shards index`"):
        open_dataset(str(root))


def test_every_damaged_byte_of_the_pointer_is_noticed(root: Path) -> None:
    """Whatever is flipped or cut off is a format error that names the file."""
    whole = (root / MANIFEST_NAME).read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for data in [*damaged, *(whole[:length] for length in range(len(whole))), whole + b"\0"]:
        (root / MANIFEST_NAME).write_bytes(data)
        with pytest.raises(FormatError, match=MANIFEST_NAME):
            open_dataset(str(root))


def test_damaged_generation(root: Path) -> None:
    """It is noticed by the digest in the pointer, and without the pointer by its own checksum."""
    path = root / generation_name(1)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    for generation in (None, 1):
        with pytest.raises(ManifestError, match=path.name):
            open_dataset(str(root), generation=generation)


def test_pointer_to_a_generation_that_is_missing(root: Path) -> None:
    """A copy that was broken off is told as such, not as a folder without a data set."""
    (root / generation_name(1)).unlink()
    with pytest.raises(ManifestError, match=r"names manifest-000001.msgpack, which does not exist"):
        open_dataset(str(root))


def test_pointer_with_another_digest(root: Path) -> None:
    """A generation that is whole but is not the one that was published is refused."""
    publish(root, load_manifest(LocalStorage(root)), sha256=bytes(32))
    with pytest.raises(ManifestError, match=r"expected the SHA-256 that manifest.msgpack names"):
        open_dataset(str(root))


def test_renamed_generation(root: Path) -> None:
    """A generation is what its bytes say, not what its name says."""
    shutil.copy(root / generation_name(1), root / generation_name(2))
    with pytest.raises(ManifestError, match="expected generation 2, found 1"):
        open_dataset(str(root), generation=2)
    pointer = ManifestPointer.decode((root / MANIFEST_NAME).read_bytes(), name="")
    (root / MANIFEST_NAME).write_bytes(replace(pointer, generation=2).encode())
    with pytest.raises(ManifestError, match="expected generation 2, found 1"):
        open_dataset(str(root))


def test_newest_and_pinned_generations(root: Path, tmp_path: Path) -> None:
    """The newest one counts unless another is pinned; those before stay as they were."""
    first = open_dataset(str(root))
    append_shards(root, write(tmp_path / "more", prefix="more"))
    grown, pinned = open_dataset(str(root)), open_dataset(str(root), generation=1)
    assert (len(first), len(grown), len(pinned)) == (25, 50, 25)
    assert grown[25].key == "more000"
    assert first.fingerprint == pinned.fingerprint == grown.prefix_fingerprint(3) != grown.fingerprint
    with pytest.raises(ObjectNotFoundError, match=r"found no manifest-000003.msgpack"):
        open_dataset(str(root), generation=3)


def test_pinned_fingerprint(root: Path) -> None:
    """The same contents open anywhere; other ones are refused with both fingerprints."""
    fingerprint = open_dataset(str(root)).fingerprint
    assert len(open_dataset(str(root), fingerprint=fingerprint)) == 25
    with pytest.raises(ConfigError, match=f"expected fingerprint {'0' * 64}, found {fingerprint}") as caught:
        open_dataset(str(root), fingerprint="0" * 64)
    assert caught.value.kind == "state_mismatch"


def flip(data: bytes) -> bytes:
    """One byte of an index changed."""
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


@pytest.mark.parametrize(
    "damage",
    [flip, lambda data: data[:-1], lambda data: b"", lambda data: b"\0" * len(data)],
    ids=["flip", "cut", "empty", "zeros"],
)
def test_damaged_index(root: Path, damage: Callable[[bytes], bytes]) -> None:
    """It is an error of its shard, which says how to mend it; the other shards stay readable."""
    path = root / "part-000001.idx"
    path.write_bytes(damage(path.read_bytes()))
    dataset = open_dataset(str(root))
    with pytest.raises(
        IndexFormatError, match=r"part-000001.idx of shard part-000001.tar: .*`janus-shards verify`"
    ) as caught:
        dataset[12]
    assert (caught.value.kind, caught.value.shard) == ("index_mismatch", "part-000001.tar")
    assert [dataset[9]["txt"], dataset[20]["txt"]] == ["text 9", "text 20"]


def test_missing_index(root: Path) -> None:
    """The same, naming the file that is not there."""
    (root / "part-000001.idx").unlink()
    with pytest.raises(IndexFormatError, match=r"part-000001.idx.*does not exist.*`janus-shards index --overwrite`"):
        open_dataset(str(root))[12]


def test_index_of_another_shard(root: Path) -> None:
    """It is refused by its digest, and by what it says should a manifest agree to it."""
    shutil.copy(root / "part-000000.idx", root / "part-000001.idx")
    with pytest.raises(IndexFormatError, match=r"part-000001.tar"):
        open_dataset(str(root))[12]
    manifest = load_manifest(LocalStorage(root))
    first, second, third = manifest.shards
    wrong = replace(third, index_bytes=first.index_bytes, index_sha256=first.index_sha256)
    shutil.copy(root / "part-000000.idx", root / "part-000002.idx")
    publish(root, replace(manifest, shards=[first, second, wrong]))
    with pytest.raises(IndexFormatError, match=r"part-000002.tar: it describes another shard"):
        open_dataset(str(root))[22]


@pytest.mark.parametrize("length", [512, 30_000, -512])
def test_shard_of_another_length(root: Path, length: int) -> None:
    """A cut or longer shard is refused before its first sample, also for fields that the index keeps."""
    path = root / "part-000001.tar"
    data = path.read_bytes()
    path.write_bytes(data[:length] if length > 0 else data + bytes(-length))
    dataset = open_dataset(str(root))
    with pytest.raises(
        IndexFormatError, match=f"part-000001.tar: expected {len(data)} bytes as when it was indexed"
    ) as caught:
        dataset[10]
    assert (caught.value.kind, caught.value.shard) == ("index_mismatch", "part-000001.tar")


@pytest.mark.parametrize(
    "read", [lambda ds: ds[12].raw("bin"), lambda ds: ds.read([12])[0].raw("bin")], ids=["item", "read"]
)
def test_shard_of_other_bytes(root: Path, read: Callable[[Dataset], bytes]) -> None:
    """Bytes that are not the indexed ones are an error with shard, key and field that names the command to run."""
    path = root / "part-000001.tar"
    path.write_bytes(path.read_bytes().replace(b"\x0c" * 5000, b"\x0c" * 4999 + b"!"))
    dataset = open_dataset(str(root))
    with pytest.raises(DecodeError, match=r"part-000001.tar.*`janus-shards verify") as caught:
        read(dataset)
    error = caught.value
    assert (error.kind, error.shard, error.key, error.field) == ("index_mismatch", "part-000001.tar", "part012", "bin")
    assert dataset[11].raw("bin") == bytes([11]) * 5000


def test_missing_shard(root: Path) -> None:
    """Reading from it says that it does not exist; the others stay readable."""
    (root / "part-000001.tar").unlink()
    dataset = open_dataset(str(root))
    with pytest.raises(ObjectNotFoundError, match=r"part-000001.tar") as caught:
        dataset[12].raw("bin")
    assert caught.value.shard == "part-000001.tar"
    assert dataset[9].raw("bin") == bytes([9]) * 5000


def test_shard_that_is_replaced_while_it_is_read(original: Path) -> None:
    """Bytes of two versions never mix: after the first read, another version is an error."""
    storage = MemoryStorage()
    for path in original.iterdir():
        storage.put(path.name, path.read_bytes())
    dataset = Dataset(Catalog(load_manifest(storage), storage=storage, index_storage=storage))
    assert dataset[12].raw("bin") == bytes([12]) * 5000
    storage.put("part-000001.tar", (original / "part-000001.tar").read_bytes())
    with pytest.raises(IntegrityError) as caught:
        dataset[13].raw("bin")
    assert (caught.value.kind, caught.value.shard) == ("shard_changed", "part-000001.tar")
    assert dataset[3].raw("bin") == bytes([3]) * 5000


def test_rows_are_found_in_their_shards(original: Path) -> None:
    """Sample ids count through the shards, and every id has one place."""
    catalog = open_catalog(str(original))
    shards, rows = catalog.locate(np.array([0, 9, 10, 24]))
    assert (catalog.num_samples, shards.tolist(), rows.tolist()) == (25, [0, 0, 1, 2], [0, 9, 0, 4])
    assert catalog.shard_url(1) == f"{original}/part-000001.tar"


def test_many_threads_share_an_index(original: Path) -> None:
    """Whoever asks first loads it; all get the same answers."""
    catalog = open_catalog(str(original))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: catalog.index(number % 3).key(0), range(300)))
    assert found == ["part000", "part010", "part020"] * 100


def test_indexes_elsewhere(root: Path, tmp_path: Path) -> None:
    """``index_url`` names the root of manifest and indexes when the shards lie under another."""
    indexes = tmp_path / "indexes"
    indexes.mkdir()
    for path in [*root.glob("*.idx"), *root.glob("*.msgpack")]:
        path.rename(indexes / path.name)
    dataset = open_dataset(str(root), index_url=str(indexes))
    assert dataset[12].raw("bin") == bytes([12]) * 5000
    assert dataset.url == str(root)


def point_to(root: Path, base_url: str) -> dict[str, bytes]:
    """The objects of a data set's indexes, with a manifest that says the shards lie elsewhere."""
    publish(root, replace(load_manifest(LocalStorage(root)), base_url=base_url))
    return {path.name: path.read_bytes() for path in [*root.glob("*.idx"), *root.glob("*.msgpack")]}


def test_local_manifest_may_point_anywhere(root: Path, tmp_path: Path) -> None:
    """What ``index`` wrote on this machine leads to the shards, wherever they are."""
    shards = tmp_path / "shards"
    shards.mkdir()
    for path in root.glob("*.tar"):
        path.rename(shards / path.name)
    point_to(root, str(shards))
    assert open_dataset(str(root))[12].raw("bin") == bytes([12]) * 5000


@pytest.mark.s3
def test_remote_manifest_may_not_point_here(root: Path, s3_env: S3Server) -> None:
    """One in a store leads neither to files of this machine nor to another host, but to any bucket of the store."""
    indexes, shards = s3_env.create_bucket(), s3_env.create_bucket()
    for path in root.glob("*.tar"):
        open_storage(shards).put(path.name, path.read_bytes())

    def open_at(base_url: str) -> Dataset:
        for name, data in point_to(root, base_url).items():
            open_storage(indexes).put(name, data)
        return open_dataset(indexes)

    for base_url in (str(root), f"file://{root}", "http://169.254.169.254/latest", "hf://datasets/x", "../shards"):
        with pytest.raises(ManifestError, match="another scheme or host; pass both yourself") as caught:
            open_at(base_url)
        assert caught.value.kind == "bad_path"
    assert open_at(shards)[12].raw("bin") == bytes([12]) * 5000
    assert open_dataset(shards, index_url=indexes)[12]["txt"] == "text 12"


@pytest.mark.parametrize(
    "base_url", ["http://localhost:{port}/x", "http://127.0.0.1:1/x", "https://127.0.0.1:{port}/x", "/etc"]
)
def test_manifest_on_the_web_may_not_point_to_another_host(
    root: Path, fault_server: OpenFaultServer, base_url: str
) -> None:
    """A web server is left neither for another host or port, nor for another scheme."""
    endpoint = fault_server(objects := {}).endpoint
    objects |= point_to(root, base_url.format(port=endpoint.rpartition(":")[2]))
    with pytest.raises(ManifestError, match="another scheme or host"):
        open_dataset(f"{endpoint}/bkt")
    objects |= point_to(root, f"{endpoint}/elsewhere")
    assert open_dataset(f"{endpoint}/bkt").url == f"{endpoint}/elsewhere"


def test_large_indexes_are_pages_of_their_files(tmp_path: Path) -> None:
    """Where the indexes of a data set are large, they are mapped, and everything reads as from copies."""
    with ShardWriter(str(tmp_path), max_samples=1, inline_bytes=1 << 24) as writer:
        for letter in "ab":
            writer.write({"__key__": letter, "txt": letter * (9 << 20), "bin": letter.encode()})
    dataset = open_dataset(str(tmp_path))
    found = [(sample.key, sample["txt"], sample.raw("bin")) for sample in dataset]
    assert found == [(letter, letter * (9 << 20), letter.encode()) for letter in "ab"]
    assert isinstance(dataset.catalog.index(0).keys.data, memoryview)


def test_indexes_are_enough_where_no_shard_is_read(original: Path, tmp_path: Path) -> None:
    """Without its shards a data set still tells keys and what its indexes hold; a field of a shard is not found."""
    shutil.copytree(original, tmp_path / "set")
    for shard in (tmp_path / "set").glob("*.tar"):
        shard.unlink()
    dataset = open_dataset(str(tmp_path / "set"))
    assert dataset[3]["txt"] == "text 3"
    with pytest.raises(ObjectNotFoundError):
        dataset[3].raw("bin")
