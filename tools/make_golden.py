"""Make the golden files: small shards by three writers, and the indexes and manifest that belong to them.

    python tools/make_golden.py [FOLDER]           write them (default: tests/data/golden)
    python tools/make_golden.py --annotate FILE    show an index, generation or pointer byte by byte, as docs/format.md

The files are frozen: tests compare the library with them, so a change of any stored byte is a visible diff. Run this
only after a deliberate change of the format, and say so in the changelog. Shards of other writers depend on their
releases: ``webdataset.tar`` was made by webdataset 1.0.2, ``tarfile-*.tar`` by Python 3.11.
"""

import argparse
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from janus_shards.format.grouping import group_samples
from janus_shards.format.index import ColumnValue, IndexBuilder, ShardIndex
from janus_shards.format.manifest import Manifest, ManifestPointer, ShardRecord
from janus_shards.format.naming import MANIFEST_NAME, index_name
from janus_shards.format.tar import END_BLOCKS, TarScanner, encode_header, padding

# What stands in front of the bytes of an array, and how they are read.
DTYPES = {name: np.dtype(name) for name in ("|b1", "|u1", "<u4", "<u8", "<i8", "<f8")}

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"


@dataclass(frozen=True)
class GoldenSample:
    """One sample of a golden shard."""

    key: str
    fields: Mapping[str, bytes]
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)


# The example of docs/format.md: one field that both samples have, one that only the first has.
EXAMPLE = (
    GoldenSample(
        "cat", {"jpg": b"\xff\xd8 no real picture \xff\xd9", "txt": b"a cat"}, {"width": 640, "licence": "cc0"}
    ),
    GoldenSample("dog", {"txt": "dög".encode()}, {"width": 480, "licence": "cc-by"}),
)

# Names and values at the borders of the format.
BORDERS = (
    GoldenSample("a" * 96, {"jpg": b"j"}),  # 100 bytes: the longest name without prefix
    GoldenSample("deep/" * 30 + "b", {"txt": b"split over name and prefix"}),
    GoldenSample("c" * 120, {"txt": b"too long for ustar"}),
    GoldenSample("猫/é", {"left.png": b"p", "json": b"{}"}),
    GoldenSample("v1.0/0001", {"txt": b"", "jpg": b"x" * 513, "cls": b"7"}),
    GoldenSample("long", {"txt": b"t" * 4096, "json": b"t" * 4095}),  # the first is not inline, the second is
)


# --- shards -----------------------------------------------------------------------------------------------------------


def by_janus_shards(samples: Sequence[GoldenSample]) -> bytes:
    """A shard as this library writes it."""
    members = [(f"{sample.key}.{name}", data) for sample in samples for name, data in sample.fields.items()]
    return b"".join(encode_header(name, len(data)) + data + padding(len(data)) for name, data in members) + END_BLOCKS


def by_tarfile(samples: Sequence[GoldenSample], tar_format: int) -> bytes:
    """A shard as Python's tarfile writes it, with owners, times, and a folder and a link that belong to no sample."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as tar:
        for name, kind in (("./train", tarfile.DIRTYPE), ("./train/._a.jpg", tarfile.REGTYPE)):
            tar.addfile(_entry(name, kind))
        for sample in samples:
            for name, data in sample.fields.items():
                entry = _entry(f"{sample.key}.{name.upper()}", tarfile.REGTYPE)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        tar.addfile(_entry("link.jpg", tarfile.SYMTYPE))
    return stream.getvalue()


def _entry(name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.uid, entry.uname, entry.mtime = kind, 1000, "someone", 1_700_000_000.5
    entry.linkname = "../outside.jpg" if kind == tarfile.SYMTYPE else ""
    return entry


def by_webdataset(samples: Sequence[GoldenSample]) -> bytes:
    """A shard as webdataset's TarWriter writes it."""
    import webdataset  # slow to import, and needed for one shard only

    stream = io.BytesIO()
    with webdataset.TarWriter(stream, encoder=False, mtime=1_700_000_000.0) as writer:
        for sample in samples:
            writer.write({"__key__": sample.key, **sample.fields})
    return stream.getvalue()


def make_shards() -> dict[str, bytes]:
    """All golden shards by name."""
    return {
        "example-000000.tar": by_janus_shards(EXAMPLE),
        "borders-000000.tar": by_janus_shards(BORDERS),
        "tarfile-gnu.tar": by_tarfile(BORDERS, tarfile.GNU_FORMAT),
        "tarfile-pax.tar": by_tarfile(BORDERS, tarfile.PAX_FORMAT),
        "webdataset.tar": by_webdataset(EXAMPLE + BORDERS),
    }


# --- indexes and manifest ---------------------------------------------------------------------------------------------


