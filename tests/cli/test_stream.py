import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from janus_shards.pipeline.loader import build_loader
from janus_shards.pipeline.options import LoaderOptions
from janus_shards.world import World
from janus_shards.writer import ShardWriter

Run = Callable[..., Result]
Json = Callable[..., Any]

LEDGER = ("plan_s", "request_s", "transfer_s", "cache_s", "decode_s", "assemble_s", "copy_s", "consumer_s")


def keys_of(root: Path, *, seed: int = 0, epochs: int = 1) -> list[str]:
    """Keys of a loader with batches of 4, in order."""
    loader = build_loader(
        str(root),
        batch_size=4,
        global_batch_size=None,
        fields=("txt",),
        transform=None,
        shuffle=True,
        seed=seed,
        world=World(),
        options=LoaderOptions(),
        storage_options=None,
    )
    return [key for _ in range(epochs) for batch in loader for key in batch.keys]


def test_stream_json_has_what_is_promised(run_json: Json, packed: Path) -> None:
    """Totals and each epoch have counts, times, cache, store and a ledger that sums to wall time."""
    document = run_json("stream", packed, "--batch-size", "4", "--epochs", "2")
    assert (document["samples"], document["batches"], len(document["epochs"])) == (24, 6, 2)
    for part in (document, *document["epochs"]):
        assert part["seconds"] > 0
        assert part["first_batch_s"] > 0
        assert part["samples_per_s"] > 0
        assert part["cache"].keys() == {"hits", "misses", "hit_rate", "bytes"}
        assert part["store"].keys() == {"requests", "bytes"}
        assert sum(part["ledger"][name] for name in LEDGER) == pytest.approx(part["ledger"]["wall_s"])


def test_stream_hashes_the_keys_delivered(run_json: Json, packed: Path) -> None:
    """``keys_sha256`` is that of the loader's keys, a line each, over all epochs and over each."""
    document = run_json("stream", packed, "--batch-size", "4", "--epochs", "2", "--seed", "7")
    keys = keys_of(packed, seed=7, epochs=2)
    assert document["keys_sha256"] == hashlib.sha256("".join(f"{key}\n" for key in keys).encode()).hexdigest()
    second = hashlib.sha256("".join(f"{key}\n" for key in keys[12:]).encode()).hexdigest()
    assert document["epochs"][1]["keys_sha256"] == second


@pytest.mark.parametrize("engine", ["exact", "pillow"])
def test_stream_decodes_to_a_size(run_json: Json, packed: Path, engine: str) -> None:
    """With ``--size`` pictures are decoded and resized."""
    options = ["--fields", "jpg,txt", "--size", "64x48", "--fit", "crop", "--engine", engine, "--threads", "2"]
    document = run_json("stream", packed, "--batch-size", "4", *options)
    assert document["ledger"]["decode_s"] > 0
    assert document["samples"] == 12


def test_ranks_share_the_epoch(run_json: Json, packed: Path) -> None:
    """Two ranks have as many steps and other keys."""
    ranks = [run_json("stream", packed, "--batch-size", "4", "--world", f"{rank}/2") for rank in range(2)]
    assert [rank["batches"] for rank in ranks] == [1, 1]
    assert ranks[0]["keys_sha256"] != ranks[1]["keys_sha256"]


