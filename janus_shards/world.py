"""Which of how many data-parallel ranks this process is.

The only library module besides ``cli/`` that reads the environment; everything else takes a ``World`` as an argument.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from janus_shards.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# (rank, world size, processes on this node) as torchrun, Slurm and Open MPI name them, in the order they are believed.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


@dataclass(frozen=True, kw_only=True)
class World:
    """One data-parallel rank among ``world_size``.

    Ranks that hold parts of one model replica (tensor, pipeline or sequence parallel) share a ``World`` and so get
    equal batches.

    Attributes:
        rank: Number of this rank, ``0 .. world_size - 1``.
        world_size: Number of ranks.
        local_world_size: Processes on this node, which share its cores, memory and caches.

    Raises:
        ConfigError: ``rank`` is outside ``0 .. world_size - 1`` or ``world_size`` is below 1.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size < 1 or self.local_world_size < 1:
            raise ConfigError(f"{self}: a world, and a node, has at least 1 rank")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"World(rank={self.rank}, world_size={self.world_size}): expected 0 <= rank < {self.world_size}"
            )

    @classmethod
    def from_env(cls, *, replicas: int = 1, env: Mapping[str, str] | None = None) -> Self:
        """Rank and size from the variables of torchrun, Slurm or Open MPI; one rank when none is set.

        Args:
            replicas: Consecutive processes that hold one model replica; they get the same ``World``.
            env: Variables to read; the process environment when not given.

        Raises:
            ConfigError: A variable is no integer, or the number of processes is no multiple of ``replicas``.
        """
        if replicas < 1:
            raise ConfigError(f"World.from_env(replicas={replicas}): at least 1 process holds a replica")
        env = os.environ if env is None else env
        for rank_name, size_name, local_name in _LAUNCHERS:
            # Slurm also sets its variables in an interactive shell that launched nothing; one task is one rank.
            if rank_name in env and size_name in env:
                local = _integer(env, local_name) if local_name in env else 1
                return cls._from_processes(_integer(env, rank_name), _integer(env, size_name), local, replicas)
        return cls()

    @classmethod
    def from_mesh(cls, mesh: "DeviceMesh", dim: str | tuple[str, ...]) -> Self:
        """Rank and size along the data-parallel dimensions of a torch ``DeviceMesh``.

        Args:
            mesh: The mesh of the job.
            dim: Name of the data-parallel dimension, or several, such as ``("replicate", "shard")``, slowest first.
        """
        rank, world_size = 0, 1
        for name in (dim,) if isinstance(dim, str) else dim:
            size = mesh[name].size()
            rank = rank * size + mesh.get_local_rank(name)
            world_size *= size
        return cls(rank=rank, world_size=world_size)

    @classmethod
    def _from_processes(cls, rank: int, processes: int, local: int, replicas: int) -> Self:
        if processes % replicas:
            raise ConfigError(
                f"World.from_env(replicas={replicas}): {processes} processes cannot be divided by {replicas}; "
                f"start a multiple of {replicas} processes"
            )
        return cls(rank=rank // replicas, world_size=processes // replicas, local_world_size=local)


def _integer(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ConfigError(f"environment variable {name}={env[name]!r}: expected an integer") from None
