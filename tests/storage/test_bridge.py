import itertools
from pathlib import Path

import pytest

from janus_shards.errors import ConfigError
from janus_shards.storage.base import Storage
from janus_shards.storage.bridge import open_bridge
from janus_shards.storage.urls import open_storage
from tests.conftest import S3Server
from tests.contracts.storage import StorageContract

_numbers = itertools.count()


class TestMemoryFileSystem(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """A folder of fsspec's memory file system."""
        return open_storage(f"memory://bridge-{next(_numbers)}/my set")


class TestS3fs(StorageContract):
    @pytest.fixture
    def storage(self, s3_server: S3Server, tmp_path: Path) -> Storage:
        """A prefix of an empty bucket, through s3fs."""
        return open_bridge(f"{s3_server.create_bucket()}/my set+", s3_server.options)


def test_unfinished_uploads_leave_nothing(s3_server: S3Server) -> None:
    """An upload that is aborted is aborted on the server too."""
    bucket = s3_server.create_bucket()
    storage = open_bridge(bucket, s3_server.options)
    with storage.open_upload("x.tar") as upload:
        upload.write(b"x" * (20 * 2**20))
    assert s3_server.unfinished_uploads(bucket) == []


def test_temporary_objects_are_removed_by_prefix() -> None:
    """Where objects are renamed into place, what a dead writer left is removed, of its prefix only."""
    storage = open_storage(f"memory://bridge-{next(_numbers)}")
    left = [storage.open_upload(name) for name in ("train-0.tar", "val-0.tar")]
    for upload in left:
        upload.write(b"half")
    assert list(storage.list()) == []
    assert [name.startswith(".janus-tmp-") for name in storage.stale_uploads("train-")] == [True]
    assert [storage.abort_stale_uploads(prefix) for prefix in ("train-", "val-", "train-")] == [1, 1, 0]


@pytest.mark.parametrize(("url", "match"), [("nosuch://x/y", "scheme 'nosuch'"), ("gdrive://x/y", "pip install")])
def test_unknown_schemes_are_refused(url: str, match: str) -> None:
    """A scheme that nothing here can open says so, naming what to install where that helps."""
    with pytest.raises(ConfigError, match=match):
        open_storage(url)
