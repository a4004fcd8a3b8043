"""Writers that were started again, or killed: whole shards under final names only, the same bytes every time."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import janus_shards as js
from janus_shards.cli.main import main
from janus_shards.errors import ConfigError
from janus_shards.format.index import ShardIndex
from janus_shards.operations.pack import PackOptions, pack
from janus_shards.writer.shard import ShardLayout
from tests.cases import expectations
from tests.cases.expectations import Case

CASES = [case for case in expectations.cases("W") if case.kind == "scenario"]
PLANS = [
    pytest.param(case, plan, id=f"{case.id}-{plan['maxcount']}") for case in CASES for plan in case.expect["plans"]
]
ROOTS = ("pack", "writer")
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)

# Each line on stdin lets it write one more sample, and tells on stdout when it has.
WRITE = """
import sys
from tests.cases.test_writer import write
write(sys.argv[1], int(sys.argv[2]), sys.argv[3:], before=sys.stdin.readline, after=lambda: print(flush=True))
"""


def digests(folder: Path, *, without: str = "manifest") -> dict[str, str]:
    """SHA-256 of the files of a folder by name, hidden ones included."""
    return {
        path.name: expectations.sha256(path.read_bytes())
        for path in sorted(folder.iterdir())
        if not path.name.startswith(without)
    }


def packed(case: Case, root: Path, maxcount: int, **options: Any) -> list[int]:
    """Pack the input of a case; samples a shard."""
    layout = ShardLayout(max_samples=maxcount)
    report = pack(str(case.folder / "input"), str(root), options=PackOptions(layout=layout, workers=1, **options))
    return [shard.num_samples for shard in report.manifest.shards]


def files_in_order(case: Case) -> list[str]:
    """The input files, sample by sample, in the order of the case."""
    order = case.expect["input_order"]
    files = sorted(
        (case.folder / "input").iterdir(), key=lambda path: (order.index(path.name.split(".")[0]), path.name)
    )
    return [str(path) for path in files]


def write(
    root: str | Path,
    maxcount: int,
    files: Sequence[str],
    *,
    resume: bool = False,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Write files as samples, one by one, with a ``ShardWriter``."""
    samples: dict[str, dict[str, object]] = {}
    for path in map(Path, files):
        key, _, field = path.name.partition(".")
        samples.setdefault(key, {"__key__": key})[field] = path.read_bytes()
    with js.ShardWriter(str(root), max_samples=maxcount, resume=resume) as writer:
        for sample in samples.values():
            before()
            writer.write(sample)
            after()


def writing(root: Path, maxcount: int, files: list[str], **given: Any) -> "subprocess.Popen[str]":
    """A process that writes the samples with a ``ShardWriter``."""
    command = [sys.executable, "-c", WRITE, str(root), str(maxcount), *files]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=expectations.REPOSITORY, **{**pipes, **given})


def check_whole(root: Path) -> set[str]:
    """Every shard under a final name is whole and has its index, and no manifest is there; the shards' names."""
    tars = {path.stem for path in root.glob("*.tar")}
    assert {path.stem for path in root.glob("*.idx")} == tars
    for stem in tars:
        index = ShardIndex.decode((root / f"{stem}.idx").read_bytes(), name=stem)
        data = (root / f"{stem}.tar").read_bytes()
        assert (index.tar_bytes, index.tar_sha256.hex()) == (len(data), expectations.sha256(data))
    assert not list(root.glob("manifest*"))
    return tars


@pytest.mark.parametrize(("case", "plan"), PLANS)
def test_plans_give_exactly_these_shards(case: Case, plan: Mapping[str, Any], tmp_path: Path) -> None:
    """Numbers of samples are those of the plan by pack and by ShardWriter: none empty, no gap, the order kept."""
    assert packed(case, tmp_path / "pack", plan["maxcount"]) == plan["shards"]
    write(tmp_path / "writer", plan["maxcount"], files_in_order(case))
    tars = [{name: data for name, data in digests(tmp_path / root).items() if name.endswith(".tar")} for root in ROOTS]
    assert tars[0] == tars[1]
    dataset = js.open_dataset(str(tmp_path / "pack"))
    assert [sample.key for sample in dataset] == case.expect["input_order"]
    names = [shard.name for shard in dataset.catalog.manifest.shards]
    assert names == [f"shard-{number:06d}.tar" for number in range(len(plan["shards"]))]


