"""Options of the caches, the names of entries, and what a tier of decoded rows can do."""

import grp
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import xxhash

from janus_shards.errors import ConfigError
from janus_shards.sample import RawBytes
from janus_shards.sizes import parse_bytes

#: Writable memory that a record is read into, and that it is written from: contiguous, of any item type.
RecordBuffers: TypeAlias = Sequence[memoryview]
#: What a raw entry is written from, one piece after the other.
Pieces: TypeAlias = Sequence[RawBytes | bytearray]


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where and how much to cache.

    Attributes:
        directory: A folder on a local disk. The cache keeps to a folder of its own in there, one for each user, and
            shares it with every process of the user that names the same directory.
        max_bytes: Budget on disk, over all processes; a number or text such as ``"200GB"``.
        decoded: Keep decoded rows as well, as far as the budget goes: about six times the size of JPEGs.
        memory_bytes: Budget for decoded rows in the memory of this process; 0 for none.
        min_free_bytes: Space on the file system that the cache leaves free.
        verify: Compare the checksum of everything read from disk, once a process. Without it, a file that is damaged
            in place may be delivered.
        shared_group: Share the folder with the members of a group, by name or number. Their entries are trusted.
    """

    directory: str
    max_bytes: int | str = "100GB"
    decoded: bool = False
    memory_bytes: int | str = 0
    min_free_bytes: int | str = "1GiB"
    verify: bool = True
    shared_group: str | int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike) or not os.fspath(self.directory):
            raise ConfigError(f"CacheOptions(directory={self.directory!r}): expected a folder")
        if "://" in os.fspath(self.directory):
            raise ConfigError(
                f"CacheOptions(directory={self.directory!r}): expected a folder on a local disk, not a URL"
            )
        _ = self.budget_bytes, self.memory_budget_bytes, self.floor_bytes, self.group_id  # checks them

    @property
    def budget_bytes(self) -> int:
        """``max_bytes`` as a number."""
        return parse_bytes(self.max_bytes, name="max_bytes")

    @property
    def memory_budget_bytes(self) -> int:
        """``memory_bytes`` as a number."""
        return parse_bytes(self.memory_bytes, name="memory_bytes", minimum=0)

    @property
    def floor_bytes(self) -> int:
        """``min_free_bytes`` as a number."""
        return parse_bytes(self.min_free_bytes, name="min_free_bytes", minimum=0)

    @property
    def group_id(self) -> int | None:
        """``shared_group`` as a number.

        Raises:
            ConfigError: There is no such group.
        """
        group = self.shared_group
        if group is None:
            return None
        try:
            found = grp.getgrnam(group).gr_gid if isinstance(group, str) else group
        except KeyError as exc:
            raise ConfigError(f"CacheOptions(shared_group={group!r}): this machine has no such group") from exc
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise ConfigError(f"CacheOptions(shared_group={group!r}): expected the name or number of a group")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryKey:
    """What an entry holds. Two entries with the same bytes have the same name, in whichever generation they are met.

    Attributes:
        dataset: Fingerprint of the data set it was met in: what it is grouped by when room is made, no part of its
            name.
        shard: Name of the shard.
        version: SHA-256 or ETag of the shard: another version has other entries.
        row_start: First row in the shard.
        row_stop: One past the last row.
        fields: Fields that are kept, in the order of the payload.
        transform: Fingerprint of the deterministic part of the transform; empty for stored bytes.
        rows: Which rows of the stretch are kept, if not all: a digest of them.
    """

    dataset: str
    shard: str
    version: str
    row_start: int
    row_stop: int
    fields: tuple[str, ...]
    transform: str = ""
    rows: str = ""

    @property
    def identity(self) -> bytes:
        """Everything that distinguishes the entry, as kept in its header."""
        parts = [self.shard, self.version, self.row_start, self.row_stop, self.rows, list(self.fields), self.transform]
        return json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> bytes:
        """16 bytes, XXH3-128 of the identity."""
        return xxhash.xxh3_128_digest(self.identity)

    @property
    def file_name(self) -> str:
        """Name of its file: the digest in hex, with ``.raw`` for stored bytes and ``.rows`` for decoded rows."""
        return digest_name(self.identity) + (".rows" if self.transform else ".raw")


class DecodedRows(Protocol):
    """Decoded rows of one block, in one tier or in several. Safe to use from many threads.

    Rows are counted from the start of the block.
    """

    def has(self, row: int) -> bool:
        """Whether reading the row is worth trying; costs no more than a look-up."""

    def read_into(self, row: int, buffers: RecordBuffers) -> bool:
        """Fill the buffers with a record, one after the other; False when it is not there after all.

        The buffers may hold anything after False.
        """

    def write(self, row: int, buffers: RecordBuffers) -> None:
        """Keep a record, if there is room."""

    def release(self) -> None:
        """The block was served: close what reading and writing it needed. Call it once for each time it was opened."""


def digest_name(identity: bytes) -> str:
    """What the file of an entry is called, without its suffix."""
    return xxhash.xxh3_128_hexdigest(identity)


def data_set_tag(fingerprint: str) -> int:
    """64 bits that stand for a data set in headers."""
    return int.from_bytes(hashlib.sha256(fingerprint.encode()).digest()[:8], "little") or 1


def num_bytes(buffers: Sequence[RawBytes | bytearray]) -> int:
    """Bytes of all buffers together."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def share_place(digest: bytes) -> float:
    """Where an entry stands in ``0 .. 1``, evenly, by its digest alone."""
    return int.from_bytes(digest[8:16], "little") / 2**64
