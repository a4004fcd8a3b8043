"""Which source each unit of a mixture is drawn from, and which of the source's units it is: exact arithmetic.

A mixture is one endless run of units, samples or batches: unit p is place ``p div L`` of lane ``p mod L``. A source
with L_s lanes, a divisor of L, gives the units of its lane ``l mod L_s``, one after another, to every L_s-th lane of
the mixture.

Place j of lane l lies at the point ``u(l, j) = (j PHI + start(l)) mod 2^64`` of a circle of 2^64 points; source s owns
the arc ``[border_s, border_{s+1})``, as long as its share. The golden ratio PHI keeps the places of a lane apart, and
the starts keep the lanes apart::

    PHI      = 9E3779B97F4A7C15 = floor((sqrt(5) - 1) / 2 * 2^64)
    start(l) = floor(2^64 (39 l mod m) / m) + floor(2^64 (l div m) / L),  mod 2^64,  m = gcd(L, 64)
    border_s = floor(2^64 (w_0 + ... + w_{s-1}) / (w_0 + ... + w_n)), weights as exact fractions

39 / 64 is the golden ratio again. Lanes 0 .. 63, 64 .. 127 and so on, and all lanes of any number, are thus spaced
evenly: a batch of 64 units holds a share of 64 w of them, off by less than one; 64 from anywhere on, hardly by two.

How many of the first n places of a lane lie below a border x follows without looking at them: a point y lies there if
``floor(y) - floor(y - x)`` is 1 (in units of the circle), and sums of floors are found as greatest common divisors are.

Source: Weyl's equidistribution with the golden ratio, Knuth, TAOCP 3, 6.4; sums of floors: Graham, Knuth, Patashnik,
"Concrete Mathematics", 3.5. docs/design/0002-batches-and-mixtures.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

CIRCLE = 1 << 64
PHI = 0x9E3779B97F4A7C15

_STEP = 39
_SPREAD = 64
# Places of all lanes together that are worked out at once, in 1 to 2 ms.
_CHUNK_PLACES = 192 * 256
_MAX_CHUNKS = 4

#: What each source weighs.
Weights: TypeAlias = Sequence[Fraction]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The shares of all sources during one stretch of the schedule.

    Attributes:
        start: First unit of the run for which they hold.
        weights: Of each source, not negative, at least one positive.
    """

    start: int
    weights: Weights

    @property
    def borders(self) -> list[int]:
        """End of each source's arc, the last one 2^64."""
        total = sum(self.weights)
        return [int(CIRCLE * reached / total) for reached in accumulate(self.weights)]


