"""Tars that something else wrote, read from front to back: their samples, and what was odd about them.

Shared by ``index``, which notes where fields lie, and ``reshard``, which takes their bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from janus_shards.errors import TarFormatError
from janus_shards.format.grouping import group_samples
from janus_shards.format.index import FieldSpan
from janus_shards.format.tar import TarScanner
from janus_shards.operations.sources import counted, name_some
from janus_shards.sample import RawBytes

#: What becomes of a sample with a field twice, or in several pieces.
OnBad = Literal["raise", "skip"]

# Faults of single samples; the shard around them is sound.
_SAMPLE_FAULTS = ("duplicate_field", "interleaved_key")


class SkippedSample(NamedTuple):
    """A sample that was left out because the user asked to skip bad ones."""

    shard: str
    key: str
    field: str
    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ShardNotes:
    """What was odd about one shard.

    Attributes:
        shard: Its name.
        is_empty: It has no sample.
        has_end: An end block was seen; without one, whole members may be missing.
        num_links: Links, which are ignored.
        num_ignored: Files that belong to no sample.
        skipped: Samples left out.
    """

    shard: str
    is_empty: bool = False
    has_end: bool = True
    num_links: int = 0
    num_ignored: int = 0
    skipped: Sequence[SkippedSample] = ()


class SampleScan:
    """One pass over a shard: iterate to the end, then ask for the notes.

    Args:
        chunks: The bytes of the tar, in pieces of any length.
        shard: URL of the shard, for messages.
        keep_bytes: Fields up to this length carry their data.
        on_bad: Whether a bad sample ends the pass or is left out.
        leave_out: Keys known to be bad: left out wherever their members lie.

    Iterating raises ``TarFormatError`` as ``format.tar`` and ``format.grouping`` say.

    Attributes:
        position: Bytes consumed so far.
    """

    def __init__(
        self,
        chunks: Iterable[RawBytes],
        *,
        shard: str,
        keep_bytes: int,
        on_bad: OnBad,
        leave_out: Set[str] = frozenset(),
    ) -> None:
        self._scanner = TarScanner(chunks, shard=shard, keep_bytes=keep_bytes)
        self._groups = group_samples(self._scanner, shard=shard)
        self._shard = shard
        self._on_bad = on_bad
        self._leave_out = leave_out
        self._skipped: dict[str, SkippedSample] = {}
        self._num_samples = 0

    def __iter__(self) -> Iterator[tuple[str, list[FieldSpan]]]:
        while True:
            try:
                key, spans = next(self._groups)
            except StopIteration:
                return
            except TarFormatError as exc:
                if self._on_bad == "raise" or exc.kind not in _SAMPLE_FAULTS or exc.key is None:
                    raise
                found = SkippedSample(self._shard, exc.key, exc.field or "", exc.kind, exc.message)
                self._skipped.setdefault(exc.key, found)
                continue
            if key not in self._leave_out:
                self._num_samples += 1
                yield key, spans

    @property
    def position(self) -> int:
        """Bytes consumed so far."""
        return self._scanner.position

    @property
    def delivered_in_part(self) -> frozenset[str]:
        """Keys that turned out to be bad after the first piece of their sample had been delivered."""
        late = {key for key, sample in self._skipped.items() if sample.kind == "interleaved_key"}
        return frozenset(late - self._leave_out)

    def notes(self, name: str) -> ShardNotes:
        """What was odd; complete once the iteration has ended."""
        return ShardNotes(
            shard=name,
            is_empty=not self._num_samples,
            has_end=self._scanner.has_end,
            num_links=self._groups.num_links,
            num_ignored=self._groups.num_ignored,
            skipped=tuple(self._skipped.values()),
        )


def warnings_of(notes: Sequence[ShardNotes]) -> list[str]:
    """What a user should know about the shards of a run, each sentence after the name of its kind."""
    skipped = [sample.message for each in notes for sample in each.skipped]
    num_links, num_ignored = sum(each.num_links for each in notes), sum(each.num_ignored for each in notes)
    empty, endless = _names(notes, lambda each: each.is_empty), _names(notes, lambda each: not each.has_end)
    found = [
        (empty, f"empty_shard: {counted(len(empty), 'shard')} without a sample left out: {name_some(empty)}"),
        (
            endless,
            f"missing_eof: {counted(len(endless), 'shard')} without end blocks, perhaps cut: {name_some(endless)}",
        ),
        (skipped, f"bad_sample: {counted(len(skipped), 'bad sample')} left out: {name_some(skipped)}"),
        (num_links, f"link_skipped: {counted(num_links, 'link')} ignored"),
        (num_ignored, f"file_skipped: {counted(num_ignored, 'file')} ignored as part of no sample"),
    ]
    return [text for any_found, text in found if any_found]


def _names(notes: Sequence[ShardNotes], wanted: Callable[[ShardNotes], bool]) -> list[str]:
    return [each.shard for each in notes if wanted(each)]
