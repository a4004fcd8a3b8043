import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.decode.lazy import Sample
from janus_shards.errors import ConfigError, FormatError, MissingFieldError, StorageError
from janus_shards.operations.extract import extract


def sample(key: str, fields: Mapping[str, bytes]) -> Sample:
    """A sample with these bytes."""
    return Sample(key, 0, fields.__getitem__, tuple(fields), shard="train-000000.tar")


CAT = {"jpg": b"picture", "txt": b"a cat"}


def test_fields_become_files(tmp_path: Path) -> None:
    """Each field is a file with its bytes; folders of the key are made."""
    files = extract(sample("a/b/cat", CAT), str(tmp_path / "out"))
    assert files == [("jpg", "a/b/cat.jpg", 7), ("txt", "a/b/cat.txt", 5)]
    assert (tmp_path / "out/a/b/cat.txt").read_bytes() == b"a cat"
    assert sorted(os.listdir(tmp_path / "out/a/b")) == ["cat.jpg", "cat.txt"]


def test_a_leading_dot_folder_is_no_folder(tmp_path: Path) -> None:
    """``./train/1``, as ``tar cf x.tar .`` writes keys, lies in ``train``."""
    assert extract(sample("./train/1", CAT), str(tmp_path))[0].path == "train/1.jpg"


@pytest.mark.parametrize("key", ["../cat", "a/../../cat", "/etc/cat", "a//cat", "..", ".", "a/.", "", "a/", "a\0b"])
def test_keys_that_leave_the_folder_are_refused(tmp_path: Path, key: str) -> None:
    """A key from a stranger's tar writes nothing outside the folder, and nothing at all when it tries."""
    with pytest.raises(FormatError) as caught:
        extract(sample(key, CAT), str(tmp_path / "out"))
    assert caught.value.kind == "bad_path"
    assert not list(tmp_path.iterdir())


@given(st.text(st.sampled_from("ab./\\\0"), max_size=12))
def test_no_key_writes_outside(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    """Whatever the key, all that is new lies under the folder."""
    parent = tmp_path_factory.mktemp("parent")
    try:
        files = extract(sample(key, {"txt": b"x"}), str(parent / "out"))
    except FormatError:
        assert not list(parent.iterdir())
    else:
        assert os.listdir(parent) == ["out"]
        assert (parent / "out" / files[0].path).read_bytes() == b"x"


@pytest.mark.parametrize("link", ["a", "a/b"])
def test_links_below_the_folder_are_not_followed(tmp_path: Path, link: str) -> None:
    """A folder that is a link to elsewhere is refused, and elsewhere stays empty."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere)
    with pytest.raises(StorageError, match="link") as caught:
        extract(sample("a/b/cat", CAT), str(out))
    assert caught.value.kind == "bad_path"
    assert not list(elsewhere.iterdir())


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """What the user names is the user's choice."""
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    extract(sample("cat", CAT), str(tmp_path / "out"))
    assert (tmp_path / "real" / "cat.jpg").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path, overwrite: bool) -> None:
    """The file behind a link keeps its bytes; overwriting replaces the link."""
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cat.jpg").symlink_to(tmp_path / "victim")
    if overwrite:
        extract(sample("cat", CAT), str(tmp_path / "out"), overwrite=True)
        assert not (tmp_path / "out" / "cat.jpg").is_symlink()
    else:
        with pytest.raises(ConfigError, match=r"cat\.jpg is there"):
            extract(sample("cat", CAT), str(tmp_path / "out"))
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_nothing_is_written_where_one_file_is_there(tmp_path: Path) -> None:
    """All or nothing: the second file stands in the way of the first."""
    (tmp_path / "cat.txt").write_bytes(b"mine")
    with pytest.raises(ConfigError) as caught:
        extract(sample("cat", CAT), str(tmp_path))
    assert caught.value.kind == "exists"
    assert os.listdir(tmp_path) == ["cat.txt"]


def test_nothing_is_written_when_a_field_is_missing(tmp_path: Path) -> None:
    """Every field is read before the first file appears."""
    with pytest.raises(MissingFieldError):
        extract(sample("cat", CAT), str(tmp_path / "out"), fields=("jpg", "png"))
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="names as bytes")
def test_keys_that_are_no_unicode(tmp_path: Path) -> None:
    """A key with bytes that are no UTF-8 gives a file whose name has these bytes."""
    extract(sample("caf\udce9", {"txt": b"x"}), str(tmp_path))
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9.txt"]


def test_names_that_the_file_system_refuses(tmp_path: Path) -> None:
    """A name that is too long is an error of storage that names it, and leaves nothing."""
    with pytest.raises(StorageError, match="xxx"):
        extract(sample("x" * 300, CAT), str(tmp_path))
    assert not list(tmp_path.iterdir())