class Draws:
    """The draws of all lanes. To be used by one thread at a time.

    Args:
        num_lanes: L.
        source_lanes: Lanes of each source, divisors of L.
        shares: By increasing start, the first at 0.
    """

    def __init__(self, *, num_lanes: int, source_lanes: Sequence[int], shares: Sequence[Share]) -> None:
        self._num_lanes = num_lanes
        self._num_sources = len(source_lanes)
        self._source_lanes = source_lanes
        # Lanes that are equal modulo this number share lanes of sources, and are worked out together.
        self._together = gcd(*source_lanes)
        self._starts = [lane_start(lane, num_lanes) for lane in range(num_lanes)]
        self._borders = [share.borders for share in shares]
        # First place of each lane for which each share holds: [num_shares, num_lanes].
        self._since = np.stack([(share.start - np.arange(num_lanes) - 1) // num_lanes + 1 for share in shares])
        self._chunk_places = max(1, _CHUNK_PLACES // num_lanes)  # of one lane
        self._chunks: dict[int, _Chunk] = {}

    def at(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Source of each unit of the run, and how many units of the source's lane were drawn before."""
        places, lanes = np.divmod(units, self._num_lanes)
        sources, before = np.empty_like(lanes), np.empty_like(lanes)
        numbers, inside = np.divmod(places, self._chunk_places)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            chunk = self._chunk(number, np.unique(lanes[here]))
            sources[here] = chunk.sources[lanes[here], inside[here]]
            before[here] = chunk.before[lanes[here], inside[here]]
        return sources, before

    def _chunk(self, number: int, lanes: NDArray[np.int64]) -> "_Chunk":
        """The chunk, with at least these lanes filled in. The latest few are kept."""
        chunk = self._chunks.pop(number, None) or _Chunk(self._num_lanes, self._chunk_places, self._num_sources)
        self._chunks[number] = chunk
        if len(self._chunks) > _MAX_CHUNKS:
            del self._chunks[next(iter(self._chunks))]
        missing = lanes[~chunk.filled[lanes]]
        if len(missing):
            missing = np.flatnonzero(np.isin(np.arange(self._num_lanes) % self._together, missing % self._together))
            self._fill(chunk, missing, number * self._chunk_places, self._counts(number, missing))
        return chunk

    def _counts(self, number: int, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draws of each lane from each source before a chunk, shape ``(num_lanes, num_sources)``."""
        previous = self._chunks.get(number - 1)
        if previous is not None and bool(previous.filled[lanes].all()):
            return previous.after[lanes]
        return np.array([self._count(lane, number * self._chunk_places) for lane in lanes.tolist()], np.int64)

    def _count(self, lane: int, stop: int) -> list[int]:
        """Draws of one lane from each source before place ``stop``."""
        counts = [0] * self._num_sources
        since = [*self._since[:, lane].tolist(), stop]
        for borders, start, end in zip(self._borders, since, since[1:], strict=False):
            end = min(end, stop)
            if start < end:
                begin = self._below(lane, start, borders)
                reached = self._below(lane, end, borders)
                found = [after - before for after, before in zip(reached, begin, strict=True)]
                counts = [
                    count + upper - lower for count, upper, lower in zip(counts, found, [0, *found], strict=False)
                ]
        return counts

    def _below(self, lane: int, count: int, borders: Sequence[int]) -> list[int]:
        """How many of the first places of a lane lie below each border."""
        start = self._starts[lane]
        whole = floor_sum(count, CIRCLE, PHI, start)
        inner = [whole - floor_sum(count, CIRCLE, PHI, start - border) for border in borders[:-1]]
        return [*inner, count]

    def _fill(self, chunk: "_Chunk", lanes: NDArray[np.int64], first: int, counts: NDArray[np.int64]) -> None:
        places = first + np.arange(self._chunk_places)
        points = np.empty((len(lanes), len(places)), np.uint64)
        points[:] = places.astype(np.uint64) * np.uint64(PHI)
        points += np.array([self._starts[lane] for lane in lanes.tolist()], np.uint64)[:, None]
        sources = np.zeros(points.shape, np.int16)
        for share, borders in enumerate(self._borders):
            if share and not bool(np.any(self._since[share, lanes] < first + self._chunk_places)):
                continue
            found = np.zeros(points.shape, np.int16)
            for border in borders[:-1]:
                if border < CIRCLE:
                    found += points >= np.uint64(border)
            np.copyto(sources, found, where=places >= self._since[share, lanes][:, None])
        before = np.empty(points.shape, np.int64)
        for source, num_lanes in enumerate(self._source_lanes):
            # [sharing, source lanes, places] -> [source lanes, places, sharing]: each lane of the source in run order
            shape = (self._num_lanes // num_lanes, -1, len(places))
            mine = (sources == source).reshape(shape).transpose(1, 2, 0)
            reached = np.cumsum(mine.reshape(len(mine), -1), axis=1, dtype=np.int32).reshape(mine.shape)
            drawn = counts[:, source].reshape(shape[:2]).sum(axis=0)  # [source lanes]
            numbers = (reached - 1 + drawn[:, None, None]).transpose(2, 0, 1).reshape(points.shape)
            np.copyto(before, numbers, where=sources == source)
            chunk.after[lanes, source] = counts[:, source] + np.count_nonzero(sources == source, axis=1)
        chunk.sources[lanes], chunk.before[lanes] = sources, before
        chunk.filled[lanes] = True


class _Chunk:
    """Some places of all lanes, filled in lane by lane.

    Attributes:
        sources: Of each place, int16 ``[num_lanes, num_places]``.
        before: Units of the source's lane that were drawn before it, int64 ``[num_lanes, num_places]``.
        after: Draws of each lane from each source before the next chunk, int64 ``[num_lanes, num_sources]``.
        filled: Which lanes, bool ``[num_lanes]``.
    """

    def __init__(self, num_lanes: int, num_places: int, num_sources: int) -> None:
        self.sources = np.empty((num_lanes, num_places), np.int16)
        self.before = np.empty((num_lanes, num_places), np.int64)
        self.after = np.empty((num_lanes, num_sources), np.int64)
        self.filled = np.zeros(num_lanes, np.bool_)


def lane_start(lane: int, num_lanes: int) -> int:
    """Where a lane's first place lies on the circle."""
    spread = gcd(num_lanes, _SPREAD)
    whole, part = divmod(lane, spread)
    return (CIRCLE * (_STEP * part % spread) // spread + CIRCLE * whole // num_lanes) % CIRCLE


def floor_sum(count: int, divisor: int, factor: int, start: int) -> int:
    """Sum of ``floor((factor * i + start) / divisor)`` over i = 0 .. count - 1, in O(log) steps."""
    total = 0
    while True:
        quotient, start = divmod(start, divisor)
        total += count * quotient
        quotient, factor = divmod(factor, divisor)
        total += count * (count - 1) // 2 * quotient
        top = factor * count + start
        if top < divisor:
            return total
        # The lattice points below the line, counted by columns of the other axis.
        count, start = divmod(top, divisor)
        divisor, factor = factor, divisor
