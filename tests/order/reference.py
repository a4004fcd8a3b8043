"""The lane order as the design note says it, one row after the other in plain Python: what the fast form must equal."""

from collections.abc import Sequence

from janus_shards.order.seeds import Tag, derive, splitmix64

GAMMA = 0x9E3779B97F4A7C15


def permutation(key: int, count: int) -> list[int]:
    """Stable argsort of the keys, without the low bits that hold an index."""
    bits = (count - 1).bit_length()
    keys = [splitmix64((key + i * GAMMA) % 2**64) >> bits for i in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def cut_blocks(shard_rows: Sequence[int], block_rows: int) -> list[list[int]]:
    """Sample ids of each block, in stored order."""
    blocks, start = [], 0
    for rows in shard_rows:
        blocks += [
            list(range(start + first, start + min(first + block_rows, rows))) for first in range(0, rows, block_rows)
        ]
        start += rows
    return blocks


def deal(blocks: Sequence[list[int]], *, seed: int, num_lanes: int) -> list[list[list[int]]]:
    """Blocks of each lane, pieces of cut blocks included."""
    sequence = [(block, row) for block in permutation(derive(seed, Tag.DEAL), len(blocks)) for row in blocks[block]]
    lanes, start = [], 0
    for lane in range(num_lanes):
        length = len(sequence) // num_lanes + (lane < len(sequence) % num_lanes)
        pieces: dict[int, list[int]] = {}
        for block, row in sequence[start : start + length]:
            pieces.setdefault(block, []).append(row)
        lanes.append(list(pieces.values()))
        start += length
    return lanes


def lane_order(
    blocks: Sequence[list[int]], *, seed: int, epoch: int, lane: int, num_lanes: int, window_rows: int
) -> list[int]:
    """Sample ids of one lane in the order in which they are served."""
    order = permutation(derive(seed, Tag.BLOCKS, epoch, lane), len(blocks))
    rows = [row for block in order for row in blocks[block]]
    served, start, number = [], 0, 0
    stop = -(-(lane + 1) * window_rows // num_lanes)
    while start < len(rows):
        window = rows[start:stop]
        served += [window[i] for i in permutation(derive(seed, Tag.ROWS, epoch, lane, number), len(window))]
        start, stop, number = stop, stop + window_rows, number + 1
    return served


def epoch_order(lanes: Sequence[list[int]]) -> list[int]:
    """All lanes merged: by place, then lane."""
    longest = max(map(len, lanes))
    return [lane[place] for place in range(longest) for lane in lanes if place < len(lane)]
