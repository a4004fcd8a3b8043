"""The frozen files of tests/data/golden: any change of stored bytes shows here, and must be wanted."""

import hashlib
import itertools
import tarfile
from pathlib import Path

import pytest

import janus_shards as js
from janus_shards.format.index import ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.format.naming import MANIFEST_NAME, index_name
from tools.make_golden import BORDERS, EXAMPLE, GOLDEN, GoldenSample, annotate, by_janus_shards, describe

FILES = {path.name: path.read_bytes() for path in GOLDEN.iterdir()}
# In the order of the manifest, which is that of the sample ids.
SHARDS = ("example-000000.tar", "borders-000000.tar", "tarfile-gnu.tar", "tarfile-pax.tar", "webdataset.tar")
SAMPLES = {
    "example-000000.tar": EXAMPLE,
    "borders-000000.tar": BORDERS,
    "tarfile-gnu.tar": BORDERS,
    "tarfile-pax.tar": BORDERS,
    "webdataset.tar": (*EXAMPLE, *BORDERS),
}


@pytest.mark.parametrize("name", SHARDS[:2])
def test_shards_are_written_as_frozen(name: str) -> None:
    """The tar bytes of ours never change: short, split, long and non-ASCII names, empty and full blocks."""
    assert by_janus_shards(SAMPLES[name]) == FILES[name]


def test_the_writer_gives_the_frozen_shard_and_index(tmp_path: Path) -> None:
    """``ShardWriter`` writes tar and index of the example byte for byte."""
    with js.ShardWriter(str(tmp_path), prefix="example") as writer:
        for sample in EXAMPLE:
            writer.write({"__key__": sample.key, **sample.fields}, columns=sample.columns)
    for name in ("example-000000.tar", "example-000000.idx"):
        assert (tmp_path / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("name", [*map(index_name, SHARDS), "manifest-000001.msgpack", MANIFEST_NAME])
def test_indexes_and_manifest_are_written_as_frozen(name: str) -> None:
    """Indexing the frozen shards of all writers gives the frozen indexes, generation and pointer."""
    assert describe({shard: FILES[shard] for shard in SHARDS})[name] == FILES[name]


@pytest.mark.parametrize("name", SHARDS)
def test_indexes_point_to_the_data_of_every_writer(name: str) -> None:
    """Each field lies where the index says, whatever headers stand in front of it."""
    index = ShardIndex.decode(FILES[index_name(name)], name=name)
    found = [
        (
            index.key(row),
            {span.field: FILES[name][span.offset : span.offset + span.size] for span in index.fields_of(row)},
        )
        for row in range(index.num_samples)
    ]
    assert found == [(sample.key, dict(sample.fields)) for sample in SAMPLES[name]]


@pytest.mark.parametrize("name", SHARDS)
def test_tarfile_sees_the_same_members(name: str) -> None:
    """Python's tarfile finds each field of the index at the same offset."""
    index = ShardIndex.decode(FILES[index_name(name)], name=name)
    with tarfile.open(GOLDEN / name, encoding="utf-8") as tar:
        found = {entry.name.lower(): (entry.offset_data, entry.size) for entry in tar}
    for row in range(index.num_samples):
        for span in index.fields_of(row):
            assert found[f"{index.key(row)}.{span.field}".lower()] == (span.offset, span.size)


def test_pointer_and_manifest_lead_to_the_shards() -> None:
    """From the pointer over the generation to each shard and index, every digest fits."""
    pointer = ManifestPointer.decode(FILES[MANIFEST_NAME], name=MANIFEST_NAME)
    assert hashlib.sha256(FILES[pointer.target]).digest() == pointer.sha256
    manifest = Manifest.decode(FILES[pointer.target], name=pointer.target)
    assert [shard.name for shard in manifest.shards] == list(SHARDS)
    for shard in manifest.shards:
        assert hashlib.sha256(FILES[shard.name]).digest() == shard.sha256
        assert hashlib.sha256(FILES[index_name(shard.name)]).digest() == shard.index_sha256
    assert manifest.fingerprint() == "4a6bc954bb507f304ae4410cc30f7c302e2c17d79d5819f011b44eb704579c9c"


def test_the_folder_opens_as_a_data_set() -> None:
    """All samples of all writers come back through the public face, and nothing else lies in the folder."""
    expected: list[GoldenSample] = [sample for name in SHARDS for sample in SAMPLES[name]]
    ds = js.open_dataset(str(GOLDEN))
    assert len(ds) == len(expected)
    for sample, frozen in zip((ds[row] for row in range(len(ds))), expected, strict=True):
        assert sample.key == frozen.key
        assert {name: bytes(sample.raw(name)) for name in sample} == frozen.fields
    assert len(FILES) == 2 * len(SHARDS) + 2


@pytest.mark.parametrize("name", SHARDS[:2])
def test_webdataset_reads_the_frozen_shards(name: str) -> None:
    """webdataset delivers our samples with every key and field."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    # WebDataset itself leaves its files to the garbage collector, which is a warning here.
    with (GOLDEN / name).open("rb") as stream:
        samples = list(group_by_keys(tar_file_expander(iter([{"url": name, "stream": stream}]))))
    found = [
        (sample["__key__"], {field: data for field, data in sample.items() if not field.startswith("__")})
        for sample in samples
    ]
    assert found == [(sample.key, dict(sample.fields)) for sample in SAMPLES[name]]


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".tar")])
def test_the_annotation_leaves_no_byte_out(name: str) -> None:
    """The lines of ``--annotate`` hold every byte once, in order, at its offset."""
    lines = annotate(FILES[name]).splitlines()
    pieces = [bytes.fromhex(line[6:53]) for line in lines]
    assert b"".join(pieces) == FILES[name]
    assert [int(line[:4], 16) for line in lines] == [0, *itertools.accumulate(map(len, pieces[:-1]))]
