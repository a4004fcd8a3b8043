import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError
from janus_shards.format.naming import (
    check_field,
    check_key,
    check_prefix,
    check_relative,
    generation_name,
    index_name,
    is_field,
    may_inline,
    shard_name,
    split_member,
)

# Dots, slashes and underscores far more often than chance would bring them.
awkward_text = st.text(st.one_of(st.sampled_from("./_aAéЖ\\\n"), st.characters()), max_size=12)

SPLIT = {
    "a.jpg": ("a", "jpg"),
    "a.b.c.JPG": ("a", "b.c.jpg"),
    "some/22.0/1.1.png": ("some/22.0/1", "1.png"),
    "./train/0001.txt": ("./train/0001", "txt"),
    "0417 Take 3.5 (studio mix).wav": ("0417 Take 3", "5 (studio mix).wav"),
    "IMG_1.JPG": ("IMG_1", "jpg"),
    "__a.txt": ("__a", "txt"),
    "a..b": ("a", ".b"),
}
IGNORED = ["README", "v1.0/README", ".DS_Store", "d/._0001.jpg", "a.", "d/", "", "__x__", "__index.json__"]
IGNORED += ["__MACOSX/a.jpg", "d/__MACOSX/e/a.jpg", "__meta__/a.jpg"]


@pytest.mark.parametrize(("path", "expected"), SPLIT.items())
def test_key_ends_at_the_first_dot_of_the_last_component(path: str, expected: tuple[str, str]) -> None:
    """Dots in folders belong to the key, further dots to the field, and only the field is lower-cased."""
    assert split_member(path) == expected


@pytest.mark.parametrize("path", IGNORED)
def test_members_of_no_sample_are_ignored(path: str) -> None:
    """Hidden files, files of macOS, webdataset's metadata and names without a field give no key."""
    assert split_member(path) is None


@given(awkward_text, awkward_text)
def test_what_may_be_written_is_read_back(key: str, field: str) -> None:
    """A key and a field that the writer accepts come back from their member path unchanged."""
    try:
        check_key(key)
        check_field(field)
    except ConfigError:
        return
    assert split_member(f"{key}.{field}") == (key, field)


@given(awkward_text)
def test_a_split_loses_nothing_but_case(path: str) -> None:
    """Key, dot and field together are the path again, and the field is one that an index takes."""
    names = split_member(path)
    if names is not None:
        key, field = names
        assert path.startswith(key + ".")
        assert path[len(key) + 1 :].lower() == field
        assert is_field(field) == ("\0" not in field)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a//b",
        "./a",
        "a/../b",
        "a.b",
        "a/",
        "a\0",
        "a\ud800",
        "__MACOSX/a",
        "d/__MACOSX/a",
        "__x__/a",
        "__a__",
    ],
)
def test_keys_that_would_not_come_back_are_refused(key: str) -> None:
    """Writing refuses what reading would change, skip or take for a path outside."""
    with pytest.raises(ConfigError) as raised:
        check_key(key)
    assert (raised.value.kind, raised.value.key) == ("bad_key", key)


@pytest.mark.parametrize("field", ["", "JPG", "a/b", "a\0", ".jpg", "x__", "\ud800"])
def test_fields_that_would_not_come_back_are_refused(field: str) -> None:
    """A field is lower case, has no slash, and cannot turn its member into one that readers skip."""
    with pytest.raises(ConfigError, match="field"):
        check_field(field)


def test_lengths_are_limited_to_what_a_file_system_takes() -> None:
    """A key has at most 4,096 bytes and a field 255, counted in UTF-8."""
    check_key("é" * 2048)
    check_field("é" * 127)
    with pytest.raises(ConfigError, match="4096"):
        check_key("é" * 2049)
    with pytest.raises(ConfigError, match="255"):
        check_field("é" * 128)


def test_shards_indexes_and_generations_are_numbered_with_six_digits() -> None:
    """Names sort like numbers up to a million and stay unique beyond."""
    assert shard_name("train", 7) == "train-000007.tar"
    assert shard_name("train", 1_234_567) == "train-1234567.tar"
    assert index_name("sub/train-000007.tar") == "sub/train-000007.idx"
    assert index_name("train.tar.x") == "train.tar.x.idx"
    assert generation_name(12) == "manifest-000012.msgpack"


@pytest.mark.parametrize("prefix", ["", "-a", "a/b", "a b", "..", "a.b", "é"])
def test_prefixes_are_plain_file_names(prefix: str) -> None:
    """A prefix can neither leave the folder nor need quoting."""
    check_prefix("train_v2=x-y")
    with pytest.raises(ConfigError, match="prefix"):
        check_prefix(prefix)


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", "./a", "a\\b", "a\0", "s3://bucket/a"])
def test_paths_that_leave_the_root_are_no_relative_paths(name: str) -> None:
    """Absolute paths, URLs and paths with '..' are refused; folders below the root are fine."""
    assert not check_relative(name)
    assert check_relative("a/b c/d.tar")


def test_media_and_tensors_are_never_inlined() -> None:
    """The last dotted part of a field decides: captions may live in the index, pictures may not."""
    assert may_inline("txt")
    assert may_inline("jpg.json")
    assert not may_inline("jpg")
    assert not may_inline("left.png")
    assert not may_inline("npy")
