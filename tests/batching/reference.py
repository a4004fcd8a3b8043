"""The rules as the design note says them, one row after the other in plain Python: what the fast form must equal."""

from collections.abc import Callable, Sequence


def by_class(sizes: Sequence[int], class_of: Callable[[int], int], capacity: Callable[[int], int]):
    """One open batch a class: batches in the order in which they fill up, and what stays open."""
    opened: dict[int, list[int]] = {}
    batches = []
    for row, size in enumerate(sizes):
        batch = opened.setdefault(class_of(size), [])
        batch.append(row)
        if len(batch) == capacity(class_of(size)):
            batches.append(opened.pop(class_of(size)))
    return batches, sorted(row for batch in opened.values() for row in batch)


def best_fit(sizes: Sequence[int], *, capacity: int, open_bins: int):
    """Each row into the fullest open bin with room, of equally full ones the one filled last."""
    opened: list[list[int]] = []  # the one filled last comes last
    bins: list[list[int]] = []

    def load(rows: list[int]) -> int:
        return sum(sizes[row] for row in rows)

    for row, size in enumerate(sizes):
        fitting = [rows for rows in opened if load(rows) + size <= capacity]
        if fitting:
            chosen = max(reversed(fitting), key=load)
            opened.remove(chosen)
        else:
            if len(opened) == open_bins:
                opened.remove(max(reversed(opened), key=load))
            chosen = []
            bins.append(chosen)
        chosen.append(row)
        if load(chosen) < capacity:
            opened.append(chosen)
    closed = [rows for rows in bins if not any(rows is left for left in opened)]
    return sorted(closed, key=max), sorted(row for rows in opened for row in rows)
