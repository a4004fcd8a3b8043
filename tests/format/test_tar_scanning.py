import contextlib
import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.errors import TarFormatError
from janus_shards.format.tar import END_BLOCKS, TarMember, TarScanner, encode_header, padding

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
KINDS = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "directory", tarfile.LNKTYPE: "link", tarfile.SYMTYPE: "link"}

letters = st.one_of(st.sampled_from("ab.é猫"), st.characters(exclude_characters="\0/", exclude_categories=["Cs"]))
names = st.lists(st.text(letters, min_size=1, max_size=40), min_size=1, max_size=8).map("/".join)
entries = st.tuples(names, st.sampled_from(list(KINDS)), st.binary(max_size=1200), names)


def by_tarfile(parts: list[tuple[str, bytes, bytes, str]], format_name: str, pax: dict[str, str]) -> bytes:
    """An archive that Python's tarfile wrote; entries that the format cannot say are left out."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=FORMATS[format_name], pax_headers=pax, encoding="utf-8") as tar:
        for name, kind, data, target in parts:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mtime, entry.linkname = kind, 1_700_000_000.25 if format_name == "pax" else 7, target
            entry.size = len(data) if kind == tarfile.REGTYPE else 0
            try:
                entry.tobuf(FORMATS[format_name])
            except ValueError:
                continue
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def chunked(data: bytes, size: int) -> list[bytes]:
    """The bytes in pieces, an empty one among them."""
    return [b"", *(data[at : at + size] for at in range(0, len(data), size))]


def member(name: str, data: bytes = b"", *, kind: bytes = b"0", size: int | None = None) -> bytes:
    """One member of any type, its checksum right."""
    header = bytearray(encode_header("x" * 9, len(data) if size is None else size))
    header[:100] = name.encode().ljust(100, b"\0")
    header[156:157] = kind
    return sealed(header) + data + padding(len(data))


def sealed(header: bytes | bytearray, *, signed: bool = False) -> bytes:
    """The header with a right checksum, of unsigned bytes or as some historic writers had it."""
    blank = bytes(header[:148]) + b" " * 8 + bytes(header[156:])
    total = sum(byte - 256 * (signed and byte > 127) for byte in blank)
    return blank[:148] + b"%06o\0 " % total + blank[156:]


def patched(header: bytes, at: int, data: bytes) -> bytes:
    """A header with other bytes at one place and a right checksum."""
    return sealed(header[:at] + data + header[at + len(data) :])


def pax(*records: tuple[str, str], kind: bytes = b"x") -> bytes:
    """A pax header of these records, each under 90 bytes."""
    lines = [f" {keyword}={value}\n".encode() for keyword, value in records]
    return member("p", b"".join(b"%02d%b" % (len(line) + 2, line) for line in lines), kind=kind)


def scan(data: bytes, *, chunk: int = 1 << 20, keep_bytes: int = 0) -> list[TarMember]:
    """All members of a tar."""
    return list(TarScanner(chunked(data, chunk), shard="s.tar", keep_bytes=keep_bytes))


@given(
    st.lists(entries, max_size=8),
    st.sampled_from(list(FORMATS)),
    st.sampled_from([{}, {"comment": "all", "mtime": "3"}]),
    st.sampled_from([1, 100, 512, 777, 1 << 20]),
)
def test_members_are_those_of_tarfile(
    parts: list[tuple[str, bytes, bytes, str]], format_name: str, global_pax: dict[str, str], chunk: int
) -> None:
    """Names, kinds, sizes and data offsets are those of Python's tarfile, however the bytes are cut into chunks."""
    # A tar of nothing but a global header is good here and an error in tarfile.
    data = by_tarfile([*parts, ("last.txt", tarfile.REGTYPE, b"", "")], format_name, global_pax)
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as tar:
        expected = [
            (entry.name.rstrip("/"), KINDS[entry.type], entry.size if entry.isreg() else 0, entry.offset_data)
            for entry in tar
        ]
    found = scan(data, chunk=chunk)
    assert [(each.name.rstrip("/"), each.kind, each.size, each.offset) for each in found] == expected


