import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from janus_shards.format.tar import END_BLOCKS, TarScanner, encode_header, member_bytes, padding

GIB = 2**30

letters = st.one_of(st.sampled_from("ab .é猫"), st.characters(exclude_characters="\0/", exclude_categories=["Cs"]))
components = st.text(letters, min_size=1, max_size=60)
paths = st.one_of(
    st.lists(components, min_size=1, max_size=9).map("/".join),
    # Lengths around the 100 bytes of the name field and the 155 of the prefix, in ASCII.
    st.lists(st.integers(1, 160), min_size=1, max_size=3).map(lambda sizes: "/".join("x" * size for size in sizes)),
)
sizes = st.one_of(st.integers(0, 2000), st.integers(8 * GIB - 2, 8 * GIB + 2))


def by_tarfile(name: str, size: int) -> bytes:
    """The header that Python's tarfile writes: ustar where it can say it, else pax."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    if name.isascii():
        try:
            return entry.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        except ValueError:
            pass
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def archive(members: dict[str, bytes]) -> bytes:
    """A whole shard of these members."""
    parts = [encode_header(name, len(data)) + data + padding(len(data)) for name, data in members.items()]
    return b"".join(parts) + END_BLOCKS


@given(paths, sizes)
@example("a" * 100, 1)
@example("a" * 101, 1)
@example("a" * 155 + "/" + "b" * 100, 1)
@example("a" * 156 + "/" + "b" * 99, 1)
@example("caf\udce9.txt", 1)
@example("a" * 200 + "é.txt", 8 * GIB)
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    """Byte for byte: short names, names split over the prefix, non-ASCII names, sizes of 8 GiB and more."""
    assert encode_header(name, size) == by_tarfile(name, size)


@given(paths, sizes)
def test_length_of_a_member_is_known_before_it_is_written(name: str, size: int) -> None:
    """``member_bytes`` is headers, data and padding, in whole blocks."""
    assert member_bytes(name, size) == len(encode_header(name, size)) + size + len(padding(size))
    assert member_bytes(name, size) % 512 == 0


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=6))
def test_tarfile_reads_what_is_written(members: dict[str, bytes]) -> None:
    """Every name and every byte comes back through Python's tarfile."""
    with tarfile.open(fileobj=io.BytesIO(archive(members)), encoding="utf-8") as tar:
        # tarfile takes slashes off the end of pax paths; a member of ours never ends with one.
        found = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    assert found == members


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs a tar program")
def test_the_tar_program_reads_what_is_written(tmp_path: Path) -> None:
    """GNU tar or bsdtar lists plain, long, split and non-ASCII names without a complaint."""
    members = dict.fromkeys(["a.jpg", "d/" * 60 + "b.txt", "c" * 200 + ".txt", "猫/é.json"], b"x" * 700)
    shard = tmp_path / "s.tar"
    shard.write_bytes(archive(members))
    command = ["tar", "-tf", str(shard)]
    listed = subprocess.run(
        command, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    )
    assert listed.stdout.decode().splitlines() == list(members)
    assert listed.stderr == b""


def test_names_that_are_no_utf8_come_back() -> None:
    """A Latin-1 name, as the scanner gives it, is written with the bytes it had."""
    name = b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    member = next(iter(TarScanner([archive({name: b"x"})], shard="s")))
    assert member.name == name


@pytest.mark.parametrize(("name", "size"), [("", 0), ("a\0b", 0), ("a", -1)])
def test_headers_that_cannot_be_are_refused(name: str, size: int) -> None:
    """No header without a name, with a NUL in it, or of a negative size."""
    with pytest.raises(ValueError, match="expected a name"):
        encode_header(name, size)


def test_padding_fills_the_last_block() -> None:
    """Nothing for whole blocks, else zeros up to the next one."""
    assert [len(padding(size)) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]
    assert not any(padding(1))
