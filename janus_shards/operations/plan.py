"""Which samples go into which shard, decided from sizes alone. Pure.

The cuts are those that ``ShardWriter`` makes when it is given the same samples one after the other.
"""

from collections.abc import Iterable

from janus_shards.writer.shard import ShardLayout


def plan_shards(sample_bytes: Iterable[int], layout: ShardLayout) -> list[tuple[int, int]]:
    """Cut samples into shards.

    Args:
        sample_bytes: Length of each sample in the tar, headers and padding included.
        layout: Limits of a shard.

    Returns:
        Half-open ranges of sample numbers, one a shard, in order; none is empty, and together they cover all samples.
    """
    cuts, start, num_bytes, stop = [], 0, 0, 0
    for stop, size in enumerate(sample_bytes, start=1):
        number = stop - 1
        if layout.is_full(number - start, num_bytes, size):
            cuts.append((start, number))
            start, num_bytes = number, 0
        num_bytes += size
    return [*cuts, (start, stop)] if stop else []
