"""What users get wrong, command by command: one clear line, the right exit code, nothing half-written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.conftest import S3Server

Run = Callable[..., Result]
ErrorLine = Callable[..., str]


@pytest.mark.parametrize("command", ["info", "ls", "verify", "stream"])
def test_missing_folder(error_line: ErrorLine, tmp_path: Path, command: str) -> None:
    """A root that does not exist is named."""
    assert f"{tmp_path}/none" in error_line(command, tmp_path / "none", code=3)


def test_missing_source(error_line: ErrorLine, tmp_path: Path) -> None:
    """Packing a folder or table that does not exist names it, and makes no root."""
    assert f"{tmp_path}/none" in error_line("pack", tmp_path / "none", tmp_path / "out", code=3)
    message = error_line("pack", tmp_path / "none.csv", tmp_path / "out", "--text-column", "caption", code=3)
    assert "none.csv" in message
    assert not (tmp_path / "out").exists()


def test_empty_source(error_line: ErrorLine, tmp_path: Path) -> None:
    """A folder without files to pack is a mistake, not an empty data set."""
    (tmp_path / "empty").mkdir()
    assert "found no files to pack" in error_line("pack", tmp_path / "empty", tmp_path / "out", code=2)


@pytest.mark.s3
@pytest.mark.parametrize("command", ["info", "ls", "verify", "stream"])
def test_missing_bucket(error_line: ErrorLine, s3_env: S3Server, command: str) -> None:
    """A bucket that does not exist is named, with exit code 3."""
    assert "no-such-bucket" in error_line(command, "s3://no-such-bucket/data", code=3)


@pytest.mark.s3
def test_missing_bucket_to_write_to(error_line: ErrorLine, s3_env: S3Server, photos: Path) -> None:
    """Packing into a bucket that does not exist names it."""
    assert "no-such-bucket" in error_line("pack", photos, "s3://no-such-bucket/data", "--workers", "1", code=3)


@pytest.mark.usefixtures("no_instance_keys")
def test_no_credentials(error_line: ErrorLine) -> None:
    """Without keys the message names the ways to give them."""
    message = error_line("info", "s3://bucket/data", code=3)
    assert "--anonymous" in message
    assert "AWS_ACCESS_KEY_ID" in message


@pytest.fixture
def no_instance_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without keys anywhere."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_unreadable_file(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A file that cannot be read is named; for root, who may read all, a link to nothing stands for it."""
    (photos / "coffee.jpg").unlink()
    (photos / "coffee.jpg").symlink_to("nothing.jpg")
    assert "coffee.jpg" in error_line("pack", photos, tmp_path / "out", code=3)
    assert not (tmp_path / "out").exists()


def test_file_that_is_no_picture(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A page of text named .jpg is found while packing; no shard and no manifest is left."""
    (photos / "coffee.jpg").write_text("<html>404</html>")
    message = error_line("pack", photos, tmp_path / "out", "--workers", "1", code=1)
    assert "coffee.jpg" in message
    assert not list((tmp_path / "out").glob("*"))


def test_caption_without_picture(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A caption whose picture is missing is named before anything is written, with the way to allow it."""
    (photos / "coffee.jpg").unlink()
    message = error_line("pack", photos, tmp_path / "out", code=1)
    assert "coffee.txt" in message
    assert "--allow-missing" in message
    assert not (tmp_path / "out").exists()


def test_duplicate_field(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """Two files that are one field of one sample are both named."""
    shutil.copy(photos / "coffee.jpg", photos / "coffee.JPG")
    message = error_line("pack", photos, tmp_path / "out", code=1)
    assert "coffee.JPG" in message
    assert "coffee.jpg" in message
    assert not (tmp_path / "out").exists()


def test_duplicate_key(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A key that comes twice in a table is named with both lines."""
    (photos / "rows.csv").write_text("id,path\n1,chelsea.jpg\n1,coffee.jpg\n")
    options = ["--image-column", "path", "--key-column", "id"]
    message = error_line("pack", photos / "rows.csv", tmp_path / "out", *options, code=1)
    assert "line 3: key '1' repeats line 2" in message
    assert not (tmp_path / "out").exists()


def test_unknown_column(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A column that the table does not have is a mistake of the user; those that it has are named."""
    (photos / "rows.csv").write_text("id,path\n1,chelsea.jpg\n")
    message = error_line("pack", photos / "rows.csv", tmp_path / "out", "--image-column", "file", code=2)
    assert "'file'" in message
    assert "'path'" in message


def test_table_without_columns(error_line: ErrorLine, photos: Path, tmp_path: Path) -> None:
    """A table needs to be told what its columns are."""
    (photos / "rows.csv").write_text("id,path\n1,chelsea.jpg\n")
    assert "--image-column" in error_line("pack", photos / "rows.csv", tmp_path / "out", code=2)


@pytest.mark.parametrize("command", [("ls",), ("cat", "astronaut", "txt"), ("stream", "--batch-size", "4")], ids=str)
def test_damaged_index(error_line: ErrorLine, copied: Path, command: tuple[str, ...]) -> None:
    """An index with a flipped byte is named, with what to do."""
    index = copied / "shard-000000.idx"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    name, *rest = command
    message = error_line(name, copied, *rest, code=1)
    assert "shard-000000.idx" in message
    assert "janus-shards verify" in message


@pytest.mark.parametrize("name", ["manifest.msgpack", "manifest-000001.msgpack"])
@pytest.mark.parametrize("command", ["info", "stream"])
def test_damaged_manifest(error_line: ErrorLine, copied: Path, name: str, command: str) -> None:
    """A damaged manifest is a fault of the data, named by file."""
    (copied / name).write_bytes(b"\x81\xa1x")
    assert name in error_line(command, copied, code=1)


def test_shard_of_another_length(error_line: ErrorLine, copied: Path) -> None:
    """A tar that was replaced is noticed before its bytes are used."""
    with (copied / "shard-000000.tar").open("ab") as shard:
        shard.write(bytes(512))
    assert "shard-000000.tar" in error_line("cat", copied, "astronaut", "jpg", code=1)
    assert "shard-000000.tar" in error_line("stream", copied, "--batch-size", "4", code=1)


def test_shard_with_other_bytes(error_line: ErrorLine, copied: Path) -> None:
    """A changed tar of the same length is noticed by the hash of the field; sample and field are named."""
    shard = copied / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    message = error_line("stream", copied, "--batch-size", "4", "--shuffle", "none", code=1)
    assert "'astronaut'" in message
    assert "'jpg'" in message


def test_missing_shard(error_line: ErrorLine, copied: Path) -> None:
    """A shard that is gone is a fault of storage, named."""
    (copied / "shard-000002.tar").unlink()
    assert "shard-000002.tar" in error_line("stream", copied, "--batch-size", "4", code=3)


@pytest.mark.parametrize("url", ["pipe:cat x.tar", "s3://", "s3:///key", "nowhere://x/y"])
def test_urls_that_are_none(run: Run, url: str) -> None:
    """A URL that names no storage is a mistake of the user."""
    assert run("info", url, code=2).stderr.count("\n") == 1
