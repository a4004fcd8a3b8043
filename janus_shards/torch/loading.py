"""``open_loader``: the pipeline's loader with tensors for its batches, checked over the ranks of a job."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from janus_shards.cache.base import CacheOptions
from janus_shards.errors import ConfigError
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.loader import Loader, build_loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset
from janus_shards.storage.base import StorageOptions
from janus_shards.world import World


def open_loader(
    source: str | Dataset,
    *,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    fields: Sequence[str] | None = None,
    transform: object = None,
    shuffle: Literal["full"] | bool | None = True,
    seed: int = 0,
    cache: str | CacheOptions | None = None,
    world: World | None = None,
    device: str | None = None,
    options: LoaderOptions | None = None,
    storage_options: Mapping[str, Any] | StorageOptions | None = None,
) -> Loader:
    """Open a loader: one pass over it is one epoch of this rank's batches.

    Args:
        source: URL or folder of a data set, or a ``Dataset`` or view of one.
        batch_size: Samples a batch and rank; give this or ``global_batch_size``.
        global_batch_size: Samples a step over all ranks; a multiple of the world size.
        fields: Fields to fetch, in the order wanted; all when not given.
        transform: Mapping from field to ``FieldTransform``; or a ``SampleTransform``; or a function ``fn(sample, rng)``
            that returns a mapping, run on worker threads; or ``fn(sample)``, run in the consumer's thread with the
            global generators seeded.
        shuffle: True shuffles blocks over lanes and rows inside blocks; ``"full"`` is one permutation of all rows;
            ``None`` or False is stored order.
        seed: Seed of the order and of the generators that transforms get.
        cache: Folder on a local SSD, or ``CacheOptions``: fetched blocks, and with ``decoded=True`` rows after the
            deterministic part of the transform, are kept there for later epochs and other processes of the node.
        world: Which data-parallel rank this is; from the launcher's environment when not given.
        device: ``"cuda"``, ``"cuda:1"``, … moves tensors there; ``None`` and ``"cpu"`` leave them in host memory.
            Without torch installed, ``None`` gives NumPy arrays.
        options: Everything else.
        storage_options: Endpoint, region, credentials and the like, when ``source`` is a URL.

    Returns:
        A loader whose batches hold tensors ``[B, …]`` for fields of fixed shape and lists of ``B`` values for others.

    Raises:
        ConfigError: Options contradict each other, or ranks of a running ``torch.distributed`` job opened different
            data or orders.
    """
    world = World.from_env() if world is None else world

    def build() -> Loader:
        return build_loader(
            source,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            fields=fields,
            transform=transform,
            shuffle=shuffle,
            seed=seed,
            cache=cache,
            world=world,
            finish=_finisher(device),
            options=options or LoaderOptions(),
            storage_options=storage_options,
        )

    return _agreed(build) if _is_distributed() else build()


def _finisher(device: str | None) -> Callable[[Batch], Batch] | None:
    if importlib.util.find_spec("torch") is None:
        if device is None:
            return None
        raise ConfigError(f"device={device!r} needs torch: pip install 'janus-shards[torch]'; None gives NumPy arrays")
    from janus_shards.torch.collate import Tensors

    return Tensors(device)


def _is_distributed() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _agreed(build: Callable[[], Loader]) -> Loader:
    """Build on every rank and compare; an error or a difference anywhere is raised everywhere, so that no rank waits
    alone.
    """
    import torch.distributed as dist

    loader, error = None, None
    try:
        loader = build()
        identity: Any = loader.identity
    except Exception as exc:  # noqa: BLE001  every rank must reach the exchange; the error is raised behind it
        error, identity = exc, f"{type(exc).__name__}: {exc}"
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, identity)
    if error is not None:
        raise error
    failed = {rank: text for rank, text in enumerate(found) if isinstance(text, str)}
    if failed:
        rank, text = next(iter(failed.items()))
        raise ConfigError(f"open_loader failed on {len(failed)} of {len(found)} ranks; rank {rank}: {text}")
    for rank, other in enumerate(found):
        for name, value in identity.items():
            if other[name] != value:
                raise ConfigError(
                    f"ranks opened different loaders: {name} is {value!r} on rank {dist.get_rank()}, {other[name]!r} "
                    f"on rank {rank}; give every rank the same data set, seed and options"
                )
    if loader is None:
        raise ConfigError("open_loader built no loader")
    return loader