@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(1, 4000), st.integers(0, 3000))
def test_data_and_hash_are_those_of_the_bytes(values: list[bytes], chunk: int, keep_bytes: int) -> None:
    """Each file has the XXH3-64 of its bytes, and the bytes themselves up to the asked length."""
    data = b"".join(member(f"{at}.txt", value) for at, value in enumerate(values)) + END_BLOCKS
    for found, value in zip(scan(data, chunk=chunk, keep_bytes=keep_bytes), values, strict=True):
        assert found.xxh3 == xxhash.xxh3_64_intdigest(value)
        assert found.data == (value if len(value) <= keep_bytes else None)
        assert data[found.offset : found.offset + found.size] == value


A_TXT = member("a.txt", b"hello")
EXTENDED = {
    "GNU long name": (member("L", b"d/long.txt\0", kind=b"L") + A_TXT, "d/long.txt", 5),
    "GNU long link name": (member("K", b"target\0", kind=b"K") + A_TXT, "a.txt", 5),
    "pax path": (pax(("path", "d/é.txt")) + A_TXT, "d/é.txt", 5),
    "pax path over a GNU long name": (pax(("path", "p.txt")) + member("L", b"g.txt\0", kind=b"L") + A_TXT, "p.txt", 5),
    "Solaris pax": (pax(("path", "s.txt"), kind=b"X") + A_TXT, "s.txt", 5),
    "pax size": (pax(("size", "5")) + member("a.txt", b"hello", size=0), "a.txt", 5),
    "pax size over GNU long name": (
        pax(("size", "5")) + member("L", b"g.txt\0", kind=b"L") + member("a.txt", b"hello", size=0),
        "g.txt",
        5,
    ),
    "last record counts": (pax(("path", "1.txt"), ("path", "2.txt")) + A_TXT, "2.txt", 5),
    "global header": (pax(("comment", "x"), kind=b"g") + A_TXT, "a.txt", 5),
    "pre-POSIX": (patched(member("a.txt", b"hello", kind=b"\0")[:512], 257, bytes(8)) + A_TXT[512:], "a.txt", 5),
    "contiguous file": (member("a.txt", b"hello", kind=b"7"), "a.txt", 5),
    "base-256 size": (patched(A_TXT[:512], 124, b"\x80" + (5).to_bytes(11, "big")) + A_TXT[512:], "a.txt", 5),
    "times in GNU's prefix": (
        patched(patched(A_TXT[:512], 345, b"14371"), 257, b"ustar  \0") + A_TXT[512:],
        "a.txt",
        5,
    ),
    "signed checksum": (sealed(patched(A_TXT[:512], 0, b"\xe9"), signed=True) + A_TXT[512:], "\udce9.txt", 5),
    "name like bzip2": (member("BZh9.txt", b"hello"), "BZh9.txt", 5),
}  # fmt: skip


@pytest.mark.parametrize("case", EXTENDED)
def test_extended_headers_belong_to_the_next_member(case: str) -> None:
    """What stands in front says name and size of one member, and the member behind it is as its own header says."""
    start, name, size = EXTENDED[case]
    first, second = scan(start + member("z.txt", b"z") + END_BLOCKS)
    assert (first.name, first.size, first.xxh3) == (name, size, xxhash.xxh3_64_intdigest(b"hello"))
    assert (second.name, second.size) == ("z.txt", 1)


@pytest.mark.parametrize("kind", [b"D", b"V", b"Z"])
def test_data_of_foreign_types_is_passed_over(kind: bytes) -> None:
    """Dump folders, volume labels and types that nobody knows carry data; the next member is found behind it."""
    odd, plain = scan(member("odd", b"o" * 700, kind=kind) + A_TXT + END_BLOCKS)
    assert (odd.kind in ("directory", "other"), odd.size) == (True, 0)
    assert plain.name == "a.txt"


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6"])
def test_sizes_of_links_devices_and_folders_mean_nothing(kind: bytes) -> None:
    """A hard link may repeat the size of its target, but no data follows it."""
    scanner = TarScanner([member("odd", kind=kind, size=700) + A_TXT + END_BLOCKS], shard="s.tar")
    assert [each.name for each in scanner] == ["odd", "a.txt"]
    assert scanner.num_links == (kind in (b"1", b"2"))


@dataclass(frozen=True)
class End:
    """How a tar of one member ends, and what the scanner makes of it."""

    tail: bytes
    has_end: bool


