import contextlib
import hashlib
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import ConfigError, FormatError, IndexFormatError
from janus_shards.format.columns import Strings, pack_map
from janus_shards.format.index import INDEX_MAGIC, MAX_INLINE_BYTES, ColumnValue, FieldSpan, IndexBuilder, ShardIndex
from janus_shards.format.tar import MAX_TAR_BYTES, encode_header

SHA256 = hashlib.sha256(b"shard").digest()
COLUMNS: dict[str, st.SearchStrategy[ColumnValue]] = {
    "width": st.integers(-(2**63), 2**63 - 1),
    "score": st.floats(allow_nan=False),
    "is_test": st.booleans(),
    "licence": st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
}

# A field name that is no UTF-8 is among them.
values = st.dictionaries(st.sampled_from(["jpg", "txt", "json", "seg.png", "caf\udce9"]), st.binary(max_size=40))
samples = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), values), max_size=12)


def spans_of(fields: Mapping[str, bytes], start: int = 0) -> list[FieldSpan]:
    """Fields one after the other, as members of a shard that begin at ``start``."""
    spans = []
    for name, data in fields.items():
        start += 512
        spans.append(FieldSpan(name, start, len(data), xxhash.xxh3_64_intdigest(data), data))
        start += len(data) + -len(data) % 512
    return spans


def build(
    rows: Sequence[tuple[str, Mapping[str, bytes]]],
    *,
    inline_bytes: int = 4096,
    columns: Sequence[Mapping[str, ColumnValue]] = (),
) -> tuple[ShardIndex, list[list[FieldSpan]]]:
    """The index of these samples, and where their fields lie."""
    builder, start, placed = IndexBuilder("s.tar", inline_bytes=inline_bytes), 0, []
    for at, (key, fields) in enumerate(rows):
        placed.append(spans_of(fields, start))
        builder.add(key, placed[-1], columns[at] if columns else None)
        start = max([start + 512, *(span.offset + span.size + -span.size % 512 for span in placed[-1])])
    return builder.build(tar_bytes=start + 1024, tar_sha256=SHA256), placed


def reread(index: ShardIndex) -> ShardIndex:
    """The index as a reader gets it."""
    return ShardIndex.decode(index.encode(), name="s.idx")


THREE = [("a", {"jpg": b"J" * 900, "txt": b"one"}), ("b", {"txt": b""}), ("c", {"jpg": b"K", "txt": b"three"})]


@given(samples, st.sampled_from([0, 1, 20, 4096]))
def test_every_sample_comes_back(rows: list[tuple[str, dict[str, bytes]]], inline_bytes: int) -> None:
    """Keys, fields in member order, places, sizes, hashes and inline data; the same bytes when written again."""
    index, placed = build(rows, inline_bytes=inline_bytes)
    found = reread(index)
    assert found.num_samples == len(rows)
    assert [found.key(row) for row in range(len(rows))] == [key for key, _ in rows]
    for row, spans in enumerate(placed):
        kept = [
            span if span.size < inline_bytes and span.field not in ("jpg", "seg.png") else span._replace(data=None)
            for span in spans
        ]
        assert found.fields_of(row) == kept
    assert (found.tar_bytes, found.tar_sha256) == (index.tar_bytes, SHA256)
    assert found.encode() == index.encode()


@given(samples, st.data())
def test_many_rows_are_answered_as_single_ones(rows: list[tuple[str, dict[str, bytes]]], data: st.DataObject) -> None:
    """``spans`` and ``inline_many`` take rows in any order, repeated or none, and give what each row has."""
    index, placed = build(rows)
    asked = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=20) if rows else st.just([]))
    for field in ("jpg", "txt", "nothing"):
        found = index.spans(field, np.array(asked, np.int64))
        expected = [next((span for span in placed[row] if span.field == field), None) for row in asked]
        assert found.offsets.tolist() == [span.offset if span else 0 for span in expected]
        assert found.sizes.tolist() == [span.size if span else -1 for span in expected]
        assert found.xxh3.tolist() == [span.xxh3 if span else 0 for span in expected]
        assert [array.dtype for array in found] == [np.int64, np.int64, np.uint64]
        inline = index.inline_many(field, np.array(asked, np.int64))
        assert inline == [span.data if span and field == "txt" else None for span in expected]


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=6))
def test_columns_of_every_type_come_back(columns: list[dict[str, ColumnValue]]) -> None:
    """Integers, floats, booleans and texts keep their values and get one dtype a column."""
    index = reread(build([(f"{row}", {}) for row in range(len(columns))], columns=columns)[0])
    expected_dtypes = {"width": np.int64, "score": np.float64, "is_test": np.bool_}
    for name in COLUMNS:
        found = index.columns[name]
        plain = found.texts() if isinstance(found, Strings) else found.tolist()
        assert plain == [row[name] for row in columns]
        assert isinstance(found, Strings) or found.dtype == expected_dtypes[name]


