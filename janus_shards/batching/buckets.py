"""Micro-batches of rows that share a shape: a padded length, or a size of image near their aspect ratio."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.classes import BATCH_WEIGHT, class_table, close_classes, flush_classes
from janus_shards.batching.lengths import (
    Sizes,
    check,
    describe_rule,
    is_count,
    planned_lengths,
    read_column,
    whole_numbers,
)
from janus_shards.batching.plan import MicroBatches, longest_rows, plan_lanes
from janus_shards.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Micro-batches of one shape each, out of a few.

    Args:
        column: Index column with the length of each row; or two, with width and height.
        shapes: For a length: padded lengths, increasing; a row goes to the shortest that holds it. For width and
            height: ``(height, width)`` of images; a row goes to the nearest aspect ratio, of equal ones to the first.
        batch_size: Rows of a batch: one number, or one a shape.
        max_slots: Instead of it, most tokens or pixels of a batch, padding included.
        truncate: Rows longer than the last shape are cut to it; otherwise they are an error.

    Raises:
        ConfigError: A value outside its range, or not exactly one of ``batch_size`` and ``max_slots``.
    """

    column: str | tuple[str, str]
    shapes: tuple[int, ...] | tuple[tuple[int, int], ...]
    batch_size: int | tuple[int, ...] | None = None
    max_slots: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        pairs = not isinstance(self.column, str)
        if pairs:
            self._check("column", len(self.column) == 2, "a column, or (width, height)")
            sane = all(isinstance(s, tuple) and len(s) == 2 and all(map(is_count, s)) for s in self.shapes)
            self._check("shapes", bool(self.shapes) and sane, "(height, width) pairs")
            self._check("truncate", not self.truncate, "False: images have no length to cut")
        else:
            sane = all(map(is_count, self.shapes)) and list(self.shapes) == sorted(set(map(_area, self.shapes)))
            self._check("shapes", bool(self.shapes) and sane, "increasing lengths")
        self._check("shapes", len(self.shapes) < 2**16, "fewer than 65,536")
        if (self.batch_size is None) == (self.max_slots is None):
            raise ConfigError("Buckets: expected exactly one of batch_size and max_slots")
        given = self.batch_size if isinstance(self.batch_size, tuple) else (self.batch_size or self.max_slots,)
        self._check("batch_size", all(map(is_count, given)), "integers from 1 up")
        if isinstance(self.batch_size, tuple):
            self._check("batch_size", len(given) == len(self.shapes), f"one for each of {len(self.shapes)} shapes")
        largest = max(map(_area, self.shapes))
        self._check("max_slots", (self.max_slots or largest) >= largest, f"at least {largest}, the largest shape")

    @property
    def columns(self) -> tuple[str, ...]:
        """See ``BatchRule``."""
        return (self.column,) if isinstance(self.column, str) else self.column

    def sizes(self, columns: Mapping[str, NDArray[Any]]) -> Sizes:
        """See ``BatchRule``."""
        found = [read_column(columns, name, rule="Buckets") for name in self.columns]
        if not isinstance(self.column, str):
            width, height = (
                whole_numbers(values, column=name, rule="Buckets")
                for name, values in zip(self.columns, found, strict=True)
            )
            return Sizes(values=self._nearest(width, height), num_truncated=0)
        longest = _area(self.shapes[-1])
        return planned_lengths(
            found[0],
            column=self.column,
            extra=0,
            max_length=longest if self.truncate else None,
            limit=longest,
            rule="Buckets",
        )

    def weights(self, sizes: NDArray[np.int32]) -> NDArray[np.int64]:
        """See ``BatchRule``."""
        return (BATCH_WEIGHT // self._capacities())[self._table()][sizes]

    def lane_weight(self, sizes: NDArray[np.int32]) -> int:
        """See ``BatchRule``. Every bucket that occurs leaves half a batch."""
        return 8 * len(np.unique(self._table()[sizes])) * BATCH_WEIGHT // 2

    def plan(
        self, sizes: NDArray[np.int32], borders: NDArray[np.int64], *, groups: NDArray[np.integer] | None = None
    ) -> MicroBatches:
        """See ``BatchRule``."""
        table, capacities = self._table(), self._capacities()
        rows, offsets, lanes = plan_lanes(
            sizes,
            borders,
            close=lambda some: close_classes(table[some], capacities),
            flush=lambda some: flush_classes(table[some]),
            groups=groups,
        )
        buckets = table[longest_rows(sizes, rows, offsets)].astype(np.int32)
        by_length = isinstance(self.column, str)
        shapes = np.array(self.shapes, np.int32)[buckets] if by_length else buckets
        return MicroBatches(
            rows=rows,
            offsets=offsets,
            lanes=lanes,
            shapes=shapes,
            # Images are resized to the shape: nothing of it is padding.
            num_tokens=int(sizes.sum(dtype=np.int64)) if by_length else len(sizes),
            num_slots=int(np.dot(np.diff(offsets), shapes)) if by_length else len(sizes),
        )

    def describe(self, sizes: NDArray[np.int32]) -> dict[str, str | int | None]:
        """See ``BatchRule``."""
        return describe_rule(self, sizes)

    def _nearest(self, width: NDArray[np.int64], height: NDArray[np.int64]) -> NDArray[np.int32]:
        """Number of the shape whose aspect ratio is nearest, as a ratio of ratios."""
        pairs = np.array(self.shapes, np.float64)  # [num_shapes, (height, width)]
        ratios, numbers = np.unique(pairs[:, 1] / pairs[:, 0], return_index=True)
        if len(width) and min(int(width.min()), int(height.min())) < 1:
            raise ConfigError(f"Buckets: columns {self.columns} hold an image without width or height")
        # Between two neighbours the border is their geometric mean.
        borders = np.sqrt(ratios[1:] * ratios[:-1])
        return numbers[np.searchsorted(borders, width / height)].astype(np.int32)

    def _table(self) -> NDArray[np.uint16]:
        """Bucket of each planned size."""
        if isinstance(self.column, str):
            return class_table(np.array(self.shapes, np.int32))
        return np.arange(len(self.shapes), dtype=np.uint16)

    def _capacities(self) -> NDArray[np.int64]:
        if self.max_slots is not None:
            return np.array([self.max_slots // _area(shape) for shape in self.shapes], np.int64)
        sizes = self.batch_size if isinstance(self.batch_size, tuple) else (self.batch_size,) * len(self.shapes)
        return np.array(sizes, np.int64)

    def _check(self, name: str, holds: bool, expected: str) -> None:
        check("Buckets", name, getattr(self, name), holds, expected)


def _area(shape: int | tuple[int, int]) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)
