"""Loaders (L): splitting, lengths, resuming and epochs, over processes."""

import io
import itertools
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import janus_shards as js
from tests.cases.expectations import Case, cases
from tests.cases.jobs import Epoch, Job, Resumed, Stop, open_loader, run_epochs, run_on, run_together, run_until
from tests.cases.scenarios import indexed

# Processes on a busy machine; limits of the scenarios are held where they give any.
PATIENCE_S = 50.0


@pytest.fixture(scope="module")
def root_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], str]:
    """Root of the indexed data set of a case."""
    folder, made = tmp_path_factory.mktemp("loader"), {}

    def find(case: Case) -> str:
        if case.id not in made:
            made[case.id] = str(indexed(case, folder / case.id))
        return made[case.id]

    return find


def entries(name: str) -> list[Any]:
    """Parameters for pytest: (case, row) of the tables of this name in all loader cases."""
    return [
        pytest.param(case, row, id="-".join([case.id, *(f"{key[0]}{value}" for key, value in list(row.items())[:4])]))
        for case in cases("L")
        for row in case.expect.get(name, [])
    ]


# --- splitting and lengths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "row"), entries("table"))
def test_ranks_split_an_epoch(case: Case, row: Mapping[str, Any], root_of: Callable[[Case], str]) -> None:
    """Ranks and workers of any number deliver the set in equally many steps, as ``len`` said, and in time."""
    for tail in ("drop",) if row["drop_last"] else ("uneven", "pad"):
        jobs = [
            Job(
                root=root_of(case),
                batch=row["batch"],
                rank=rank,
                world_size=row["world"],
                workers=row["workers"],
                tail=tail,
            )
            for rank in range(row["world"])
        ]
        ranks = [epoch for [epoch] in run_together(run_epochs, jobs, timeout_s=case.expect["time_limit_s"])]
        assert {len(rank.keys) for rank in ranks} == {rank.length for rank in ranks} == {ranks[0].length}
        _check_samples(ranks, row, case.expect["keys"])
        if tail != "uneven":
            assert {size for rank in ranks for size in rank.sizes} == {row["batch"]}


def _check_samples(ranks: Sequence[Epoch], row: Mapping[str, Any], keys: Sequence[str]) -> None:
    """What is lost, repeated and short is within the limits of a row."""
    delivered = [key for rank in ranks for key in rank.order]
    assert set(delivered) <= set(keys)
    assert len(keys) - len(set(delivered)) <= row["max_samples_lost"]
    assert len(delivered) - len(set(delivered)) <= row["max_samples_repeated"]
    for rank in ranks:
        assert sum(len(batch) < row["batch"] for batch in rank.keys) <= row["short_batches_per_rank_max"]


@pytest.mark.parametrize("case", [case for case in cases("L") if "keys" in case.expect], ids=lambda case: str(case.id))
def test_length_of_a_data_set_is_that_of_the_whole(case: Case, root_of: Callable[[Case], str]) -> None:
    """``len`` of a data set knows nothing of ranks, and its keys are those of the shards in order."""
    dataset = js.open_dataset(root_of(case))
    assert len(dataset) == len(case.expect["keys"])
    assert list(dataset.keys()) == case.expect["keys"]


# --- resuming --------------------------------------------------------------------------------------------------------