def test_a_field_that_some_rows_lack_has_a_row_list() -> None:
    """Rows are stored as soon as one is missing, and not stored when every row has the field."""
    index = reread(build(THREE)[0])
    assert index.fields["txt"].rows is None
    assert index.fields["jpg"].rows is not None
    assert index.fields["jpg"].rows.tolist() == [0, 2]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=700),
    st.booleans(),
    st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
)
def test_inline_data_of_many_rows_is_found(sizes: list[int], sparse: bool, asked: list[int]) -> None:
    """Any rows of a long shard, near each other or far apart, give the data that they have."""
    rows = [
        (str(at), {"txt": bytes([at % 256]) * size, **({"cls": b"%d" % at} if not sparse or at % 3 == 0 else {})})
        for at, size in enumerate(sizes)
    ]
    found = reread(build(rows, inline_bytes=9)[0])
    places = [at % len(sizes) for at in asked]
    for name in ("txt", "cls"):
        expected = [rows[at][1].get(name) for at in places]
        expected = [data if data is not None and len(data) < 9 else None for data in expected]
        assert found.inline_many(name, np.array(places)) == expected
        assert [found.inline(name, at) for at in places] == expected


def test_inline_data_is_what_is_shorter_than_the_limit() -> None:
    """From the limit on a value stays in the shard only; pictures always do; an empty value is inline and empty."""
    rows = [("a", {"txt": b"1234", "jpg": b"1"}), ("b", {"txt": b"123"}), ("c", {"txt": b""})]
    index = build(rows, inline_bytes=4)[0]
    assert [index.inline("txt", row) for row in range(3)] == [None, b"123", b""]
    assert index.inline("jpg", 0) is None
    assert index.fields["txt"].inline == b"123"


def test_sizes_of_four_gibibytes_and_more_are_kept() -> None:
    """Sizes get 64 bits when one needs them, and offsets reach up to 2 TiB."""
    builder = IndexBuilder("s.tar")
    builder.add("a", [FieldSpan("mp4", MAX_TAR_BYTES - 2**33, 2**33, 7, None), FieldSpan("jpg", 512, 1, 7, None)])
    index = reread(builder.build(tar_bytes=MAX_TAR_BYTES, tar_sha256=SHA256))
    assert index.fields_of(0)[1] == ("mp4", MAX_TAR_BYTES - 2**33, 2**33, 7, None)
    assert index.fields["mp4"].sizes.dtype == np.uint64
    assert index.fields["jpg"].sizes.dtype == np.uint32


def test_a_sample_of_picture_and_caption_costs_at_most_48_bytes() -> None:
    """Target of the format: jpg and txt, keys of nine characters, without inline data."""
    rows = [(f"{row:09d}", {"jpg": b"x", "txt": b"y"}) for row in range(1000)]
    assert len(build(rows, inline_bytes=0)[0].encode()) / len(rows) <= 48


def test_the_builder_keeps_machine_numbers() -> None:
    """Collecting a row of two fields takes less than 100 bytes beside inline data."""
    builder, span = IndexBuilder("s.tar"), FieldSpan("jpg", 512, 700, 2**63, None)
    tracemalloc.start()
    try:
        for row in range(20_000):
            builder.add(f"{row:09d}", [span, span._replace(field="png")])
        assert tracemalloc.get_traced_memory()[1] < 100 * 20_000
    finally:
        tracemalloc.stop()


