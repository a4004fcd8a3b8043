"""Inside torch's own loaders: an ``IterableDataset`` whose workers together give the stream of the ``Loader``."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from janus_shards.cache.base import CacheOptions
from janus_shards.errors import ConfigError
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.loader import Loader, build_loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.pipeline.prefetch import end_with_parent
from janus_shards.reader import Dataset
from janus_shards.storage.base import StorageOptions
from janus_shards.torch.collate import Tensors
from janus_shards.torch.passes import PassCounter
from janus_shards.world import World


class TorchIterable(IterableDataset[Batch]):
    """Batches for ``torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=n)``.

    Worker w of n makes the batches t with t mod n = w, and ``DataLoader`` asks its workers in turn, so the stream is
    the one that ``open_loader`` gives with the same arguments, for any ``num_workers``. Each pass is the next epoch,
    with persistent workers and without; ``set_epoch`` reaches workers that already run. Nothing is opened before the
    first pass, so any start method works.

    Args:
        source: URL or folder of a data set, or a ``Dataset`` or view of one.
        batch_size: Samples a batch and rank; give this or ``global_batch_size``.
        global_batch_size: Samples a step over all ranks.
        fields: Fields to fetch; all when not given.
        transform: As for ``open_loader``; must pickle when workers are spawned.
        shuffle: As for ``open_loader``.
        seed: As for ``open_loader``.
        cache: As for ``open_loader``; the workers share its folder.
        world: Which data-parallel rank this is; from the launcher's environment when not given.
        options: Everything else; ``threads`` counts for each worker.
        storage_options: Endpoint, region and the like. Credentials given here reach the workers, however they are
            started, and are in no pickle.
    """

    def __init__(
        self,
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
        options: LoaderOptions | None = None,
        storage_options: Mapping[str, Any] | StorageOptions | None = None,
    ) -> None:
        super().__init__()
        self._source = source
        self._arguments: dict[str, Any] = {
            "batch_size": batch_size,
            "global_batch_size": global_batch_size,
            "fields": fields,
            "transform": transform,
            "shuffle": shuffle,
            "seed": seed,
            "cache": cache,
            "world": World.from_env() if world is None else world,
            "storage_options": _portable(storage_options),
        }
        self._options = options or LoaderOptions()
        self._passes = PassCounter()
        self._opened: tuple[tuple[int, int, int], Loader] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch ``epoch``, in this process and in workers that already run."""
        if epoch < 0:
            raise ConfigError(f"set_epoch({epoch}): epochs are counted from 0")
        self._passes.set_next(epoch)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return len(self._open(1, 0))

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is None:
            return self._begin(1, 0, self._passes.begin())
        end_with_parent()
        epoch = self._passes.begin_in_worker(worker.id, worker.seed - worker.id)
        return _WorkerPass(partial(self._begin, worker.num_workers, worker.id, epoch))

    def _begin(self, num_workers: int, worker: int, epoch: int) -> Iterator[Batch]:
        loader = self._open(num_workers, worker)
        loader.set_epoch(epoch)
        return iter(loader)

    def _open(self, num_workers: int, worker: int) -> Loader:
        # A forked worker inherits what its parent opened, and must not use it.
        owner = (os.getpid(), num_workers, worker)
        if self._opened is None or self._opened[0] != owner:
            world: World = self._arguments["world"]
            shared = replace(world, local_world_size=world.local_world_size * num_workers)
            loader = build_loader(
                self._source,
                **{**self._arguments, "world": shared},
                options=self._options,
                finish=Tensors(None),
                share=(worker, num_workers),
            )
            self._opened = owner, loader
        return self._opened[1]


class _WorkerPass:
    """The batches of one worker in one pass, opened at the first one: torch carries no error out of ``iter``."""

    def __init__(self, begin: Callable[[], Iterator[Batch]]) -> None:
        self._begin = begin
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            self._batches = self._begin()
        return next(self._batches)


def _portable(options: Mapping[str, Any] | StorageOptions | None) -> StorageOptions:
    """Options in the form that leaves secrets behind when it is pickled."""
    return options if isinstance(options, StorageOptions) else StorageOptions.from_mapping(options)
