"""Which byte ranges of one object to request so that all wanted spans arrive. Pure: numbers in, numbers out.

Neighbouring spans are merged while the gap between them is small and the bytes fetched for nothing stay in proportion;
a request costs a round trip, a gap costs its bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError


@dataclass(frozen=True)
class RangePlan:
    """Ranges to request, and where each wanted span lies.

    Attributes:
        starts: Shape ``(num_ranges,)``, int64, strictly increasing.
        stops: Shape ``(num_ranges,)``, int64; ranges do not overlap.
        range_of: Shape ``(num_spans,)``, int64: the range that holds each span, in the order the spans were given.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    range_of: NDArray[np.int64]


def plan_ranges(
    starts: NDArray[np.integer], stops: NDArray[np.integer], *, max_gap: int, max_waste: float, free_gap: int = 0
) -> RangePlan:
    """Merge wanted spans of one object into the ranges to request.

    Args:
        starts: Shape ``(num_spans,)``: first byte of each span; any order, overlaps allowed.
        stops: Shape ``(num_spans,)``: first byte behind each span.
        max_gap: Bytes between neighbours that are at most worth fetching to save a request.
        max_waste: Unwanted bytes of a merged range, at most this many times its wanted bytes.
        free_gap: Gaps up to this many bytes, such as tar headers, are fetched always and count as wanted.

    Returns:
        A plan in which every span lies inside its range. Where a run of small gaps would waste too much, it is cut at
        its largest gaps (all that are at least half the largest), so the result does not depend on the order of the
        spans.

    Raises:
        ConfigError: A span ends before it starts, or a limit is negative.
    """
    if min(max_gap, max_waste, free_gap) < 0:
        raise ConfigError(
            f"plan_ranges(max_gap={max_gap}, max_waste={max_waste}, free_gap={free_gap}): none may be negative"
        )
    first, last = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if np.any(last < first) or np.any(first < 0):
        raise ConfigError("plan_ranges: a span starts below 0 or ends before it starts")
    if not len(first):
        return RangePlan(first, first, first)

    by_start = np.lexsort((last, first))
    first, last = first[by_start], last[by_start]
    reach = np.maximum.accumulate(last)  # (num_spans,) where the union of the spans so far ends
    gaps = np.concatenate(([0], np.maximum(first[1:] - reach[:-1], 0)))  # (num_spans,) in front of each span
    wanted = np.diff(reach, prepend=first[0]) - gaps  # (num_spans,) bytes a span adds to the union
    free = np.where(gaps <= free_gap, gaps, 0)
    gaps, wanted = gaps - free, wanted + free

    cut = _cuts(gaps, wanted, max_gap=max_gap, max_waste=max_waste)  # (num_spans,) a range begins here
    heads = np.flatnonzero(cut)  # (num_ranges,)
    tails = np.append(heads[1:], len(first)) - 1  # (num_ranges,)
    range_of = np.empty(len(first), np.int64)
    range_of[by_start] = np.cumsum(cut) - 1
    return RangePlan(first[heads], reach[tails], range_of)


def _cuts(gaps: NDArray[np.int64], wanted: NDArray[np.int64], *, max_gap: int, max_waste: float) -> NDArray[np.bool_]:
    """Marks the spans at which a range begins; the largest gap halves in each round, so there are at most 64 rounds."""
    cut = gaps > max_gap
    cut[0] = True
    while True:
        heads = np.flatnonzero(cut)
        inner = np.where(cut, 0, gaps)  # (num_spans,) gaps that would be fetched
        waste = np.add.reduceat(inner, heads)  # (num_ranges,)
        too_much = waste > max_waste * np.add.reduceat(wanted, heads)  # (num_ranges,)
        if not too_much.any():
            return cut
        limit = np.where(too_much, np.maximum.reduceat(inner, heads), np.iinfo(np.int64).max)  # (num_ranges,)
        limit = np.repeat(limit, np.diff(heads, append=len(gaps)))  # (num_spans,)
        cut |= (inner > 0) & (inner >= limit - inner)
