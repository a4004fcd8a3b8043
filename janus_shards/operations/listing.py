"""List samples with the sizes of their fields, from the indexes alone."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from janus_shards.reader import Dataset


class ListedSample(NamedTuple):
    """One sample, without its bytes.

    ``fields`` holds the size in bytes of each field that the sample has.
    """

    sample_id: int
    key: str
    shard: str
    fields: Mapping[str, int]


def list_samples(dataset: Dataset, *, start: int = 0, stop: int | None = None) -> Iterator[ListedSample]:
    """Samples by position, an index at a time.

    Args:
        dataset: A data set or a view of one.
        start: First position.
        stop: Position behind the last one; the end of the data set when not given.
    """
    ids = np.arange(len(dataset)) if dataset.ids is None else dataset.ids
    ids = ids[start:stop]
    shards, rows = dataset.catalog.locate(ids)
    # Ids ascend, and so do shards: each shard is one run.
    borders = np.flatnonzero(np.diff(shards, prepend=-1, append=-1)).tolist()
    for first, last in pairwise(borders):
        shard, within = int(shards[first]), rows[first:last]
        index = dataset.catalog.index(shard)
        sizes = {name: index.spans(name, within).sizes.tolist() for name in index.fields}
        for place, (sample_id, key) in enumerate(zip(ids[first:last].tolist(), index.keys.texts(within), strict=True)):
            fields = {name: column[place] for name, column in sizes.items() if column[place] >= 0}
            yield ListedSample(sample_id, key, dataset.catalog.shard(shard).name, fields)
