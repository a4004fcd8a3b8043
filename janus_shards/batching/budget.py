"""Micro-batches that fill a budget of tokens with rows of like length.

::

    class          1 .. 8 | 9 | 10 | 11, 12 | ... | 61 .. 67 | ...      neighbours differ by class_ratio
    capacity       budget // cost of the longest row of the class
    open batches   one a class and lane, carried over windows

Padded to its longest row, a batch wastes little because its rows differ by at most ``class_ratio``.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.classes import BATCH_WEIGHT, class_bounds, class_table, close_classes
from janus_shards.batching.lengths import Sizes, check, describe_rule, is_count, planned_lengths, read_column
from janus_shards.batching.plan import Closed, MicroBatches, longest_rows, plan_lanes, scattered


@dataclass(frozen=True, kw_only=True)
class TokenBudget:
    """Micro-batches of at most ``max_tokens`` tokens, padding included.

    Args:
        column: Index column with the length of each row, in tokens.
        max_tokens: Rows of a batch times the length that they are padded to.
        max_length: Longer rows are cut to it; ``None``: a row that does not fit the budget is an error.
        max_samples: Most rows of a batch.
        quadratic: Length at which the quadratic part of the cost equals the linear one: a row of n tokens counts
            ``n + n² // quadratic``. ``None``: no quadratic part.
        class_ratio: Lengths of rows in one batch differ by at most this, in thousandths.
        pad_multiple: Batches are padded to a multiple of it.
        extra_tokens: What every row has besides the column, such as the 576 tokens of an image.

    Raises:
        ConfigError: A value outside its range.
    """

    column: str
    max_tokens: int
    max_length: int | None = None
    max_samples: int | None = None
    quadratic: int | None = None
    class_ratio: float = 1.1
    pad_multiple: int = 1
    extra_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "pad_multiple"):
            self._check(name, is_count(getattr(self, name)), "an integer from 1 up")
        for name in ("max_length", "max_samples", "quadratic"):
            self._check(name, getattr(self, name) is None or is_count(getattr(self, name)), "an integer from 1 up")
        self._check("extra_tokens", is_count(self.extra_tokens, 0), "an integer from 0 up")
        self._check("class_ratio", 1 <= self.class_ratio <= 100, "a number from 1 to 100")
        self._check("max_tokens", self._limit >= 1, f"enough for one row padded to pad_multiple={self.pad_multiple}")
        longest = self.max_length or self._limit
        self._check("max_length", longest <= self._limit, f"at most {self._limit}, the longest row that fits")

    @property
    def columns(self) -> tuple[str, ...]:
        """See ``BatchRule``."""
        return (self.column,)

    def sizes(self, columns: Mapping[str, NDArray[Any]]) -> Sizes:
        """See ``BatchRule``."""
        return planned_lengths(
            read_column(columns, self.column, rule="TokenBudget"),
            column=self.column,
            extra=self.extra_tokens,
            max_length=self.max_length,
            limit=self._limit,
            rule="TokenBudget",
        )

    def weights(self, sizes: NDArray[np.int32]) -> NDArray[np.int64]:
        """See ``BatchRule``."""
        bounds = self._bounds()
        return (BATCH_WEIGHT // self._capacities(bounds))[class_table(bounds)][sizes]

    def lane_weight(self, sizes: NDArray[np.int32]) -> int:
        """See ``BatchRule``. Every class that occurs leaves half a batch."""
        num_classes = len(np.unique(class_table(self._bounds())[sizes]))
        return 8 * num_classes * BATCH_WEIGHT // 2

    def plan(
        self, sizes: NDArray[np.int32], borders: NDArray[np.int64], *, groups: NDArray[np.integer] | None = None
    ) -> MicroBatches:
        """See ``BatchRule``."""
        bounds = self._bounds()
        table, capacities = class_table(bounds), self._capacities(bounds)
        rows, offsets, lanes = plan_lanes(
            sizes,
            borders,
            close=lambda some: close_classes(table[some], capacities),
            flush=self._flush,
            groups=groups,
        )
        shapes = self._padded(longest_rows(sizes, rows, offsets))
        return MicroBatches(
            rows=rows,
            offsets=offsets,
            lanes=lanes,
            shapes=shapes,
            num_tokens=int(sizes.sum(dtype=np.int64)),
            num_slots=int(np.dot(np.diff(offsets), shapes)),
        )

    def describe(self, sizes: NDArray[np.int32]) -> dict[str, str | int | None]:
        """See ``BatchRule``."""
        return describe_rule(self, sizes)

    def _flush(self, sizes: NDArray[np.int32]) -> Closed:
        """The longest rows first, each batch filled whatever the classes: only one of them is not full."""
        order = np.argsort(-sizes, kind="stable")
        counts: list[int] = []
        at = 0
        while at < len(order):
            counts.append(min(self._capacity(int(sizes[order[at]])), len(order) - at))
            at += counts[-1]
        return scattered(Closed(rows=order, counts=np.array(counts, np.int64), left=order[:0]))

    def _padded(self, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        return -(-lengths // self.pad_multiple) * self.pad_multiple

    def _cost(self, length: int) -> int:
        """Of one row padded to this length, in tokens."""
        padded = -(-length // self.pad_multiple) * self.pad_multiple
        return padded + (padded * padded // self.quadratic if self.quadratic else 0)

    def _capacity(self, length: int) -> int:
        """Rows padded to this length that fit the budget."""
        return min(self.max_tokens // self._cost(length), self.max_samples or self.max_tokens)

    @property
    def _limit(self) -> int:
        """Longest row that fits the budget."""
        return bisect_right(range(1, self.max_tokens + 1), self.max_tokens, key=self._cost)

    def _bounds(self) -> NDArray[np.int32]:
        """Longest row of each class."""
        return class_bounds(self.max_length or self._limit, ratio=self.class_ratio, multiple=self.pad_multiple)

    def _capacities(self, bounds: NDArray[np.int32]) -> NDArray[np.int64]:
        return np.array([self._capacity(bound) for bound in bounds.tolist()], np.int64)

    def _check(self, name: str, holds: bool, expected: str) -> None:
        check("TokenBudget", name, getattr(self, name), holds, expected)
