import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from janus_shards.cache.base import EntryKey
from janus_shards.cache.disk import DiskCache
from janus_shards.cache.folder import MARKER_NAME, folder_name, open_folder
from janus_shards.errors import ConfigError

OpenCache = Callable[..., DiskCache]
MakeKey = Callable[..., EntryKey]
Entries = Callable[[], list[Path]]
NAME = "0123456789abcdef" * 2 + ".raw"


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_may_look(tmp_path: Path, open_cache: OpenCache, key: MakeKey) -> None:
    """Folders are 0700 and files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        open_cache().store_raw(key(1), [b"x"])
    finally:
        os.umask(before)
    folder = tmp_path / "cache" / folder_name(None)
    assert mode(folder) == mode(tmp_path / "cache") == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 4


def test_a_folder_of_the_user_is_left_as_it_is(tmp_path: Path, open_cache: OpenCache, key: MakeKey) -> None:
    """In a directory that the user has, the cache keeps to a folder of its own; modes and other files stay."""
    (tmp_path / "cache").mkdir(0o755)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    open_cache(max_bytes=10_000).store_raw(key(1), [b"x"])
    assert mode(tmp_path / "cache") == 0o755
    assert sorted(os.listdir(tmp_path / "cache")) == sorted(["notes.txt", folder_name(None)])


def test_an_opened_up_folder_is_closed_again(tmp_path: Path, open_cache: OpenCache) -> None:
    """The cache's own folder is nobody else's to look into, also after somebody changed its mode."""
    folder = tmp_path / "cache" / folder_name(None)
    open_cache()
    folder.chmod(0o777)
    open_cache()
    assert mode(folder) == 0o700


@pytest.mark.parametrize("where", ["entry", "usage", "locks", "marker", "folder"])
def test_links_are_not_followed(tmp_path: Path, open_cache: OpenCache, key: MakeKey, where: str) -> None:
    """A symbolic link in place of anything of ours leads nowhere: its target is neither read nor written."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_bytes(b"precious")
    folder = tmp_path / "cache" / folder_name(None)
    if where == "folder":
        (tmp_path / "cache").mkdir()
        folder.symlink_to(target)
        with pytest.raises(ConfigError):
            open_cache()
    else:
        cache = open_cache()
        cache.close()
        name = {"entry": key(1).file_name, "marker": MARKER_NAME}.get(where, where)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target / "file")
        assert cache.raw(key(1)) is None
        assert cache.store_raw(key(1), [b"x"]) is None
    assert (target / "file").read_bytes() == b"precious"
    assert os.listdir(target) == ["file"]


def test_pipes_and_folders_are_no_entries(tmp_path: Path, open_cache: OpenCache, key: MakeKey) -> None:
    """A pipe or a folder under the name of an entry is a miss, at once."""
    cache = open_cache()
    folder = tmp_path / "cache" / folder_name(None)
    os.mkfifo(folder / key(1).file_name)
    (folder / key(2).file_name).mkdir()
    for number in (1, 2):
        assert cache.raw(key(number)) is None
        assert cache.store_raw(key(number), [b"x"]) is None


FOREIGN = {
    "plain": ("README", b"text"),
    "entry name": (NAME, b"somebody's bytes" * 300),
    "rows name": (NAME.replace(".raw", ".rows"), b"\x00" * 200 + b"x"),
    "temp name": ("tmp-003-0123456789abcdef", b"not ours"),
    "our magic alone": (NAME, b"JSHCACHE" + b"\x07" * 5000),
    "like a name": (NAME + ".bak", b"JSHCACHE"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_never_touched(
    tmp_path: Path, open_cache: OpenCache, key: MakeKey, entries: Entries, kind: str
) -> None:
    """A file without our name and our header stays as it is, when room is made and when leftovers are removed."""
    name, data = FOREIGN[kind]
    old = open_cache(dataset="old", max_bytes=60_000)
    path = tmp_path / "cache" / folder_name(None) / name
    path.write_bytes(data)
    for number in range(20):
        old.store_raw(key(number, dataset="old"), [bytes(500)])
    old.after_fork()
    cache = open_cache(max_bytes=60_000)
    cache.begin_epoch(0)
    for number in range(100, 120):
        cache.store_raw(key(number), [bytes(500)])
    assert cache.stats()["evicted"] > 5
    assert path.read_bytes() == data


def test_nothing_is_removed_without_the_marker(
    tmp_path: Path, open_cache: OpenCache, key: MakeKey, entries: Entries
) -> None:
    """A folder that no longer says that it is a cache keeps its files; they are still read."""
    old = open_cache(dataset="old", max_bytes=20_000)
    for number in range(5):
        old.store_raw(key(number, dataset="old"), [bytes(500)])
    old.close()
    before = entries()
    (before[0].parent / MARKER_NAME).unlink()
    cache = open_cache(max_bytes=20_000)
    assert cache.store_raw(key(100), [bytes(500)]) is None
    assert cache.raw(key(0)) is not None
    assert entries() == before


def test_an_empty_folder_without_marker_is_taken(tmp_path: Path) -> None:
    """A process that died between making the folder and marking it does no harm."""
    (tmp_path / folder_name(None)).mkdir()
    assert open_folder(str(tmp_path), None).has_marker()
