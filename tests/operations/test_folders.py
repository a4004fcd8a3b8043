"""Local source folders: what is listed, what is refused, and how a file that cannot be read is named."""

import os
from pathlib import Path

import pytest

from janus_shards.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from janus_shards.operations.folders import LocalFolder, open_folder


def test_files_of_all_folders_are_listed_and_hidden_ones_left_out(tmp_path: Path) -> None:
    """Names are relative, with sizes and times; what starts with a dot is not seen."""
    for name in ("a.jpg", "sub/deep/b.txt", ".hidden.jpg", ".git/c.jpg", "sub/._a.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    files = sorted(LocalFolder(str(tmp_path)).files(), key=lambda file: file.name)
    assert [(file.name, file.size) for file in files] == [("a.jpg", 5), ("sub/deep/b.txt", 5)]
    assert files[0].mtime_ns == (tmp_path / "a.jpg").stat().st_mtime_ns


def test_link_inside_of_the_folder_is_followed(tmp_path: Path) -> None:
    """A link to another file of the folder is a file."""
    (tmp_path / "a.jpg").write_bytes(b"1")
    (tmp_path / "b.jpg").symlink_to("a.jpg")
    assert {file.name for file in LocalFolder(str(tmp_path)).files()} == {"a.jpg", "b.jpg"}


@pytest.mark.parametrize(
    ("target", "problem"),
    [("/etc/passwd", "leaves the folder"), ("gone", "does not exist"), (".", "links to a folder")],
)
def test_link_that_leads_elsewhere_is_refused(tmp_path: Path, target: str, problem: str) -> None:
    """A link out of the folder, to a folder or to nothing ends the run with its path."""
    (tmp_path / "x.jpg").symlink_to(target)
    with pytest.raises(StorageError, match=rf"x\.jpg.*{problem}") as caught:
        list(LocalFolder(str(tmp_path)).files())
    assert caught.value.kind == "bad_path"


def test_missing_folder_and_file_are_named(tmp_path: Path) -> None:
    """A path that is not there is in the message."""
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        list(LocalFolder(str(tmp_path / "nowhere")).files())
    for act in (LocalFolder(str(tmp_path)).stat, LocalFolder(str(tmp_path)).read):
        with pytest.raises(ObjectNotFoundError, match=r"gone\.jpg"):
            act("gone.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_named(tmp_path: Path) -> None:
    """A file of another user ends the run with its path."""
    (tmp_path / "a.jpg").touch(mode=0)
    with pytest.raises(AccessDeniedError, match=r"a\.jpg"):
        LocalFolder(str(tmp_path)).read("a.jpg")


def test_names_with_nul_are_missing_files(tmp_path: Path) -> None:
    """A table may name anything; what no file can be called is not found."""
    with pytest.raises(ObjectNotFoundError):
        LocalFolder(str(tmp_path)).stat("a\0.jpg")


def test_file_urls_are_local(tmp_path: Path) -> None:
    """``file://`` and a plain path open the same folder."""
    (tmp_path / "a.jpg").write_bytes(b"1")
    folder = open_folder(f"file://{tmp_path}")
    assert isinstance(folder, LocalFolder)
    assert (folder.read("a.jpg"), list(folder.stream("a.jpg"))) == (b"1", [b"1"])
