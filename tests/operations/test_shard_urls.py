"""Which tars a user means, and the folder that they share."""

from pathlib import Path

import pytest

from janus_shards.errors import ConfigError
from janus_shards.operations.shard_urls import common_root, find_shards
from janus_shards.storage.base import StorageOptions


@pytest.mark.parametrize(
    ("urls", "root", "names"),
    [
        (["s3://b/x/a.tar"], "s3://b/x", ["a.tar"]),
        (["s3://b/x/a.tar", "s3://b/y/z/a.tar"], "s3://b", ["x/a.tar", "y/z/a.tar"]),
        (["s3://b/xa/1.tar", "s3://b/xb/1.tar"], "s3://b", ["xa/1.tar", "xb/1.tar"]),
        (["/data/t/2.tar", "/data/t/1.tar"], "/data/t", ["2.tar", "1.tar"]),
        (["/a/1.tar", "/b/1.tar"], "/", ["a/1.tar", "b/1.tar"]),
        (["https://h/d/1.tar?sig=s", "https://h/d/e%20f/1.tar?sig=s"], "https://h/d?sig=s", ["1.tar", "e f/1.tar"]),
    ],
)
def test_longest_shared_folder_is_the_root(urls: list[str], root: str, names: list[str]) -> None:
    """Names are relative to the longest folder that all shards share, in the order given."""
    found = common_root(urls)
    assert (found.root, list(found.names)) == (root, names)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["s3://a/1.tar", "s3://b/1.tar"], "share no root"),
        (["https://h/1.tar", "https://g/1.tar"], "share no root"),
        (["s3://a/1.tar", "/a/1.tar"], "share no root"),
        (["https://h/1.tar?sig=a", "https://h/2.tar?sig=b"], "different query strings"),
        (["/a/1.tar", "/a/./1.tar"], "named twice"),
        (["s3://b//1.tar"], "without empty"),
    ],
)
def test_shards_that_make_no_set_are_refused(urls: list[str], message: str) -> None:
    """Another store, another signature, a shard twice or an odd name is a clear error, without the signature."""
    with pytest.raises(ConfigError, match=message) as caught:
        common_root(urls)
    assert "sig=" not in str(caught.value)


def test_folders_patterns_and_files_are_found(tmp_path: Path) -> None:
    """A folder stands for its tars in name order, braces and stars for what they match."""
    for name in ("b.tar", "a.tar", "sub/c.tar", "a.idx", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    options = StorageOptions()
    assert list(find_shards(str(tmp_path), options).names) == ["a.tar", "b.tar", "sub/c.tar"]
    assert list(find_shards(f"{tmp_path}/{{b,a}}.tar", options).names) == ["b.tar", "a.tar"]
    both = [f"{tmp_path}/*.tar", f"{tmp_path}/sub/"]
    assert list(find_shards(both, options).names) == ["a.tar", "b.tar", "sub/c.tar"]


def test_folder_without_tars_is_refused(tmp_path: Path) -> None:
    """An empty folder is a mistake."""
    with pytest.raises(ConfigError, match=r"no \.tar file"):
        find_shards(str(tmp_path), StorageOptions())
