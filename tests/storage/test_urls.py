import pathlib

import pytest

from janus_shards.errors import ConfigError
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.urls import expand_pattern, expand_urls, open_storage, split_url


@pytest.mark.parametrize(
    ("url", "root", "name"),
    [
        ("s3://bkt/plain/part-000000.tar", "s3://bkt/plain", "part-000000.tar"),
        ("s3://bkt/k.tar", "s3://bkt", "k.tar"),
        ("s3://bkt/50%25 off/x%20y#1?.tar", "s3://bkt/50%25 off", "x%20y#1?.tar"),
        ("s3://bkt//double//slash.tar", "s3://bkt//double", "/slash.tar"),
        ("s3://bkt//k.tar", "s3://bkt", "/k.tar"),
        ("s3a://bkt/a/../b/./c.tar", "s3://bkt/a/../b/.", "c.tar"),
        ("hf://datasets/u/d/x.tar", "hf://datasets/u/d", "x.tar"),
        ("/data/a b%20.tar", "/data", "a b%20.tar"),
        ("x.tar", ".", "x.tar"),
        ("/x.tar", "/", "x.tar"),
        ("file:///data/a%20b.tar", "/data", "a b.tar"),
        ("https://h:8/d%20e/a%2Bb.tar?sig=s", "https://h:8/d%20e?sig=s", "a+b.tar"),
    ],
)
def test_url_splits_into_root_and_name(url: str, root: str, name: str) -> None:
    """A URL of an object is cut at its last folder; only http and file URLs are percent-decoded."""
    assert split_url(url) == (root, name)


@pytest.mark.parametrize("url", ["s3://bkt", "s3://bkt/", "/data/", "https://host/", "pipe:cat x", ""])
def test_url_without_object_is_refused(url: str) -> None:
    """A URL that names no object says so."""
    with pytest.raises(ConfigError):
        split_url(url)


@pytest.mark.parametrize(
    ("pattern", "urls"),
    [
        ("p-{000..002}.tar", ["p-000.tar", "p-001.tar", "p-002.tar"]),
        ("p-{8..11}.tar", ["p-8.tar", "p-9.tar", "p-10.tar", "p-11.tar"]),
        ("p-{08..11}.tar", ["p-08.tar", "p-09.tar", "p-10.tar", "p-11.tar"]),
        ("{a,b}/p-{0..1}.tar", ["a/p-0.tar", "a/p-1.tar", "b/p-0.tar", "b/p-1.tar"]),
        ("p-{2..0}.tar", ["p-2.tar", "p-1.tar", "p-0.tar"]),
        ("p-{0..4..2}.tar", ["p-0.tar", "p-2.tar", "p-4.tar"]),
        ("x/{0..1}::y/7", ["x/0", "x/1", "y/7"]),
        ("http://[::1]:9/{a,b}", ["http://[::1]:9/a", "http://[::1]:9/b"]),
    ],
)
def test_pattern_expands_in_order(pattern: str, urls: list[str]) -> None:
    """Braces count with the zeros they were written with, list, multiply; double colons join."""
    assert expand_pattern(pattern) == urls


@pytest.mark.parametrize("pattern", ["p-{000007}.tar", "p-{0..3.tar", "p-0..3}.tar", "{a,{b,c}}", "{}"])
def test_malformed_pattern_is_refused(pattern: str) -> None:
    """Braces that say nothing are a mistake, not part of a name."""
    with pytest.raises(ConfigError) as caught:
        expand_pattern(pattern)
    assert caught.value.kind == "bad_pattern"


@pytest.mark.parametrize(
    "pattern", ["{0..9999999999}.tar", "{0..9999}-{0..9999}-{0..9999}", "{0..99999999999999999999999}"]
)
def test_huge_pattern_is_refused_before_it_expands(pattern: str) -> None:
    """The number of objects is known before memory is spent on them."""
    with pytest.raises(ConfigError) as caught:
        expand_pattern(pattern)
    assert caught.value.kind == "pattern_too_large"


def test_command_is_refused_and_names_the_direct_url() -> None:
    """A webdataset pipe is never run; the message says what to write instead, without its signature."""
    with pytest.raises(ConfigError, match=r"give the URL itself: https://h/a\.tar(\n|$)"):
        open_storage("pipe:curl -s -L https://h/a.tar?sig=secret || true")


def test_paths_and_file_urls_are_local(tmp_path: pathlib.Path) -> None:
    """A folder opens with or without file://."""
    (tmp_path / "a b").mkdir()
    for url in (f"{tmp_path}/a b", f"{tmp_path}/a b/", (tmp_path / "a b").as_uri()):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.url == f"{tmp_path}/a b"


def test_star_lists_one_folder_in_name_order(tmp_path: pathlib.Path) -> None:
    """A star matches inside one folder name, and only whole names."""
    for name in ("p-1.tar", "p-0.tar", "p-0.tar.idx", "q.tar", "sub/p-2.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert expand_urls(f"{tmp_path}/p-*.tar") == [f"{tmp_path}/p-0.tar", f"{tmp_path}/p-1.tar"]
    assert expand_urls([f"{tmp_path}/*/p-*.tar", f"{tmp_path}/{{a,b}}"])[0] == f"{tmp_path}/sub/p-2.tar"


def test_star_that_matches_nothing_is_an_error(tmp_path: pathlib.Path) -> None:
    """An empty match is reported before training starts; a star for a bucket or on a web server is refused."""
    kinds = []
    for pattern in (f"{tmp_path}/*.tar", f"{tmp_path}/gone/*.tar", "s3://*/x.tar", "https://h/*.tar"):
        with pytest.raises(ConfigError) as caught:
            expand_urls(pattern)
        kinds.append(caught.value.kind)
    assert kinds == ["empty_dataset", "empty_dataset", "bad_pattern", "bad_pattern"]