ENDS = {
    "two end blocks": End(END_BLOCKS, True),
    "one end block": End(END_BLOCKS[:512], True),
    "padded to a record": End(bytes(9216), True),
    "half a block of zeros behind": End(bytes(1300), True),
    "no end block": End(b"", False),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_missing_end_is_told_but_loses_nothing(case: str) -> None:
    """Whole members are delivered whatever zeros follow; ``has_end`` says whether an end block was there."""
    data = A_TXT + ENDS[case].tail
    scanner = TarScanner(chunked(data, 100), shard="s.tar")
    assert [each.name for each in scanner] == ["a.txt"]
    assert (scanner.has_end, scanner.position) == (ENDS[case].has_end, len(data))


@pytest.mark.parametrize("data", [END_BLOCKS, bytes(10240)])
def test_an_empty_tar_has_no_members(data: bytes) -> None:
    """Zero blocks alone are a good tar."""
    assert scan(data) == []


REFUSED: dict[str, tuple[str, bytes]] = {
    "zero bytes": ("truncated_shard", b""),
    "web page": ("not_a_tar", b"<!DOCTYPE html><html>" * 90),
    "short web page": ("not_a_tar", b"<html>404</html>"),
    "gzip": ("compressed_shard", gzip.compress(A_TXT + END_BLOCKS)),
    "short gzip": ("compressed_shard", gzip.compress(b"")),
    "zstd": ("compressed_shard", b"\x28\xb5\x2f\xfd" + bytes(600)),
    "bzip2": ("compressed_shard", b"BZh91AY&SY" + bytes(600)),
    "xz": ("compressed_shard", b"\xfd7zXZ\0" + bytes(600)),
    "lz4": ("compressed_shard", b"\x04\x22\x4d\x18" + bytes(600)),
    "zip": ("compressed_shard", b"PK\x03\x04" + bytes(600)),
    "cut in the first header": ("truncated_shard", A_TXT[:300]),
    "cut in the first name field": ("truncated_shard", A_TXT[:90]),
    "cut in data": ("truncated_shard", A_TXT[:514]),
    "cut in padding": ("truncated_shard", A_TXT[:600]),
    "cut in a later header": ("truncated_shard", A_TXT + A_TXT[:300]),
    "long name, then nothing": ("truncated_shard", member("L", b"long.txt\0", kind=b"L")),
    "long name, then the end": ("truncated_shard", member("L", b"long.txt\0", kind=b"L") + END_BLOCKS),
    "pax header, then the end": ("truncated_shard", A_TXT + pax(("path", "b.txt")) + END_BLOCKS),
    "empty pax header, then the end": ("truncated_shard", pax() + END_BLOCKS),
    "pax header cut": ("truncated_shard", pax(("path", "b.txt"))[:530]),
    "wrong checksum at the start": ("bad_header", A_TXT[:100] + b"9" + A_TXT[101:]),
    "wrong checksum later": ("bad_header", A_TXT + b"9" + A_TXT[1:]),
    "size that is no number": ("bad_header", patched(A_TXT[:512], 124, b"99999999999\0") + A_TXT[512:]),
    "negative size": ("bad_header", patched(A_TXT[:512], 124, b"\xff" * 12) + A_TXT[512:]),
    "signed size": ("bad_header", patched(A_TXT[:512], 124, b"-0000000005\0") + A_TXT[512:]),
    "negative pax size": ("bad_header", pax(("size", "-5")) + A_TXT),
    "pax size with an underscore": ("bad_header", pax(("size", "1_0")) + A_TXT),
    "empty pax size": ("bad_header", pax(("size", "")) + A_TXT),
    "empty pax path": ("bad_header", pax(("path", "")) + A_TXT),
    "empty long name": ("bad_header", member("L", b"\0", kind=b"L") + A_TXT),
    "empty name": ("bad_header", member("", b"x")),
    "NUL in a pax path": ("bad_header", pax(("path", "a\0b.txt")) + A_TXT),
    "pax record without a length": ("bad_header", member("p", b"path=b.txt\n", kind=b"x") + A_TXT),
    "pax record that is too long": ("bad_header", member("p", b"99 path=b.txt\n", kind=b"x") + A_TXT),
    "pax record without a line feed": ("bad_header", member("p", b"13 path=b.txt", kind=b"x") + A_TXT),
    "pax record of length 0": ("bad_header", member("p", b"0 path=b.txt\n", kind=b"x") + A_TXT),
    "pax header of 2 MiB": ("bad_header", member("p", size=2 << 20, kind=b"x") + A_TXT),
    "two pax headers": ("bad_header", pax(("path", "b.txt")) + pax(("size", "1")) + A_TXT),
    "two long names": ("bad_header", member("L", b"b.txt", kind=b"L") * 2 + A_TXT),
    "path of all members": ("bad_header", pax(("path", "b.txt"), kind=b"g") + A_TXT),
    "size of all members": ("bad_header", pax(("size", "1"), kind=b"g") + A_TXT),
    "GNU sparse file": ("unsupported_member", member("s", b"x", kind=b"S")),
    "pax sparse file": ("unsupported_member", pax(("GNU.sparse.major", "1")) + A_TXT),
    "part of a file": ("unsupported_member", member("s", b"x", kind=b"M")),
    "size beyond every disk": ("truncated_shard", pax(("size", "99999999999999999999")) + A_TXT + END_BLOCKS),
    "joined tars": ("trailing_data", A_TXT + END_BLOCKS + A_TXT + END_BLOCKS),
    "garbage behind the end": ("trailing_data", A_TXT + END_BLOCKS + b"garbage"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_what_is_no_whole_tar_is_refused(case: str, chunk: int) -> None:
    """Each kind of damage has its error kind, and the message names the shard."""
    kind, data = REFUSED[case]
    with pytest.raises(TarFormatError, match=r"shard s\.tar: ") as raised:
        scan(data, chunk=chunk)
    assert (raised.value.kind, raised.value.shard) == (kind, "s.tar")


def test_messages_say_where_and_which() -> None:
    """A cut names member and offsets, a compressed shard its format, joined tars the first byte behind the end."""
    for data, expected in (
        (A_TXT[:514], r"offset 514, inside the 5 bytes of member 'a\.txt' that start at offset 512"),
        (gzip.compress(A_TXT), "gzip-compressed"),
        (A_TXT + bytes(1024) + b"x", "at offset 2048"),
    ):
        with pytest.raises(TarFormatError, match=expected):
            scan(data)


@given(st.binary(max_size=2000))
def test_any_bytes_are_members_or_an_error(data: bytes) -> None:
    """Nothing but ``TarFormatError`` is ever raised."""
    with_error(data)


SEEDS = [start for start, *_ in EXTENDED.values()] + [data for _, data in REFUSED.values()]


@given(
    st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4).map(b"".join),
    st.lists(st.tuples(st.integers(0, 4095), st.binary(min_size=1, max_size=12)), max_size=4),
    st.booleans(),
)
def test_damaged_archives_are_members_or_an_error(data: bytes, changes: list[tuple[int, bytes]], reseal: bool) -> None:
    """Mutated headers, their checksums made right again or not, are refused or give members inside the tar."""
    damaged = bytearray(data)
    for at, patch in changes:
        start = at % (len(damaged) + 1)
        damaged[start : start + len(patch)] = patch
    if reseal:
        for at in range(0, len(damaged) - 511, 512):
            damaged[at : at + 512] = sealed(damaged[at : at + 512])
    for found in with_error(bytes(damaged)):
        assert 512 <= found.offset <= found.offset + found.size <= len(damaged)


def with_error(data: bytes) -> list[TarMember]:
    """The members up to the first error, which must be ours."""
    found: list[TarMember] = []
    with contextlib.suppress(TarFormatError):
        found.extend(TarScanner(chunked(data, 999), shard="s.tar", keep_bytes=1000))
    return found


HUGE: dict[str, Callable[[], bytes]] = {
    "member of 8 EiB": lambda: pax(("size", str(2**63))) + A_TXT,
    "pax header of 8 GiB": lambda: member("p", size=8**11 - 1, kind=b"x"),
    "long name of 8 GiB": lambda: member("p", size=8**11 - 1, kind=b"L"),
    "thousand global headers": lambda: b"".join(pax((f"k{at}", "v"), kind=b"g") for at in range(1000)),
}


@pytest.mark.parametrize("case", HUGE)
def test_memory_does_not_follow_claims(case: str) -> None:
    """Headers that claim gigabytes cost the bytes that are there, and no more."""
    data = [HUGE[case]()]
    tracemalloc.start()
    try:
        with pytest.raises(TarFormatError):
            list(TarScanner([*data, b"x" * 700], shard="s.tar", keep_bytes=2**62))
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


GROWING: dict[str, Callable[[int], bytes]] = {
    "members": lambda count: b"".join(member(f"{at}.txt", b"x") for at in range(count)),
    "records of a header": lambda count: pax(*((f"k{at}", "v") for at in range(count))) + A_TXT,
    "global headers": lambda count: pax(("k", "v"), kind=b"g") * count,
    "bytes of a member": lambda count: member("a.bin", bytes(1000 * count)),
    "padding behind the end": lambda count: A_TXT + bytes(1024 * count),
}


@pytest.mark.parametrize("case", GROWING)
def test_work_grows_with_the_bytes(case: str) -> None:
    """Twice of anything costs twice the calls, cut into chunks of any length."""
    for chunk in (100, 1 << 20):
        pieces = [chunked(GROWING[case](count), chunk) for count in (200, 400)]
        once, twice = (num_calls(lambda data=data: list(TarScanner(data, shard="s.tar"))) for data in pieces)
        assert twice <= 2.2 * once + 100


def num_calls(function: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that one call makes."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


GNU_TAR = ["v7", "oldgnu", "gnu", "ustar", "posix"]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs a tar program")
@pytest.mark.parametrize("format_name", GNU_TAR)
def test_archives_of_a_tar_program_are_read(format_name: str, tmp_path: Path) -> None:
    """Files, links, folders and long and non-ASCII names packed by ``tar`` come out as they went in."""
    folder = tmp_path / "in"
    deep = "d" * 40 if format_name in ("v7", "ustar") else "d" * 200
    (folder / deep).mkdir(parents=True)
    files = {"a.txt": b"hello", f"{deep}/é猫.jpg": b"j" * 700, "empty.txt": b"", "big.bin": bytes(300_000)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "soft.txt").symlink_to("a.txt")
    (folder / "z-hard.txt").hardlink_to(folder / "a.txt")
    command = ["tar", f"--format={format_name}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", folder, "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "--sort" in done.stderr or "format" in done.stderr:
        pytest.skip("this tar is not GNU tar")
    data = (tmp_path / "x.tar").read_bytes()
    found = scan(data, chunk=999, keep_bytes=1 << 20)
    assert {each.name.removeprefix("./"): each.data for each in found if each.kind == "file"} == files
    assert {each.name for each in found if each.kind == "link"} == {"./soft.txt", "./z-hard.txt"}
    for each in found:
        assert data[each.offset : each.offset + each.size] == (each.data or b"")


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs a tar program")
def test_options_of_a_tar_program_hide_nothing(tmp_path: Path) -> None:
    """Appended files, a volume label and incremental dumps are read past; sparse files are refused."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    tar, base = ["tar", "-C", str(tmp_path)], str(tmp_path / "x.tar")
    subprocess.run([*tar, "--label=set one", "-cf", base, "a.txt"], check=True)
    subprocess.run([*tar, "-rf", base, "b.txt"], check=True)
    found = scan((tmp_path / "x.tar").read_bytes(), keep_bytes=100)
    assert [(each.name, each.data) for each in found if each.kind == "file"] == [
        ("a.txt", b"a.txt"),
        ("b.txt", b"b.txt"),
    ]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("c")
    subprocess.run([*tar, "-g", str(tmp_path / "snapshot"), "-cf", base, "sub"], check=True)
    assert [each.name for each in scan((tmp_path / "x.tar").read_bytes()) if each.kind == "file"] == ["sub/c.txt"]
    with (tmp_path / "holes.bin").open("wb") as file:
        file.truncate(1 << 20)
    subprocess.run([*tar, "--sparse", "-cf", base, "holes.bin"], check=True)
    with pytest.raises(TarFormatError) as caught:
        scan((tmp_path / "x.tar").read_bytes())
    assert caught.value.kind == "unsupported_member"