REFUSED_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "new column": ("bad_column", {"columns": {"width": 1, "height": 1}}),
    "missing column": ("bad_column", {"columns": {}}),
    "integer beyond 64 bits": ("bad_column", {"columns": {"width": 2**63}}),
    "list": ("bad_column", {"columns": {"width": [1]}}),
    "missing value": ("bad_column", {"columns": {"width": None}}),
    "text that is no Unicode": ("bad_column", {"columns": {"width": "\ud800"}}),
    "field twice": ("duplicate_field", {"spans": [FieldSpan("jpg", 512, 1, 1, None)] * 2}),
    "offset within a block": ("shard_too_large", {"spans": [FieldSpan("jpg", 513, 1, 1, None)]}),
    "offset beyond 2 TiB": ("shard_too_large", {"spans": [FieldSpan("jpg", MAX_TAR_BYTES, 1, 1, None)]}),
    "65,536 fields": (
        "too_many_fields",
        {"spans": [FieldSpan(f"{at}.jpg", 512, 1, 1, None) for at in range(65_536)]},
    ),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_a_refused_row_leaves_the_builder_as_it_was(case: str) -> None:
    """The error names shard and key, and rows before and after it stand."""
    kind, row = REFUSED_ROWS[case]
    builder = IndexBuilder("s.tar")
    builder.add("a", [], {"width": 1})
    with pytest.raises(ConfigError) as raised:
        builder.add("b", row.get("spans", []), row.get("columns", {"width": 2}))
    assert (raised.value.kind, raised.value.key) == (kind, "b")
    builder.add("c", [], {"width": 3})
    index = builder.build(tar_bytes=2048, tar_sha256=SHA256)
    assert (index.keys.texts(), list(index.fields), index.columns["width"].tolist()) == (["a", "c"], [], [1, 3])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2.5], [1.0, 2.5]), ([np.int32(1), np.float32(0.5)], [1.0, 0.5]), ([1, True], None), ([2**53 + 1, 0.5], None)],
)
def test_mixed_numbers_become_floats_only_when_none_is_rounded(
    values: list[ColumnValue], expected: list[float] | None
) -> None:
    """Integers and floats share a float column; booleans, and integers a float would round, are refused."""
    builder = IndexBuilder("s.tar")
    for value in values:
        builder.add("k", [], {"c": value})
    with contextlib.nullcontext() if expected else pytest.raises(ConfigError, match="'c'"):
        index = builder.build(tar_bytes=2048, tar_sha256=SHA256)
        assert index.columns["c"].tolist() == expected  # type: ignore[union-attr]


def test_no_index_is_built_that_could_not_be_read() -> None:
    """A shard beyond 2 TiB, fields beyond its end and absurd inline limits are refused while writing."""
    builder = IndexBuilder("s.tar")
    builder.add("a", [FieldSpan("jpg", 512, 600, 1, None)])
    with pytest.raises(ConfigError, match="2 TiB"):
        builder.build(tar_bytes=MAX_TAR_BYTES + 512, tar_sha256=SHA256)
    with pytest.raises(ValueError, match="ends beyond"):
        builder.build(tar_bytes=1024, tar_sha256=SHA256)
    with pytest.raises(ConfigError, match="16 MiB"):
        IndexBuilder("s.tar", inline_bytes=MAX_INLINE_BYTES + 1)
    with pytest.raises(ValueError, match="needed for the index"):
        builder.add("b", [FieldSpan("txt", 512, 600, 1, None)])


def test_each_damaged_byte_and_each_cut_is_noticed() -> None:
    """A bit that flips anywhere, and a file cut anywhere, is an error of the format that names the index."""
    data = build(THREE, columns=[{"width": row, "licence": "cc0"} for row in range(3)])[0].encode()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]):
            with pytest.raises(FormatError, match=r"s\.idx"):
                ShardIndex.decode(damaged, name="s.idx")


Content = dict[str, Any]


def content() -> Content:
    """The map of a small index, to be damaged."""
    data = build(THREE, columns=[{"width": row} for row in range(3)])[0].encode()
    return {key: value for key, value in msgpack.unpackb(data).items() if key not in ("magic", "version", "xxh3")}


def put(*path: str, value: object) -> Callable[[Content], None]:
    """A change that sets one entry."""

    def change(damaged: Content) -> None:
        for name in path[:-1]:
            damaged = damaged[name]
        damaged[path[-1]] = value

    return change


def u4(*numbers: int) -> list[object]:
    """A stored u32 array."""
    return ["<u4", np.array(numbers, "<u4").tobytes()]


