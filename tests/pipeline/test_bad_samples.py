import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from janus_shards.decode.image import ImageTransform
from janus_shards.errors import ConfigError, DecodeError, SampleBudgetError
from janus_shards.pipeline.bad_samples import BadSamples
from janus_shards.pipeline.batch import Batch
from janus_shards.pipeline.loader import Loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.reader import Dataset, open_dataset
from janus_shards.world import World
from janus_shards.writer import ShardWriter

Load = Callable[..., Loader]
NUM_SAMPLES = 400
BAD = sorted({number for number in range(NUM_SAMPLES) if number % 31 == 5} | {96, 97, 98})  # 4 %, three in a row
PIXELS = {"png": ImageTransform(size=8, fit="stretch", engine="pillow")}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """400 samples of which 4 % have a picture that is none; their captions are fine."""
    root = tmp_path_factory.mktemp("bad") / "train"
    with ShardWriter(str(root), prefix="part", max_samples=90) as writer:
        for number in range(NUM_SAMPLES):
            picture: Any = b"<html>not found</html>" if number in BAD else np.full((8, 8, 3), number % 256, np.uint8)
            writer.write({"__key__": f"k{number:04d}", "png": picture, "txt": f"caption {number}", "cls": number})
    return open_dataset(str(root))


@pytest.fixture(autouse=True)
def expected_warning() -> Iterator[None]:
    """The first bad sample warns; here that is meant to happen."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="bad sample")
        yield


@pytest.fixture
def load_damaged(load: Load, damaged: Dataset) -> Load:
    """Opens a loader of pictures, captions and labels over the damaged data set."""

    def build(on_bad: str | BadSamples, *, threads: int = 2, tail: str = "uneven", **changed: Any) -> Loader:
        arguments = {"fields": ("png", "txt", "cls"), "transform": PIXELS, "batch_size": 8, **changed}
        if "global_batch_size" in changed:
            del arguments["batch_size"]
        return load(damaged, options=LoaderOptions(threads=threads, tail=tail, on_bad=on_bad), **arguments)

    return build


def delivered(batches: list[Batch]) -> dict[int, tuple[str, bool]]:
    """Key and validity by sample id of all slots; ids must be distinct."""
    slots = [
        (int(sample_id), (key, bool(valid)))
        for batch in batches
        for sample_id, key, valid in zip(batch.sample_ids, batch.keys, batch.valid, strict=True)
    ]
    assert len(dict(slots)) == len(slots)
    return dict(slots)


def test_raise_is_the_default(load_damaged: Load) -> None:
    """Without a policy the first bad sample in the order ends the pass."""
    with pytest.raises(DecodeError, match="png"):
        list(load_damaged("raise"))


def test_skip_keeps_slots_and_shapes(load_damaged: Load) -> None:
    """Skipped slots keep key and id, hold zeros and empty text, and say that they are not valid."""
    batches = list(load_damaged("skip"))
    slots = delivered(batches)
    assert sorted(slots) == list(range(NUM_SAMPLES))
    assert sorted(sample_id for sample_id, (_, valid) in slots.items() if not valid) == BAD
    for batch in batches:
        assert batch["png"].shape == (len(batch), 3, 8, 8)
        for row in np.flatnonzero(~batch.valid):
            assert not batch["png"][row].any()
            assert (batch["txt"][row], batch["cls"][row]) == ("", 0)


def test_substitute_delivers_the_next_good_row_of_the_block(load_damaged: Load, damaged: Dataset) -> None:
    """A substitute is the next good sample behind the bad one in its shard, and ids, keys and values name it."""
    loader = load_damaged("substitute", shuffle=None)
    rows = [(batch, row) for batch in loader for row in range(len(batch))]
    for position, (batch, row) in enumerate(rows):
        number = int(batch.sample_ids[row])
        assert (batch.keys[row], batch["txt"][row], batch["cls"][row]) == (
            f"k{number:04d}",
            f"caption {number}",
            number,
        )
        assert (batch["png"][row] == number % 256).all()
        good = next(n for n in range(position, NUM_SAMPLES) if n not in BAD)
        assert number == good
    assert loader.stats()["bad"] == {"skipped": 0, "substituted": len(BAD)}


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("threads", [1, 4])
def test_outcome_does_not_depend_on_threads(load_damaged: Load, policy: str, threads: int) -> None:
    """The same slots are skipped or substituted alike for any number of threads."""
    one = [(batch.keys, batch.valid.tolist()) for batch in load_damaged(policy, threads=2)]
    assert [(batch.keys, batch.valid.tolist()) for batch in load_damaged(policy, threads=threads)] == one


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_outcome_does_not_depend_on_the_world(load_damaged: Load, policy: str, world_size: int) -> None:
    """Over any world the global batches hold the same samples, valid and not."""

    def slots(batches: tuple[Batch, ...]) -> list[tuple[str, bool]]:
        return sorted(zip((k for b in batches for k in b.keys), (v for b in batches for v in b.valid), strict=True))

    ranks = [
        load_damaged(policy, global_batch_size=12, world=World(rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    whole = load_damaged(policy, batch_size=12)
    assert [slots(step) for step in zip(*ranks, strict=True)] == [slots((batch,)) for batch in whole]


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_resuming_at_every_step_meets_the_same_samples(load_damaged: Load, policy: str) -> None:
    """A state holds nothing of what was bad, and still the rest of the epoch is the same."""
    loader = load_damaged(policy)
    states, reference = [], []
    for batch in loader:
        reference.append((batch.keys, batch.valid.tolist()))
        states.append(loader.state_dict())
    for done, state in enumerate(states[:-1], start=1):
        resumed = load_damaged(policy)
        resumed.load_state_dict(state)
        first = next(iter(resumed))
        assert (first.keys, first.valid.tolist()) == reference[done]
        resumed.close()


def test_block_without_a_good_row_is_skipped(load: Load, tmp_path: Path) -> None:
    """When no row of a block is good, substitution falls back to skipping."""
    with ShardWriter(str(tmp_path / "bad"), prefix="part", max_samples=4) as writer:
        for number in range(8):
            writer.write({"__key__": f"k{number}", "txt": b"\xff\xfe\xff" if number < 4 else b"fine"})
    options = LoaderOptions(threads=2, on_bad="substitute")
    batches = list(load(str(tmp_path / "bad"), shuffle=None, options=options))
    assert [batch.valid.tolist() for batch in batches] == [[False] * 4, [True] * 4]
    assert batches[0]["txt"] == [""] * 4


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        (BadSamples(policy="skip", max_total=4), "max_total=4"),
        (BadSamples(policy="skip", max_consecutive=2), "max_con"),
    ],
    ids=["total", "consecutive"],
)
def test_budget_ends_the_pass(load_damaged: Load, budget: BadSamples, named: str) -> None:
    """One bad sample more than allowed is an error that names the option, the shard and the key."""
    with pytest.raises(SampleBudgetError, match=named) as caught:
        list(load_damaged(budget, shuffle=None))
    assert caught.value.key in {f"k{number:04d}" for number in BAD}
    assert "part-" in str(caught.value)


def test_budget_that_suffices_is_not_an_error(load_damaged: Load) -> None:
    """Exactly as many bad samples as allowed are fine; good samples between them end a run."""
    budget = BadSamples(policy="skip", max_total=len(BAD), max_consecutive=3)
    assert len(list(load_damaged(budget, shuffle=None))) == 50


def test_report_names_each_bad_sample_once(load_damaged: Load, damaged: Dataset, tmp_path: Path) -> None:
    """The report has a line of JSON for each bad sample, and ``exclude`` makes the view without them."""
    report = tmp_path / "bad.jsonl"
    loader = load_damaged(BadSamples(policy="skip", report=report))
    list(loader)
    records = [json.loads(line) for line in report.read_text().splitlines()]
    assert sorted(record["sample_id"] for record in records) == BAD
    for record in records:
        assert (record["field"], record["kind"], record["substitute"]) == ("png", "image_decode", None)
        assert record["key"] == f"k{record['sample_id']:04d}"
        assert "part-" in record["shard"]
        assert record["key"] in record["message"]
    view = damaged.exclude(report)
    assert [int(sample_id) for sample_id in view.ids] == [n for n in range(NUM_SAMPLES) if n not in BAD]


def test_ranks_write_reports_of_their_own(load_damaged: Load, damaged: Dataset, tmp_path: Path) -> None:
    """Each rank names its report after itself; a pattern excludes what all of them found."""
    for rank in range(2):
        options = BadSamples(policy="skip", report=tmp_path / "bad.jsonl")
        list(load_damaged(options, world=World(rank=rank, world_size=2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.rank0.jsonl", "bad.rank1.jsonl"]
    assert len(damaged.exclude(tmp_path / "bad*.jsonl")) == NUM_SAMPLES - len(BAD)


def test_exclude_refuses_what_is_no_report(damaged: Dataset, tmp_path: Path) -> None:
    """A missing file, another kind of file and a report of another data set are refused by name."""
    (tmp_path / "other.jsonl").write_text('{"sample_id": 3, "key": "elsewhere"}\n')
    (tmp_path / "text").write_text("hello\n")
    for name, message in (("missing", "no file"), ("text", "line 1"), ("other.jsonl", "'elsewhere'")):
        with pytest.raises(ConfigError, match=message):
            damaged.exclude(tmp_path / name)


def test_changed_bytes_are_a_bad_sample(load: Load, tmp_path: Path) -> None:
    """Bytes that are not those that were indexed count as bad, whatever they decode to."""
    root = tmp_path / "train"
    with ShardWriter(str(root), prefix="part", inline_bytes=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"k{number}", "txt": f"caption {number}"})
    shard = root / "part-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"caption 3", b"caption X"))
    with pytest.raises(DecodeError, match="not those that were indexed") as caught:
        list(load(str(root), shuffle=None))
    assert (caught.value.kind, caught.value.key, caught.value.field) == ("index_mismatch", "k3", "txt")
    batches = list(load(str(root), shuffle=None, options=LoaderOptions(threads=1, on_bad="skip")))
    assert [valid for batch in batches for valid in batch.valid.tolist()] == [True] * 3 + [False] + [True] * 4


def picture_mean(sample: Mapping[str, Any], rng: np.random.Generator | None = None) -> dict[str, Any]:
    """A transform that decodes the picture."""
    return {"mean": np.float32(sample["png"].mean()), "text": sample["txt"], "pixels": sample["png"]}


def picture_mean_in_order(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The same without ``rng``: runs in the consumer's thread."""
    return picture_mean(sample)


