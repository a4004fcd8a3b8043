import re
from pathlib import Path
from typing import Any

import pytest

from janus_shards.format.naming import NEVER_INLINE
from tools.make_golden import BORDERS, EXAMPLE, GOLDEN, annotate

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FINGERPRINT, READER = (code for language, code in BLOCKS if language == "python")


def run(code: str) -> dict[str, Any]:
    """The names that a code block of the document defines."""
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("name", ["example-000000.idx", "manifest.msgpack"])
def test_hex_is_that_of_the_golden_files(name: str) -> None:
    """The annotated bytes are those of the frozen index and pointer."""
    assert ("text", annotate((GOLDEN / name).read_bytes())) in BLOCKS


def test_the_small_reader_reads_the_golden_files() -> None:
    """What the document says is enough to read every sample of every writer: keys, bytes and columns."""
    found = list(run(READER)["read_data_set"](GOLDEN))
    expected = [*EXAMPLE, *BORDERS, *BORDERS, *BORDERS, *EXAMPLE, *BORDERS]
    assert [(key.decode(), fields) for key, fields, _ in found] == [(each.key, each.fields) for each in expected]
    assert [columns for _, _, columns in found[:3]] == [
        {"width": 640, "licence": b"cc0"},
        {"width": 480, "licence": b"cc-by"},
        {},
    ]


def test_the_fingerprint_is_that_of_the_golden_files() -> None:
    """The formula, run on the table of the golden manifest, gives the number that is printed below it."""
    reader = run("import hashlib, struct\n" + FINGERPRINT) | run(READER)
    table = reader["unpack"]((GOLDEN / "manifest-000001.msgpack").read_bytes())["shards"]
    digests = [table["sha256"][at : at + 32] for at in range(0, len(table["sha256"]), 32)]
    columns = [reader["strings"](table["name"]), *(reader["array"](table[key]) for key in ("num_samples", "tar_bytes"))]
    assert f"`{reader['fingerprint'](zip(*columns, digests, strict=True)).hex()}`" in TEXT


def test_the_fields_that_are_never_inlined_are_listed() -> None:
    """The document names all endings that are excluded, and no other."""
    listed = re.findall(r"`(\w+)`", TEXT.partition("are never inlined:")[2].partition("All others")[0])
    assert sorted(listed) == sorted(NEVER_INLINE)
