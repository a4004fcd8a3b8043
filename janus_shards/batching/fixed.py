"""Micro-batches of a fixed number of rows that are near in length: each lane sorts some batches' worth of rows at once.

::

    lane     | 3 9 3 4 | 8 3 4 9 | 3 4 8 3 |        pool = 3 batches of 4
    sorted   | 9 9 8 8 | 4 4 4 3 | 3 3 3 3 |        the longest row of a batch first
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.classes import BATCH_WEIGHT
from janus_shards.batching.lengths import Sizes, check, describe_rule, is_count, planned_lengths, read_column
from janus_shards.batching.plan import Closed, MicroBatches, longest_rows, plan_lanes, scattered


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """Micro-batches of ``batch_size`` rows, sorted by length.

    Args:
        column: Index column with the length of each row, in tokens.
        batch_size: Rows of a batch.
        pool_batches: Batches whose rows are sorted together in each lane; 1: only inside a batch, which saves nothing.
        max_length: Longer rows are cut to it; ``None``: nothing is cut.
        pad_multiple: Batches are padded to a multiple of it.

    Raises:
        ConfigError: A value outside its range.
    """

    column: str
    batch_size: int
    pool_batches: int = 16
    max_length: int | None = None
    pad_multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "pool_batches", "pad_multiple"):
            self._check(name, is_count(getattr(self, name)))
        self._check("max_length", self.max_length is None or is_count(self.max_length))

    @property
    def columns(self) -> tuple[str, ...]:
        """See ``BatchRule``."""
        return (self.column,)

    def sizes(self, columns: Mapping[str, NDArray[Any]]) -> Sizes:
        """See ``BatchRule``."""
        return planned_lengths(
            read_column(columns, self.column, rule="FixedSize"),
            column=self.column,
            extra=0,
            max_length=self.max_length,
            limit=2**31 - 1,
            rule="FixedSize",
        )

    def weights(self, sizes: NDArray[np.int32]) -> NDArray[np.int64]:
        """See ``BatchRule``."""
        return np.full(len(sizes), max(1, BATCH_WEIGHT // self.batch_size), np.int64)

    def lane_weight(self, sizes: NDArray[np.int32]) -> int:
        """See ``BatchRule``. A lane leaves half a pool."""
        return 8 * self.pool_batches * BATCH_WEIGHT // 2

    def plan(
        self, sizes: NDArray[np.int32], borders: NDArray[np.int64], *, groups: NDArray[np.integer] | None = None
    ) -> MicroBatches:
        """See ``BatchRule``."""
        rows, offsets, lanes = plan_lanes(sizes, borders, close=self._close, flush=self._flush, groups=groups)
        longest = longest_rows(sizes, rows, offsets)
        shapes = -(-longest // self.pad_multiple) * self.pad_multiple
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

    def _close(self, sizes: NDArray[np.int32]) -> Closed:
        pool = self.batch_size * self.pool_batches
        pools = len(sizes) // pool
        by_length = np.argsort(-sizes[: pools * pool].reshape(pools, pool), axis=1, kind="stable")
        rows = by_length + pool * np.arange(pools)[:, None]  # [pools, pool]
        return Closed(
            rows=rows.reshape(-1),
            counts=np.full(pools * self.pool_batches, self.batch_size, np.int64),
            left=np.arange(pools * pool, len(sizes)),
        )

    def _flush(self, sizes: NDArray[np.int32]) -> Closed:
        """Whole batches of what is left, and behind them the one that is not."""
        order = np.argsort(-sizes, kind="stable")
        cuts = np.append(np.arange(0, len(order), self.batch_size), len(order))
        whole = len(order) // self.batch_size
        counts = np.diff(cuts)
        found = scattered(Closed(rows=order[: cuts[whole]], counts=counts[:whole], left=order[:0]))
        rows, counts = np.append(found.rows, order[cuts[whole] :]), np.append(found.counts, counts[whole:])
        return Closed(rows=rows, counts=counts, left=order[:0])

    def _check(self, name: str, holds: bool) -> None:
        check("FixedSize", name, getattr(self, name), holds, "an integer from 1 up")