def test_the_launcher_says_the_rank(run_json: Json, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``--world`` the variables of torchrun count."""
    by_option = run_json("stream", packed, "--batch-size", "4", "--world", "1/2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_json("stream", packed, "--batch-size", "4")["keys_sha256"] == by_option["keys_sha256"]


@pytest.mark.parametrize(("tail", "samples"), [("drop", 12), ("uneven", 13), ("pad", 16)])
def test_tails(run_json: Json, packed: Path, tail: str, samples: int) -> None:
    """``--tail`` decides about the samples that fill no whole step."""
    assert run_json("stream", packed, "--batch-size", "4", "--tail", tail)["samples"] == samples


def test_stored_order(run_json: Json, packed: Path) -> None:
    """``--shuffle none`` delivers the samples as they are stored."""
    document = run_json("stream", packed, "--batch-size", "1", "--shuffle", "none")
    keys = [sample["key"] for sample in run_json("ls", packed, "--limit", "0")]
    assert document["keys_sha256"] == hashlib.sha256("".join(f"{key}\n" for key in keys).encode()).hexdigest()


def test_limit_ends_each_epoch(run_json: Json, packed: Path) -> None:
    """``--limit`` cuts every epoch after so many batches, and the next one begins."""
    document = run_json("stream", packed, "--batch-size", "2", "--epochs", "2", "--limit", "3")
    assert [(epoch["epoch"], epoch["batches"]) for epoch in document["epochs"]] == [(0, 3), (1, 3)]


@pytest.fixture
def half_bad(tmp_path: Path) -> Path:
    """Twelve samples, of which every other has no picture in its jpg."""
    picture = (Path(__file__).parents[2] / "examples" / "photos" / "chelsea.jpg").read_bytes()
    with ShardWriter(str(tmp_path / "half")) as writer:
        for number in range(12):
            writer.write({"__key__": f"k{number}", "jpg": b"no picture" if number % 2 else picture})
    return tmp_path / "half"


@pytest.mark.filterwarnings("always:bad sample")
def test_bad_samples_are_counted_against_a_budget(run: Run, half_bad: Path, tmp_path: Path) -> None:
    """Bad samples end the run with 1, unless they are skipped, reported, and not too many."""
    options = ["--batch-size", "4", "--size", "8", "--threads", "1"]
    assert "'jpg'" in run("stream", half_bad, *options, code=1).stderr
    warned, failed = run("stream", half_bad, *options, "--on-bad", "skip", "--max-bad", "5", code=1).stderr.splitlines()
    assert warned.startswith("janus-shards: warning: bad sample")
    assert failed.startswith("janus-shards: error: more bad samples")
    report = tmp_path / "bad.jsonl"
    result = run("stream", half_bad, *options, "--on-bad", "skip", "--bad-report", report, "--json")
    assert json.loads(result.stdout)["bad"] == {"skipped": 6, "substituted": 0}
    assert len(report.read_text().splitlines()) == 6


def test_stream_prints_a_table(run: Run, packed: Path) -> None:
    """For people: a row an epoch, where the time went, and the total."""
    lines = run("stream", packed, "--batch-size", "4", "--epochs", "2").stdout.splitlines()
    assert lines[1].split()[:3] == ["epoch", "samples", "batches"]
    assert [line.split()[:3] for line in lines[2:4]] == [["0", "12", "3"], ["1", "12", "3"]]
    assert [line.split()[0] for line in lines[4:]] == ["time", "total"]
    assert max(map(len, lines[1:])) <= 80


def test_stream_names_unknown_fields(error_line: Callable[..., str], packed: Path) -> None:
    """A field that does not exist, and a size without pictures, are mistakes of the user."""
    assert "it has jpg, txt" in error_line("stream", packed, "--fields", "png", code=2)
    assert "field with pictures" in error_line("stream", packed, "--fields", "txt", "--size", "8", code=2)


def test_too_few_samples(error_line: Callable[..., str], packed: Path) -> None:
    """A batch that the data cannot fill is refused before the first one."""
    assert "14" in error_line("stream", packed, "--batch-size", "14", code=2)


def test_stream_caches_decoded_pictures(run: Run, packed: Path, tmp_path: Path) -> None:
    """With --cache and --decoded the second epoch, and the next run, decode nothing and read no picture."""
    command = (
        "stream",
        packed,
        "--size",
        "32",
        "--batch-size",
        "4",
        "--tail",
        "uneven",
        "--cache",
        tmp_path / "ssd",
        "--decoded",
        "--json",
    )
    first = json.loads(run(*command, "--epochs", "2").stdout)
    assert [epoch["cache"]["hit_rate"] for epoch in first["epochs"]] == [0.0, 1.0]
    again = json.loads(run(*command).stdout)
    assert again["cache"]["hits"] == again["samples"] == 13
    assert again["cache"]["bytes"] > 13 * 3 * 32 * 32


def test_stream_wants_a_folder_for_decoded_pictures(error_line: Callable[..., str], packed: Path) -> None:
    """--decoded alone is a usage error that names --cache."""
    assert "--cache DIR" in error_line("stream", packed, "--decoded", code=2)
