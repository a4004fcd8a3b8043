from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import TarFormatError
from janus_shards.format.grouping import SampleGroups, group_samples
from janus_shards.format.tar import MemberKind, TarMember


def files(*names: str, kind: MemberKind = "file") -> list[TarMember]:
    """Members of these names, each with its place as offset."""
    return [TarMember(name, kind, 512 * at, at, at, None) for at, name in enumerate(names)]


def keys_and_fields(members: Iterable[TarMember]) -> list[tuple[str, list[str]]]:
    """What grouping gives, without the places."""
    return [(key, [span.field for span in spans]) for key, spans in group_samples(members, shard="s.tar")]


def keys_past_errors(groups: SampleGroups) -> tuple[list[str], list[TarFormatError]]:
    """All samples and all errors, as a caller sees them who skips bad samples."""
    keys, errors = [], []
    while True:
        try:
            keys.append(next(groups)[0])
        except TarFormatError as exc:
            errors.append(exc)
        except StopIteration:
            return keys, errors


def test_members_with_one_key_are_one_sample() -> None:
    """Fields come in member order, lower case, with the place of their member."""
    samples = list(group_samples(files("a.JPG", "a.txt", "b.seg.png"), shard="s.tar"))
    assert [(key, [tuple(span) for span in spans]) for key, spans in samples] == [
        ("a", [("jpg", 0, 0, 0, None), ("txt", 512, 1, 1, None)]),
        ("b", [("seg.png", 1024, 2, 2, None)]),
    ]


def test_junk_and_links_do_not_split_a_sample() -> None:
    """What belongs to no sample is passed over, also between two fields, and counted."""
    members = files("d/a.jpg", "d/._a.jpg", "d/.DS_Store", "__MACOSX/d/a.txt", "README", "d/a.txt")
    members[1:1] = [*files("d/b.jpg", kind="link"), *files("d", kind="directory"), *files("d/a.x", kind="other")]
    groups = group_samples(members, shard="s.tar")
    assert [(key, len(spans)) for key, spans in groups] == [("d/a", 2)]
    assert (groups.num_samples, groups.num_links, groups.num_ignored) == (1, 1, 4)


@pytest.mark.parametrize("names", [("b.jpg", "b.JPG"), ("b.jpg", "b.txt", "b.jpg"), ("b.x", "README", "b.X", "b.x")])
def test_a_field_that_occurs_twice_is_refused(names: tuple[str, ...]) -> None:
    """By name or by case, the error names shard, key and field, and the samples around can still be had."""
    groups = group_samples(files("a.jpg", *names, "c.jpg"), shard="s.tar")
    keys, errors = keys_past_errors(groups)
    assert keys == ["a", "c"]
    (error,) = errors
    assert (error.kind, error.shard, error.key) == ("duplicate_field", "s.tar", "b")
    assert all(part in str(error) for part in ("s.tar", "'b'", repr(error.field)))


def test_a_key_that_comes_back_is_refused() -> None:
    """A sample in two pieces would otherwise be two samples, or lack fields, without a word."""
    keys, errors = keys_past_errors(group_samples(files("a.jpg", "b.jpg", "a.txt", "a.json", "c.jpg"), shard="s.tar"))
    assert keys == ["a", "b", "c"]
    assert [(error.kind, error.key, error.field) for error in errors] == [("interleaved_key", "a", "txt")]


def test_a_sample_is_delivered_before_the_error_behind_it() -> None:
    """The error of a member does not take the whole sample in front of it away."""
    groups = group_samples(files("a.jpg", "b.jpg", "a.txt"), shard="s.tar")
    assert [next(groups)[0], next(groups)[0]] == ["a", "b"]
    with pytest.raises(TarFormatError, match="'a'"):
        next(groups)
    assert list(groups) == []


def test_a_cut_shard_delivers_no_cut_sample() -> None:
    """When members end in an error, the sample that was being read is dropped."""

    def cut() -> Iterator[TarMember]:
        yield from files("a.jpg", "b.jpg")
        raise TarFormatError("cut", kind="truncated_shard")

    keys, errors = keys_past_errors(group_samples(cut(), shard="s.tar"))
    assert keys == ["a"]
    assert [error.kind for error in errors] == ["truncated_shard"]


def test_no_members_are_no_samples() -> None:
    """An empty shard, or one of junk alone, has no samples and no error."""
    assert keys_and_fields([]) == []
    assert keys_and_fields(files("README", ".hidden")) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["jpg", "txt", "JPG"])), max_size=10))
def test_delivered_samples_are_the_runs_of_one_key(parts: list[tuple[str, str]]) -> None:
    """Whatever comes: each delivered sample is a run of members, whole, with each field once; the rest are errors."""
    runs: list[tuple[str, list[str]]] = []
    for key, field in parts:
        if not runs or runs[-1][0] != key:
            runs.append((key, []))
        runs[-1][1].append(field.lower())
    seen = [key for key, _ in runs]
    good = [
        (key, fields)
        for at, (key, fields) in enumerate(runs)
        if key not in seen[:at] and len(set(fields)) == len(fields)
    ]
    groups = group_samples(files(*(f"{key}.{field}" for key, field in parts)), shard="s.tar")
    keys, errors = keys_past_errors(groups)
    assert keys == [key for key, _ in good]
    assert len(errors) == len(runs) - len(good)
    assert groups.num_samples == len(good)