CONTRADICTIONS: dict[str, tuple[str, Callable[[Content], None]]] = {
    "more rows than keys": ("offsets", put("num_samples", value=4)),
    "more rows than the shard has blocks": ("num_samples", put("tar_bytes", value=1024)),
    "shard of 2**63 bytes": ("tar_bytes", put("tar_bytes", value=2**63)),
    "digest of another length": ("tar_sha256", put("tar_sha256", value=b"")),
    "field beyond the end": ("offset", put("fields", "jpg", "offset", value=u4(1, 2**32 - 1))),
    "size beyond the end": ("offset", put("fields", "jpg", "size", value=u4(900, 2**32 - 1))),
    "size of 2**64 - 1": ("offset", put("fields", "jpg", "size", value=["<u8", b"\xff" * 16])),
    "offset in 64 bits": ("offset", put("fields", "jpg", "offset", value=["<u8", bytes(16)])),
    "rows that do not rise": ("rows", put("fields", "jpg", "rows", value=u4(1, 1))),
    "rows that fall": ("rows", put("fields", "jpg", "rows", value=u4(2, 0))),
    "row that does not exist": ("rows", put("fields", "jpg", "rows", value=u4(0, 3))),
    "fewer hashes than rows": ("xxh3", put("fields", "jpg", "xxh3", value=["<u8", bytes(8)])),
    "too little inline data": ("inline", put("fields", "txt", "inline", value=b"onethre")),
    "too much inline data": ("inline", put("fields", "txt", "inline", value=b"onethree!")),
    "inline limit above 16 MiB": ("inline_bytes", put("fields", "txt", "inline_bytes", value=2**24 + 1)),
    "inline limit without data": ("inline", put("fields", "jpg", "inline_bytes", value=10)),
    "field with a slash": ("fields/../x", put("fields", "../x", value={})),
    "field without a name": ("fields/", put("fields", "", value={})),
    "column of another length": ("columns/width/values", put("columns", "width", "values", value=["<i8", b""])),
    "column of unsigned numbers": ("columns/width/values", put("columns", "width", "values", value=u4(1, 2, 3))),
    "column that is nothing": ("columns/width", put("columns", "width", value=None)),
    "column of too few texts": (
        "columns/width/strings/offsets",
        put("columns", "width", value={"strings": {"offsets": u4(0), "data": b""}}),
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_numbers_that_contradict_each_other_are_refused(case: str) -> None:
    """Every offset, size and count is checked against the shard, and the message names the entry."""
    entry, change = CONTRADICTIONS[case]
    damaged = content()
    change(damaged)
    with pytest.raises(IndexFormatError, match=rf"s\.idx: entry '[a-z/]*{entry}") as raised:
        ShardIndex.decode(pack_map(INDEX_MAGIC, damaged), name="s.idx")
    assert raised.value.shard == "s.idx"


def test_entries_of_later_releases_are_ignored() -> None:
    """A map may hold more than this release knows."""
    extended = content() | {"later": 1}
    extended["fields"]["jpg"]["later"] = [1, 2]
    assert ShardIndex.decode(pack_map(INDEX_MAGIC, extended), name="s.idx").key(2) == "c"


@given(st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=3))
def test_forged_indexes_are_refused_or_stay_inside_the_shard(changes: list[tuple[int, bytes]]) -> None:
    """Changed bytes behind a right checksum give an error of the format, or an index that every method can answer."""
    forged = bytearray(pack_map(INDEX_MAGIC, content()))
    for at, patch in changes:
        start = at % len(forged)
        forged[start : start + len(patch)] = patch
    forged[-8:] = xxhash.xxh3_64_digest(bytes(forged[:-8]))
    with contextlib.suppress(FormatError):
        index = ShardIndex.decode(bytes(forged), name="s.idx")
        for row in range(index.num_samples):
            assert index.key(row) is not None
            for span in index.fields_of(row):
                assert 0 <= span.offset <= span.offset + span.size <= index.tar_bytes
                assert span.data is None or len(span.data) == span.size
        index.encode()


def test_the_header_of_a_member_lies_in_front_of_its_data() -> None:
    """The test's own layout is a shard's: one header block in front of each short name."""
    assert spans_of({"jpg": b"x"})[0].offset == len(encode_header("a.jpg", 1))
