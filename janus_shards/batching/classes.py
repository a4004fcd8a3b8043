"""Rows of like length together: each class fills one batch at a time.

A batch of class c is full with ``capacities[c]`` rows. The rows of a class make its batches in the order in which they
come, so all batches of a lane follow from one stable sort by class.
"""

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.plan import Closed, scattered

#: A micro-batch weighs this much, shared by its rows: lanes of equal weight make about as many micro-batches.
BATCH_WEIGHT = 1 << 16


def class_bounds(longest: int, *, ratio: float, multiple: int) -> NDArray[np.int32]:
    """Longest size of each class: neighbours differ by ``ratio``, or by ``multiple`` where that is more.

    Args:
        longest: Size that the last class ends with.
        ratio: At least 1, counted in thousandths.
        multiple: Bounds are multiples of it, except perhaps the last.

    Returns:
        Shape ``(num_classes,)``, strictly increasing up to ``longest``.
    """
    thousandths = round(1000 * ratio)
    bounds = [min(multiple, longest)]
    while bounds[-1] < longest:
        following = bounds[-1] * thousandths // 1000 // multiple * multiple
        bounds.append(min(max(following, bounds[-1] + multiple), longest))
    return np.array(bounds, np.int32)


def class_table(bounds: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Class of each size up to the last bound, shape ``(bounds[-1] + 1,)``. 16 bits, which NumPy sorts by radix."""
    return np.searchsorted(bounds, np.arange(int(bounds[-1]) + 1)).astype(np.uint16)


def close_classes(classes: NDArray[np.uint16], capacities: NDArray[np.int64]) -> Closed:
    """Whole batches of every class.

    Args:
        classes: Class of each row, shape ``(n,)``.
        capacities: Rows of a batch of each class, at least 1.
    """
    order = np.argsort(classes, kind="stable")
    counts = np.bincount(classes, minlength=len(capacities))  # [num_classes]
    batches = counts // capacities
    inside = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    whole = inside < np.repeat(batches * capacities, counts)
    return Closed(rows=order[whole], counts=np.repeat(capacities, batches), left=np.sort(order[~whole]))


def flush_classes(classes: NDArray[np.uint16]) -> Closed:
    """One batch of whatever is left of each class."""
    counts = np.bincount(classes)
    order = np.argsort(classes, kind="stable")
    return scattered(Closed(rows=order, counts=counts[counts > 0], left=order[:0]))