def make_index(name: str, tar: bytes) -> ShardIndex:
    """The index of one shard; the example's has columns."""
    samples = EXAMPLE if name.startswith("example") else ()
    builder = IndexBuilder(name)
    for row, (key, spans) in enumerate(group_samples(TarScanner([tar], shard=name, keep_bytes=4095), shard=name)):
        builder.add(key, spans, samples[row].columns if samples else None)
    return builder.build(tar_bytes=len(tar), tar_sha256=hashlib.sha256(tar).digest())


def describe(shards: Mapping[str, bytes]) -> dict[str, bytes]:
    """Indexes, generation and pointer of these shards."""
    indexes = {name: make_index(name, tar) for name, tar in shards.items()}
    files = {index_name(name): index.encode() for name, index in indexes.items()}
    records = [_record(name, index, files[index_name(name)]) for name, index in indexes.items()]
    manifest = Manifest(
        shards=records,
        writer="janus-shards golden",
        fields=sorted({name for index in indexes.values() for name in index.fields}),
        columns={"licence": "str", "width": "int64"},
    )
    encoded = manifest.encode()
    pointer = ManifestPointer(generation=1, sha256=hashlib.sha256(encoded).digest())
    return {**files, pointer.target: encoded, MANIFEST_NAME: pointer.encode()}


def _record(name: str, index: ShardIndex, encoded: bytes) -> ShardRecord:
    return ShardRecord(
        name=name,
        num_samples=index.num_samples,
        tar_bytes=index.tar_bytes,
        sha256=index.tar_sha256,
        index_bytes=len(encoded),
        index_sha256=hashlib.sha256(encoded).digest(),
    )


# --- annotation -------------------------------------------------------------------------------------------------------


def annotate(data: bytes) -> str:
    """One line for each MessagePack element: offset, bytes in hex, and what they are."""
    lines, dtype = [], ""
    for offset, raw, depth, meaning in _walk(data, 0, 0)[1]:
        if dtype in DTYPES and raw[0] == 0xC4:
            meaning = str(np.frombuffer(raw[2:], DTYPES[dtype]).tolist())
        dtype = meaning.strip('"')
        rows = [raw[at : at + 16].hex(" ") for at in range(0, len(raw), 16)]
        lines.append(f"{offset:04x}  {rows[0]:<47}  {'  ' * depth}{meaning}")
        lines += [f"{offset + 16 * at:04x}  {row}" for at, row in enumerate(rows[1:], start=1)]
    return "\n".join(lines) + "\n"


_Line = tuple[int, bytes, int, str]


def _walk(data: bytes, at: int, depth: int) -> tuple[int, list[_Line]]:
    """Where the element at ``at`` ends, and its lines: offset, bytes, depth and meaning."""
    head = data[at]
    if head >> 4 == 0x8 or head == 0xDE:
        start, count = (at + 1, head & 15) if head != 0xDE else (at + 3, int.from_bytes(data[at + 1 : at + 3], "big"))
        return _children(data, (at, start), 2 * count, depth, f"map of {count}")
    if head >> 4 == 0x9:
        return _children(data, (at, at + 1), head & 15, depth, f"list of {head & 15}")
    stop, meaning = _scalar(data, at)
    return stop, [(at, data[at:stop], depth, meaning)]


def _children(data: bytes, span: tuple[int, int], count: int, depth: int, meaning: str) -> tuple[int, list[_Line]]:
    at, lines = span[1], [(span[0], data[slice(*span)], depth, meaning)]
    for _ in range(count):
        at, found = _walk(data, at, depth + 1)
        lines += found
    return at, lines


def _scalar(data: bytes, at: int) -> tuple[int, str]:
    head = data[at]
    widths: dict[int, tuple[str, int]] = {
        **{code: ("uint", 1 << (code - 0xCC)) for code in range(0xCC, 0xD0)},
        **{code: ("bin", 1 << (code - 0xC4)) for code in range(0xC4, 0xC7)},
        **{code: ("str", 1 << (code - 0xD9)) for code in range(0xD9, 0xDC)},
    }
    if head < 0x80:
        return at + 1, f"{head}"
    kind, width = widths.get(head, ("str", 0))
    value = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else head & 31
    start = at + 1 + width
    if kind == "uint":
        return start, f"{value}"
    raw = data[start : start + value]
    text = f'"{raw.decode()}"' if kind == "str" else repr(raw) if raw.isascii() and value < 16 else f"{value} bytes"
    return start + value, text


# --- command line -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the golden files, or annotate one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=GOLDEN)
    parser.add_argument("--annotate", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.annotate:
        print(annotate(options.annotate.read_bytes()), end="")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    shards = make_shards()
    for name, data in (shards | describe(shards)).items():
        (options.folder / name).write_bytes(data)
        print(f"{len(data):6d}  {hashlib.sha256(data).hexdigest()[:16]}  {name}")


if __name__ == "__main__":
    main()