@pytest.mark.parametrize("function", [picture_mean, picture_mean_in_order])
@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_plain_functions_meet_the_same_policy(load_damaged: Load, function: Any, policy: str) -> None:
    """A bad sample met inside a function is skipped with zeros of the same shapes, or substituted."""
    loader = load_damaged(policy, transform=function, shuffle=None)
    for batch in loader:
        assert batch["pixels"].shape == (8, 8, 8, 3)
        means = [number % 256 if valid else 0 for number, valid in zip(batch.sample_ids, batch.valid, strict=True)]
        assert batch["mean"].tolist() == means
        texts = [f"caption {n}" if valid else "" for n, valid in zip(batch.sample_ids, batch.valid, strict=True)]
        assert batch["text"] == texts
    assert sum(loader.stats()["bad"].values()) == len(BAD)  # type: ignore[attr-defined]


def test_errors_of_the_callers_code_are_not_bad_samples(load_damaged: Load) -> None:
    """A bug in a transform is raised whatever the policy, with a note that says at which sample."""

    def broken(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError) as caught:
        list(load_damaged("skip", transform=broken))
    assert any("key 'k" in note for note in caught.value.__notes__)


def test_first_bad_sample_warns(load_damaged: Load) -> None:
    """The user hears once that samples are bad."""
    with pytest.warns(UserWarning, match="bad sample, on_bad='skip'") as caught:
        list(load_damaged("skip"))
    assert len(caught) == 1


def test_unknown_policy_is_refused() -> None:
    """A misspelt policy is an error that lists the policies."""
    with pytest.raises(ConfigError, match="'raise', 'skip' or 'substitute'"):
        LoaderOptions(on_bad="ignore")  # type: ignore[arg-type]
