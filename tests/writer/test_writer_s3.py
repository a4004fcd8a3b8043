"""``ShardWriter`` on an object store: shards stream as they are written, and appear whole or not at all."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from janus_shards.errors import ConfigError, ResumeError
from janus_shards.storage.base import Storage
from janus_shards.storage.urls import open_storage
from janus_shards.writer import ShardWriter
from tests.conftest import S3Server

pytestmark = pytest.mark.s3

BIG = 6 << 20  # more than one part of a multipart upload


def write(root: str, count: int, *, size: int = 700, **options: object) -> None:
    """Pictures by name only, and captions."""
    with ShardWriter(root, **options) as writer:
        for n in range(count):
            writer.write({"__key__": f"{n:06d}", "jpg": bytes([n]) * size, "txt": f"caption {n}"})


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
def bucket(s3_server: S3Server) -> Iterator[tuple[str, Storage]]:
    """An empty bucket, and its storage."""
    url = s3_server.create_bucket()
    storage = open_storage(url, s3_server.options)
    yield url, storage
    storage.close()


def test_store_gets_the_bytes_of_the_local_run(
    tmp_path: Path, bucket: tuple[str, Storage], options: dict[str, object], digests: Callable[[Path], dict[str, str]]
) -> None:
    """Shards and indexes are the same; the manifest also knows the store's ETags."""
    url, storage = bucket
    write(url, 5, max_samples=2, storage_options=options)
    write(str(tmp_path / "local"), 5, max_samples=2)
    (tmp_path / "remote").mkdir()
    for meta in storage.list():
        (tmp_path / "remote" / meta.name).write_bytes(bytes(storage.read(meta.name)))
    local, remote = digests(tmp_path / "local"), digests(tmp_path / "remote")
    assert local.keys() == remote.keys()
    assert {name for name in local if local[name] != remote[name]} == {"manifest.msgpack", "manifest-000001.msgpack"}


def test_exception_leaves_no_object_and_no_upload(
    s3_server: S3Server, bucket: tuple[str, Storage], options: dict[str, object]
) -> None:
    """A shard of several parts that was begun is taken back."""
    url, storage = bucket
    with pytest.raises(ConfigError, match="twice"):  # noqa: PT012, SIM117  # the exception has to cross the writer
        with ShardWriter(url, storage_options=options) as writer:
            for key in "abcda":
                writer.write({"__key__": key, "bin": bytes(BIG)})
    assert list(storage.list()) == []
    assert s3_server.unfinished_uploads(url) == []


def test_kill_is_invisible_and_resume_finishes(
    s3_server: S3Server, bucket: tuple[str, Storage], options: dict[str, object]
) -> None:
    """SIGKILL in the middle of a multipart upload: the next run aborts it and ends as an undisturbed run would."""
    url, storage = bucket
    script = (
        "import os, signal\n"
        "from janus_shards.writer import ShardWriter\n"
        f"with ShardWriter({url!r}, max_samples=2) as writer:\n"
        "    for n in range(4):\n"
        f"        writer.write({{'__key__': f'{{n:06d}}', 'jpg': bytes([n]) * {BIG}, 'txt': f'caption {{n}}'}})\n"
        "        if n == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, **s3_server.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=False, env=environment)
    assert [meta.name for meta in storage.list()] == ["shard-000000.idx", "shard-000000.tar"]
    assert s3_server.unfinished_uploads(url) == ["shard-000001.tar"]
    with pytest.raises(ConfigError, match="--resume"):
        write(url, 4, size=BIG, max_samples=2, storage_options=options)
    write(url, 4, size=BIG, max_samples=2, storage_options=options, resume=True)
    assert s3_server.unfinished_uploads(url) == []
    write(f"{url}/fresh", 4, size=BIG, max_samples=2, storage_options=options)
    names = [meta.name for meta in storage.list("shard")] + ["manifest-000001.msgpack"]
    assert all(storage.read(name) == storage.read(f"fresh/{name}") for name in names)


def test_resume_compares_what_is_there(bucket: tuple[str, Storage], options: dict[str, object]) -> None:
    """Other samples than those of the interrupted run are refused, and nothing is replaced."""
    url, storage = bucket
    write(url, 4, max_samples=2, storage_options=options)
    before = {meta.name: meta.etag for meta in storage.list()}
    with pytest.raises(ResumeError, match=r"shard-000000\.tar"):
        write(url, 4, size=701, max_samples=2, storage_options=options, resume=True)
    assert {meta.name: meta.etag for meta in storage.list()} == before


def test_overwrite_removes_shards_of_the_longer_old_set(
    bucket: tuple[str, Storage], options: dict[str, object]
) -> None:
    """After overwriting, only objects of the new data set are there."""
    url, storage = bucket
    write(url, 6, max_samples=2, storage_options=options)
    write(url, 2, max_samples=2, storage_options=options, overwrite=True)
    assert [meta.name for meta in storage.list()] == [
        "manifest-000001.msgpack",
        "manifest.msgpack",
        "shard-000000.idx",
        "shard-000000.tar",
    ]


def test_another_writer_is_noticed(bucket: tuple[str, Storage], options: dict[str, object]) -> None:
    """Of two writers that began on an empty root, the second to close learns of the first."""
    url, _ = bucket
    with pytest.raises(OSError, match="another writer"), ShardWriter(url, storage_options=options) as writer:  # noqa: PT012  # raises on closing
        writer.write({"__key__": "a", "txt": ""})
        write(url, 1, prefix="other", storage_options=options)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(s3_server: S3Server, bucket: tuple[str, Storage]) -> None:
    """A shard of 160 MiB streams through a few parts of 8 MiB."""
    url, storage = bucket
    script = (
        "import resource\n"
        "from janus_shards.writer import ShardWriter\n"
        "data, peak = bytes(1 << 20), lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"with ShardWriter({url!r}, max_shard_bytes=1 << 30) as writer:\n"
        "    writer.write({'__key__': 'first', 'bin': data})\n"
        "    before = peak()\n"
        "    for n in range(159): writer.write({'__key__': f'{n}', 'bin': data})\n"
        "print((peak() - before) >> 10)\n"
    )
    environment = {**os.environ, **s3_server.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], check=True, env=environment, capture_output=True, text=True)
    assert storage.head("shard-000000.tar").size > 160 << 20
    assert int(done.stdout) < 96
