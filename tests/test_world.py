import math

import pytest

from janus_shards.errors import ConfigError
from janus_shards.world import World

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}


class FakeMesh:
    """A device mesh that answers as torch's, seen from one coordinate."""

    def __init__(self, sizes: dict[str, int], at: dict[str, int]) -> None:
        self._sizes = sizes
        self._at = at

    def __getitem__(self, name: str) -> "FakeMesh":
        return FakeMesh({name: self._sizes[name]}, self._at)

    def get_local_rank(self, name: str) -> int:
        """Coordinate along one dimension."""
        return self._at[name]

    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self._sizes.values())


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (1, 1)])
def test_a_rank_outside_its_world_is_refused(rank: int, world_size: int) -> None:
    """A rank is between 0 and the size of its world, and the message has the numbers."""
    with pytest.raises(ConfigError, match=str(world_size)):
        World(rank=rank, world_size=world_size)


def test_without_a_launcher_there_is_one_rank() -> None:
    """A plain process is alone, whatever else its environment holds."""
    assert World.from_env(env={"HOME": "/root", "RANK": "3"}) == World(rank=0, world_size=1)


def test_torchrun_is_believed_before_slurm() -> None:
    """torchrun inside a Slurm job starts the ranks, so its numbers count."""
    assert World.from_env(env=SLURM | TORCHRUN) == World(rank=5, world_size=8, local_world_size=4)
    assert World.from_env(env=SLURM) == World(rank=1, world_size=2)


def test_open_mpi_gives_the_rank() -> None:
    """``mpirun`` names its ranks in variables of its own."""
    env = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    assert World.from_env(env=env) == World(rank=2, world_size=3)


def test_processes_of_one_replica_share_a_rank() -> None:
    """With 4 processes a replica, 8 processes are 2 ranks, and neighbours get equal batches."""
    worlds = [World.from_env(replicas=4, env=TORCHRUN | {"RANK": str(rank)}) for rank in range(8)]
    assert [world.rank for world in worlds] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {world.world_size for world in worlds} == {2}


@pytest.mark.parametrize(
    ("replicas", "env", "match"),
    [(3, TORCHRUN, "multiple of 3"), (0, TORCHRUN, "at least 1"), (1, TORCHRUN | {"RANK": "one"}, "RANK='one'")],
)
def test_wrong_numbers_are_named(replicas: int, env: dict[str, str], match: str) -> None:
    """Processes that do not divide into replicas and variables that are no integers raise a ``ConfigError``."""
    with pytest.raises(ConfigError, match=match):
        World.from_env(replicas=replicas, env=env)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``env`` the variables of this process count."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert World.from_env().rank == 5


def test_a_mesh_gives_the_data_parallel_rank() -> None:
    """Ranks along several mesh dimensions count with the slowest first; the tensor-parallel one plays no role."""
    mesh = FakeMesh({"replicate": 2, "shard": 3, "tp": 4}, at={"replicate": 1, "shard": 2, "tp": 3})
    assert World.from_mesh(mesh, "shard") == World(rank=2, world_size=3)  # type: ignore[arg-type]
    assert World.from_mesh(mesh, ("replicate", "shard")) == World(rank=5, world_size=6)  # type: ignore[arg-type]
