"""What the four rules have in common."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from janus_shards.batching.lengths import Sizes
from janus_shards.batching.plan import MicroBatches


class BatchRule(Protocol):
    """Frozen options that plan micro-batches. ``TokenBudget``, ``Buckets``, ``Packing``, ``FixedSize``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Index columns that planning needs."""

    def sizes(self, columns: Mapping[str, NDArray[Any]]) -> Sizes:
        """Planned size of every row of the data set.

        Raises:
            ConfigError: A column is missing or holds no lengths, or a row fits no batch.
        """

    def weights(self, sizes: NDArray[np.int32]) -> NDArray[np.int64]:
        """Share of a micro-batch that each row takes, 65,536 for a whole one: lanes are cut at equal weight."""

    def lane_weight(self, sizes: NDArray[np.int32]) -> int:
        """Weight that a lane should have, so that what it leaves open is an eighth of it at most."""

    def plan(
        self, sizes: NDArray[np.int32], borders: NDArray[np.int64], *, groups: NDArray[np.integer] | None = None
    ) -> MicroBatches:
        """Micro-batches of an epoch; see ``plan.plan_lanes`` for the arguments."""

    def describe(self, sizes: NDArray[np.int32]) -> dict[str, str | int | None]:
        """What fixes the plans, by name; ``sizes`` of all rows in stored order."""