def _torch_round_trip(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


CHECKPOINTS: Sequence[Callable[[dict[str, Any]], Any]] = (
    lambda state: pickle.loads(pickle.dumps(state)),
    lambda state: json.loads(json.dumps(state)),
    _torch_round_trip,
)
LAST_EPOCH = 2


@pytest.fixture(scope="module")
def reference(root_of: Callable[[Case], str]) -> Callable[[Case, int], list[list[list[str]]]]:
    """Batches of the epochs of a case, undisturbed, for a batch size."""
    made: dict[tuple[str, int], list[list[list[str]]]] = {}

    def find(case: Case, batch: int) -> list[list[list[str]]]:
        if (case.id, batch) not in made:
            loader = open_loader(Job(root=root_of(case), batch=batch))
            made[case.id, batch] = [[batch.keys for batch in loader] for _ in range(LAST_EPOCH + 1)]
        return made[case.id, batch]

    return find


@pytest.mark.parametrize(
    "worker_stops",
    [
        list(group)
        for _, group in itertools.groupby(entries("stops"), lambda each: (each.values[0].id, each.values[1]["workers"]))
    ],
    ids=lambda group: f"{group[0].values[0].id}-w{group[0].values[1]['workers']}",
)
def test_a_stopped_job_goes_on(
    worker_stops: Sequence[Any], root_of: Callable[[Case], str], reference: Callable[[Case, int], list[list[list[str]]]]
) -> None:
    """Wherever a job is stopped, a new process with its state delivers exactly what was still to come."""
    case = worker_stops[0].values[0]
    stops = [
        Stop(
            job=Job(root=root_of(case), batch=row["batch"], workers=row["workers"]),
            epoch=row["epoch"],
            after_batches=row["after_batches"],
        )
        for _, row in (each.values for each in worker_stops)
        if row["after_batches"] <= len(reference(case, row["batch"])[row["epoch"]])
    ]
    stopped = run_together(run_until, stops, timeout_s=PATIENCE_S)
    resumed = [
        Resumed(job=stop.job, state=checkpoint(left.state), last_epoch=LAST_EPOCH)
        for stop, left, checkpoint in zip(stops, stopped, itertools.cycle(CHECKPOINTS), strict=False)
    ]
    for stop, left, rest in zip(stops, stopped, run_together(run_on, resumed, timeout_s=PATIENCE_S), strict=True):
        expected = reference(case, stop.job.batch)
        flat = [batch for epoch in (*left.batches, *rest) for batch in epoch]
        assert flat == [batch for epoch in expected for batch in epoch], stop
        # No epoch more than those that were to come, and none of them empty.
        left_in_epoch = stop.after_batches < len(expected[stop.epoch])
        assert [len(epoch) > 0 for epoch in rest] == [True] * (LAST_EPOCH - stop.epoch + left_in_epoch), stop


# --- epochs ----------------------------------------------------------------------------------------------------------

EPOCH_CASES = pytest.mark.parametrize(
    "case", [case for case in cases("L") if "epochs" in case.expect], ids=lambda case: str(case.id)
)
SEED, WORKERS = 11, 2


def _job(case: Case, root: str, **changed: Any) -> Job:
    return replace(Job(root=root, batch=3, seed=SEED, workers=WORKERS, epochs=range(case.expect["epochs"])), **changed)


@EPOCH_CASES
def test_epochs_differ_and_come_again(case: Case, root_of: Callable[[Case], str]) -> None:
    """Each epoch has an order of its own, the same in every run, with persistent workers and without."""
    job = _job(case, root_of(case))
    jobs = [job, job, replace(job, persistent=True)]
    one, other, persistent = run_together(run_epochs, jobs, timeout_s=PATIENCE_S)
    orders = [epoch.order for epoch in one]
    assert len({tuple(order) for order in orders}) == case.expect["epochs"]
    assert all(sorted(order) == sorted(case.expect["keys"]) for order in orders)
    assert [epoch.order for epoch in other] == [epoch.order for epoch in persistent] == orders


@EPOCH_CASES
def test_epoch_reaches_workers_that_run(case: Case, root_of: Callable[[Case], str]) -> None:
    """An epoch that is set in the main process is the one that persistent workers deliver next."""
    jumps = (3, 0, 1, 1)
    job = _job(case, root_of(case), persistent=True)
    plain, jumping = run_together(run_epochs, [job, replace(job, epochs=jumps)], timeout_s=PATIENCE_S)
    assert [epoch.order for epoch in jumping] == [plain[epoch].order for epoch in jumps]


@EPOCH_CASES
def test_ranks_meet_other_samples_in_each_epoch(case: Case, root_of: Callable[[Case], str]) -> None:
    """What a rank gets differs from epoch to epoch, and two ranks together get the whole set in each."""
    jobs = [_job(case, root_of(case), rank=rank, world_size=2) for rank in range(2)]
    first, second = run_together(run_epochs, jobs, timeout_s=PATIENCE_S)
    assert len({frozenset(epoch.order) for epoch in first}) == case.expect["epochs"]
    for mine, theirs in zip(first, second, strict=True):
        assert sorted(mine.order + theirs.order) == sorted(case.expect["keys"])


@EPOCH_CASES
def test_workers_draw_other_numbers(case: Case, root_of: Callable[[Case], str]) -> None:
    """A map function draws other numbers for every sample of every rank, worker and epoch, and the same in each run."""
    jobs = [_job(case, root_of(case), rank=rank, world_size=2, draws=True) for rank in (0, 1, 0, 1)]
    *once, third, fourth = run_together(run_epochs, jobs, timeout_s=PATIENCE_S)
    assert [third, fourth] == once
    rows = [row for rank in once for epoch in rank for row in epoch.drawn]
    assert len(rows) == case.expect["epochs"] * len(case.expect["keys"])
    for source in (slice(0, 8), slice(8, 16), slice(16, 24)):
        assert len({tuple(row[source]) for row in rows}) == len(rows)
