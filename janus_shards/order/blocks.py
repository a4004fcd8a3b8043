"""Blocks: runs of consecutive rows of one shard, the unit of shuffle, of reading and of caching.

Blocks are described by their borders in *ordinals*: ordinal v is the v-th sample of the order, which is sample id v, or
with a view the v-th id of the view. Block b holds ordinals ``borders[b] .. borders[b + 1] - 1``.

Source: docs/design/0001-epoch-order.md.
"""

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError

MAX_ROWS = 32
MAX_BYTES = 4 * 2**20
MAX_BLOCKS = 2**22

#: Borders and other ordinals: int32 where they fit, else int64.
Ordinals = NDArray[np.signedinteger]


def ordinal_dtype(largest: int) -> type[np.int32] | type[np.int64]:
    """The smaller type that holds ordinals up to ``largest``."""
    return np.int32 if largest < 2**31 else np.int64


def choose_block_rows(shard_rows: NDArray[np.int64], total_bytes: int) -> int:
    """Rows of a block, from the manifest alone.

    The largest power of two up to 32 whose rows take at most 4 MiB on average (at least 1), doubled while there would
    be more than 2**22 blocks.

    Args:
        shard_rows: Rows of each shard, shape ``(num_shards,)``; at least one row in all.
        total_bytes: Size of all shards together, in bytes of tar.
    """
    num_rows = int(shard_rows.sum())
    rows = MAX_ROWS
    while rows > 1 and rows * total_bytes > MAX_BYTES * num_rows:
        rows //= 2
    # A block ends with its shard, so that more shards than blocks allowed cannot be helped by longer blocks.
    longest = int(shard_rows.max())
    while rows < longest and int(_blocks_of_shards(shard_rows, rows).sum()) > MAX_BLOCKS:
        rows *= 2
    return rows


def cut_blocks(shard_rows: NDArray[np.int64], block_rows: int) -> Ordinals:
    """Borders of the blocks of a data set, in stored order.

    Args:
        shard_rows: Rows of each shard, shape ``(num_shards,)``; empty shards have no block.
        block_rows: Rows of a block, at least 1; the last block of a shard may have fewer.

    Returns:
        Shape ``(num_blocks + 1,)``, strictly increasing, from 0 to the number of rows.

    Raises:
        ConfigError: There would be more than four times 2**22 blocks.
    """
    num_rows = int(shard_rows.sum())
    blocks = _blocks_of_shards(shard_rows, block_rows)  # [num_shards]
    num_blocks = int(blocks.sum())
    if num_blocks > 4 * MAX_BLOCKS and block_rows < int(shard_rows.max()):
        raise ConfigError(
            f"block_rows={block_rows}: {num_rows} samples would make {num_blocks} blocks, more than {4 * MAX_BLOCKS}; "
            f"leave block_rows out or take at least {choose_block_rows(shard_rows, 0)}"
        )
    dtype = ordinal_dtype(max(num_blocks * block_rows, num_rows))
    row_starts = np.cumsum(shard_rows) - shard_rows  # [num_shards]
    block_starts = np.cumsum(blocks) - blocks  # [num_shards]
    borders: Ordinals = np.arange(num_blocks + 1, dtype=dtype)
    np.multiply(borders, block_rows, out=borders)
    borders[:-1] += np.repeat((row_starts - block_starts * block_rows).astype(dtype), blocks)
    borders[-1] = num_rows
    return borders


def restrict_blocks(
    borders: Ordinals, view: NDArray[np.int64], *, shard_rows: NDArray[np.int64], block_rows: int
) -> Ordinals:
    """Blocks of a view: the base's blocks restricted to it, neighbours joined up to ``block_rows`` wanted rows.

    Whole blocks of the base are joined, no parts, and not across shards: a cached block of the base serves the view.

    Args:
        borders: Blocks of the base, from ``cut_blocks``.
        view: Sample ids of the base that the view keeps, strictly increasing, at least one.
        shard_rows: Rows of each shard of the base.
        block_rows: Rows of a block of the base.

    Returns:
        Borders in ordinals of the view, shape ``(n + 1,)``, strictly increasing, from 0 to ``len(view)``.
    """
    wanted = np.searchsorted(view, borders)  # wanted rows before each border
    kept = np.flatnonzero(wanted[1:] > wanted[:-1])
    starts, stops = wanted[kept], wanted[kept + 1]
    shards = np.searchsorted(np.cumsum(shard_rows), borders[kept], side="right")
    shard_ends = np.searchsorted(shards, shards, side="right")
    # The first kept block that no longer fits a group which begins with this one; always a later one, because a block
    # of the base has at most block_rows rows.
    following = np.minimum(np.searchsorted(stops, starts + block_rows, side="right"), shard_ends)
    return np.append(starts[_follow(following)], len(view)).astype(ordinal_dtype(len(view)))


def _blocks_of_shards(shard_rows: NDArray[np.int64], block_rows: int) -> NDArray[np.int64]:
    return -(-shard_rows // block_rows)


def _follow(following: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chain 0, following[0], following[following[0]], ... below ``len(following)``."""
    # Each link depends on the one before it. A memoryview costs 60 ns a link where an array costs 100.
    links = np.ascontiguousarray(following, dtype=np.int64).data
    chain = []
    at = 0
    while at < len(links):
        chain.append(at)
        at = links[at]
    return np.array(chain, np.int64)
