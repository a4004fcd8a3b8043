"""What is kept, as arithmetic: how much to lease, who may go, and what share of a data set is worth keeping.

Every epoch touches every block once, so what is kept must survive from one epoch to the next: of N bytes a cache of C
can hit at most C / N, and keeping whatever was admitted first reaches that. Evicting the least recently used does not:
at a quarter of the data it hits 3 %.

Source: docs/design/0003-cache.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from janus_shards.cache.base import share_place
from janus_shards.cache.entry import Stamp

#: What a process takes from the budget at a time.
LEASE_BYTES = 256 << 20
# With a small budget, processes that each hold a lease would keep too much of it from each other.
_LEASE_PARTS = 64
# The fuller the cache, the smaller the lease: the last bytes go to whoever has a use for them.
_ROOM_PARTS = 8


def lease_bytes(needed: int, *, room_bytes: int, budget_bytes: int) -> int:
    """How much to lease when ``needed`` bytes are wanted; 0 when there is no room.

    Args:
        needed: Size of the entry at hand, at least 1.
        room_bytes: What nobody has of the budget.
        budget_bytes: The whole budget.
    """
    if needed > room_bytes:
        return 0
    return max(needed, min(LEASE_BYTES, budget_bytes // _LEASE_PARTS, room_bytes // _ROOM_PARTS))


@dataclass(frozen=True, slots=True)
class Clock:
    """Where a consumer stands, on the clock of the folder: it ticks whenever some consumer begins an epoch.

    Attributes:
        epoch: The consumer's own count; -1 before the first.
        began: Tick at which this epoch began.
        previous: Tick at which the epoch before it began, if that one was served whole; otherwise 0.
    """

    epoch: int = -1
    began: int = 0
    previous: int = 0

    def next(self, epoch: int, *, tick: int, whole: bool) -> "Clock":
        """The clock after ``epoch`` begins at ``tick``; ``whole`` says that the epoch behind was served whole."""
        if epoch == self.epoch:
            # The same run, gone on with by another process.
            return Clock(epoch=epoch, began=tick, previous=self.previous)
        follows = epoch == self.epoch + 1 and whole
        return Clock(epoch=epoch, began=tick, previous=self.began if follows else 0)


@dataclass(frozen=True, slots=True)
class Consumer:
    """Somebody who uses the folder now.

    Attributes:
        data_set: Tag of the data set.
        previous: See ``Clock``.
    """

    data_set: int
    previous: int


@dataclass(frozen=True, slots=True)
class Resident:
    """An entry in the folder.

    Attributes:
        name: Its file.
        num_bytes: Its size.
        stamp: Who touched it last.
        touched_ns: When, by the file's time: orders what the stamps leave open.
    """

    name: str
    num_bytes: int
    stamp: Stamp
    touched_ns: int


def eviction_order(residents: Iterable[Resident], consumers: Sequence[Consumer]) -> list[Resident]:
    """What may be evicted, in this order: entries of data sets that nobody uses, oldest first; then those that no
    consumer of their data set touched during one whole epoch, oldest first. Everything else stays.
    """
    ranked = []
    for resident in residents:
        rank = _rank(resident.stamp, consumers)
        if rank is not None:
            ranked.append((rank, resident.stamp.tick, resident.touched_ns, resident.name, resident))
    return [resident for *_, resident in sorted(ranked, key=lambda item: item[:4])]


def _rank(stamp: Stamp, consumers: Sequence[Consumer]) -> int | None:
    starts = [consumer.previous for consumer in consumers if consumer.data_set == stamp.data_set]
    if not starts:
        return 0
    # A consumer that has not yet served a whole epoch may still come to the entry.
    return 1 if stamp.tick < min(starts) else None


def in_share(digest: bytes, share: float) -> bool:
    """Whether an entry belongs to the share of its data set that is kept: the same answer in every process."""
    return share >= 1 or share_place(digest) < share


@dataclass(frozen=True, slots=True)
class Source:
    """One data set of a mixture, or the only one.

    Attributes:
        num_bytes: What all its entries would take on this node.
        rate: How often an entry is met again in an epoch of the mixture.
    """

    num_bytes: int
    rate: float = 1.0


def shares(sources: Sequence[Source], *, budget_bytes: int) -> list[float]:
    """The share of each source to keep for the most hits: the sources met most often first, until the budget is full.

    A single source that does not fit gets a share of 1: what comes first is kept, which is as good and leaves no gap.
    """
    kept = [0.0] * len(sources)
    left = budget_bytes
    order = sorted(range(len(sources)), key=lambda number: -sources[number].rate)
    for number in order:
        size = sources[number].num_bytes
        kept[number] = 1.0 if size <= left else left / size
        left = max(0, left - size)
    return [1.0] if len(sources) == 1 else kept


@dataclass(frozen=True, slots=True)
class KindShares:
    """What of a data set is kept, and how.

    Attributes:
        raw: Share of the blocks whose stored bytes are kept.
        decoded: Share of the blocks whose decoded rows are kept.
    """

    raw: float
    decoded: float


def kind_shares(*, raw_bytes: int, decoded_bytes: int, budget_bytes: int) -> KindShares:
    """Decoded rows alone while all of them fit; otherwise stored bytes first, and decoded rows with what is left.

    Args:
        raw_bytes: All raw entries together.
        decoded_bytes: All decoded entries together.
        budget_bytes: The budget.
    """
    if decoded_bytes <= budget_bytes:
        return KindShares(raw=0.0, decoded=1.0)
    return KindShares(raw=1.0, decoded=max(0, budget_bytes - raw_bytes) / decoded_bytes)
