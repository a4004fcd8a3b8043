"""pack, index and verify on an object store, in other processes, with keys given in the program."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from janus_shards.errors import TarFormatError
from janus_shards.format.manifest import Manifest, ManifestPointer
from janus_shards.operations.index import IndexOptions, index_shards
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.operations.tables import TableColumns
from janus_shards.operations.verify import verify
from janus_shards.storage.base import Storage
from janus_shards.storage.urls import open_storage
from janus_shards.writer.shard import ShardLayout
from tests.conftest import S3Server

pytestmark = pytest.mark.s3

FOUR = ShardLayout(max_samples=4)


@pytest.fixture
def options(s3_server: S3Server) -> dict[str, object]:
    """Settings of the test server as a user writes them."""
    return {
        "endpoint_url": s3_server.endpoint,
        "region": "us-east-1",
        "access_key_id": s3_server.access_key_id,
        "secret_access_key": s3_server.secret_access_key,
    }


@pytest.fixture
def bucket(s3_server: S3Server) -> tuple[str, Storage]:
    """An empty bucket, and its storage."""
    url = s3_server.create_bucket()
    return url, open_storage(url, s3_server.options)


def newest(storage: Storage) -> Manifest:
    """The manifest that the pointer names."""
    target = ManifestPointer.decode(storage.read("manifest.msgpack"), name="pointer").target
    return Manifest.decode(storage.read(target), name=target)


def test_pack_writes_from_other_processes(
    photos: Path, tmp_path: Path, bucket: tuple[str, Storage], options: dict[str, object]
) -> None:
    """Keys given in the program reach the workers, and the store gets the bytes of a local run."""
    url, storage = bucket
    pack(str(photos), url, options=PackOptions(layout=FOUR, workers=2), storage_options=options)
    pack(str(photos), str(tmp_path / "out"), options=PackOptions(layout=FOUR, workers=1))
    for path in [*(tmp_path / "out").glob("shard*")]:
        assert storage.read(path.name) == path.read_bytes()
    assert all(shard.etag for shard in newest(storage).shards)


def test_pack_resumes_on_a_store(photos: Path, bucket: tuple[str, Storage], options: dict[str, object]) -> None:
    """Whole shards are kept, a shard without its index is written again."""
    url, storage = bucket
    pack(str(photos), url, options=PackOptions(layout=FOUR, workers=1), storage_options=options)
    for name in ("shard-000001.idx", "manifest.msgpack"):
        storage.delete(name)
    again = PackOptions(layout=FOUR, workers=1, resume=True)
    report = pack(str(photos), url, options=again, storage_options=options)
    assert (report.num_kept, report.num_written) == (2, 1)
    assert verify(url, full=True, workers=1, storage_options=options).is_sound


def test_pack_reads_folders_and_tables_of_a_store(
    photos: Path,
    tmp_path: Path,
    bucket: tuple[str, Storage],
    options: dict[str, object],
    digests: Callable[[Path], dict[str, str]],
) -> None:
    """A folder of objects is packed like a folder of files, and a table may lie beside its pictures."""
    url, storage = bucket
    for path in photos.iterdir():
        storage.put(f"in/{path.name}", path.read_bytes())
    pack(str(photos), str(tmp_path / "a"), options=PackOptions(layout=FOUR))
    pack(f"{url}/in", str(tmp_path / "b"), options=PackOptions(layout=FOUR), storage_options=options)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    storage.put("in/rows.csv", b"id,file\nx,img3.jpg\n")
    columns = TableColumns(image="file", key="id")
    report = pack(f"{url}/in/rows.csv", str(tmp_path / "c"), columns=columns, storage_options=options)
    assert report.num_samples == 1


def foreign_tar(number: int) -> bytes:
    """A tar as another program writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (f"{number}.txt", f"{number}.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"{}"))
    return buffer.getvalue()


def test_index_of_a_store_lies_beside_or_elsewhere(
    tmp_path: Path, s3_server: S3Server, bucket: tuple[str, Storage], options: dict[str, object]
) -> None:
    """Shards are recorded with ETag; the manifest elsewhere says where they are; no shard changes."""
    url, storage = bucket
    for number in range(3):
        storage.put(f"set/{number:03d}.tar", foreign_tar(number))
    etags = [meta.etag for meta in storage.list("set/")]
    how = IndexOptions(workers=1)
    elsewhere = str(tmp_path / "index")
    index_shards(f"{url}/set/{{000..002}}.tar", output=elsewhere, options=how, storage_options=options)
    index_shards(f"{url}/set/*.tar", options=how, storage_options=options)
    beside, apart = newest(open_storage(f"{url}/set", s3_server.options)), newest(open_storage(elsewhere))
    assert [shard.etag for shard in beside.shards] == [shard.etag for shard in apart.shards] == etags
    assert (beside.base_url, apart.base_url) == ("", f"{url}/set")
    assert beside.fingerprint() == apart.fingerprint()
    assert verify(f"{url}/set", full=True, workers=1, storage_options=options).is_sound
    assert verify(elsewhere, full=True, workers=1, storage_options=options).is_sound


def test_compressed_shard_of_a_store_is_refused(bucket: tuple[str, Storage], options: dict[str, object]) -> None:
    """A gzip shard cannot be read at random; the message names its URL and the command that rewrites it."""
    url, storage = bucket
    storage.put("a.tar", gzip.compress(foreign_tar(0)))
    with pytest.raises(TarFormatError, match=rf"{url}/a\.tar.*reshard") as caught:
        index_shards(f"{url}/a.tar", options=IndexOptions(workers=1), storage_options=options)
    assert caught.value.kind == "compressed_shard"
