"""Keys of a whole data set, 8 bytes each, to find one that occurs twice. No I/O here."""

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray


class KeyHashes:
    """XXH3-64 hashes of the keys of all shards so far, in a few sorted arrays.

    Each array is at least twice as long as the next, as in a log-structured merge tree: adding n keys in all costs O(n
    log n) and looking one up meets O(log n) arrays.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def add(self, keys: Iterable[str]) -> list[str]:
        """Add the keys of one shard.

        Args:
            keys: Keys that differ among themselves.

        Returns:
            Those whose hash was there before: with certainty all that are in the set twice, and about one in 2**64 / n
                others.
        """
        names = list(keys)
        hashes = np.array([xxhash.xxh3_64_intdigest(_raw(key)) for key in names], dtype=np.uint64)
        seen = np.zeros(len(names), dtype=bool)
        for run in self._runs:
            at = np.searchsorted(run, hashes)
            seen |= run[np.minimum(at, len(run) - 1)] == hashes
        self._push(np.sort(hashes))
        return [names[place] for place in np.flatnonzero(seen)]

    def _push(self, run: NDArray[np.uint64]) -> None:
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