def test_no_input_is_no_shard_and_a_message(tmp_path: Path) -> None:
    """Nothing to pack or write is said in a line, and leaves neither shard nor manifest."""
    (tmp_path / "in").mkdir()
    result = CliRunner().invoke(main, ["pack", str(tmp_path / "in"), str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "found no files to pack" in result.stderr
    with pytest.raises(ConfigError, match="no sample"), js.ShardWriter(str(tmp_path / "out")):
        pass
    assert not list((tmp_path / "out").glob("*"))


@EVERY
def test_bytes_depend_on_the_samples_alone(case: Case, tmp_path: Path) -> None:
    """Another time, umask, user name, locale and order of files on disk: the same shards, indexes and manifest."""
    plan = max(case.expect["plans"], key=lambda plan: len(plan["shards"]))
    packed(case, tmp_path / "one", plan["maxcount"])
    (tmp_path / "in").mkdir()
    for name in reversed(files_in_order(case)):
        shutil.copyfile(name, tmp_path / "in" / Path(name).name)
        os.utime(tmp_path / "in" / Path(name).name, (1_000_000_000, 1_000_000_000))
    command = [sys.executable, "-m", "janus_shards.cli", "pack", tmp_path / "in", tmp_path / "two", "--max-samples"]
    env = {**os.environ, "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo", "USER": "someone", "LOGNAME": "someone"}
    limits = {"umask": 0o077, "env": env, "cwd": expectations.REPOSITORY}
    subprocess.run([*command, str(plan["maxcount"])], check=True, capture_output=True, **limits)
    assert digests(tmp_path / "one", without="-") == digests(tmp_path / "two", without="-")


@EVERY
def test_a_second_run_refuses_what_is_there(case: Case, tmp_path: Path) -> None:
    """Without ``overwrite`` or ``resume`` the second run ends with a message that names both, and changes no file."""
    root = tmp_path / "out"
    maxcount = case.expect["plans"][0]["maxcount"]
    packed(case, root, maxcount)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()}
    result = CliRunner().invoke(main, ["pack", str(case.folder / "input"), str(root)])
    assert result.exit_code == 2
    assert "--overwrite" in result.stderr
    assert "--resume" in result.stderr
    with pytest.raises(ConfigError, match="already holds"), js.ShardWriter(str(root)):
        pass
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.iterdir()} == before
    assert packed(case, root, maxcount, resume=True) == packed(case, root, maxcount, overwrite=True)
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {
        name: data for name, (data, _) in before.items()
    }


@EVERY
def test_a_killed_writer_is_resumed_to_the_same_files(case: Case, tmp_path: Path) -> None:
    """SIGKILL behind the first shard leaves whole shards with indexes; resuming gives an undisturbed run's files."""
    plan = next(plan for plan in case.expect["plans"] if len(plan["shards"]) > 2)
    files = files_in_order(case)
    with writing(tmp_path / "killed", plan["maxcount"], files) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(plan["shards"][0] + 2):
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
        process.kill()
    assert check_whole(tmp_path / "killed") == {"shard-000000"}
    write(tmp_path / "killed", plan["maxcount"], files, resume=True)
    write(tmp_path / "undisturbed", plan["maxcount"], files)
    # Hidden files too: what the killed writer had begun is gone.
    assert digests(tmp_path / "killed", without="-") == digests(tmp_path / "undisturbed", without="-")


def _no_larger_files() -> None:
    """The disk is full as soon as a file has 16 KiB: what does not fit ends in an error, not in a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))


@EVERY
def test_a_full_disk_leaves_whole_shards(case: Case, tmp_path: Path) -> None:
    """Where a shard does not fit any more, those in front are whole, and resuming finishes the run."""
    plan = next(plan for plan in case.expect["plans"] if len(plan["shards"]) > 2)
    small, large = files_in_order(case), tmp_path / "zz.bin"
    large.write_bytes(bytes(20_000))
    files = [*small, str(large)]
    with writing(tmp_path / "full", plan["maxcount"], files, preexec_fn=_no_larger_files) as process:
        said = process.communicate("\n" * 1000)[1]
    assert process.returncode != 0
    assert "StorageError" in said
    tars = check_whole(tmp_path / "full")
    assert "shard-000000" in tars
    write(tmp_path / "full", plan["maxcount"], files, resume=True)
    write(tmp_path / "undisturbed", plan["maxcount"], files)
    assert digests(tmp_path / "full", without="-") == digests(tmp_path / "undisturbed", without="-")
