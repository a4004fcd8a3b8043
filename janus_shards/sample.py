"""The plain records that name samples and their bytes. No I/O and no decoding here."""

from dataclasses import dataclass
from typing import TypeAlias

#: Read-only bytes, wherever they lie: fetched, memory-mapped or inline in an index.
RawBytes: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class SampleRef:
    """Where one sample lies.

    Attributes:
        sample_id: Row across the whole manifest.
        shard: Number of the shard in the manifest.
        row: Row inside that shard.
        key: The sample's key.
    """

    sample_id: int
    shard: int
    row: int
    key: str
