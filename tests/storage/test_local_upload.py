import gc
import os
import sys
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

from janus_shards.storage.base import TEMP_PREFIX, Upload
from janus_shards.storage.local import LocalStorage


def is_interrupted(action: Callable[[], object], at: int) -> bool:
    """Whether the action is still running at the given call or return, where Ctrl-C then reaches it."""
    events = count()

    def strike(*_event: object) -> None:
        if next(events) == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    try:
        sys.setprofile(strike)
        try:
            action()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        return True
    return False


def left_behind(folder: Path) -> list[str]:
    """Temporary files in a folder."""
    found = [name for name in os.listdir(folder) if name.startswith(TEMP_PREFIX)]
    if found:  # a cycle of exception and frame may keep the upload
        gc.collect()
    return [name for name in found if (folder / name).exists()]


def test_an_interrupt_at_any_moment_leaves_no_temporary_file(tmp_path: Path) -> None:
    """Wherever Ctrl-C strikes, even before the caller holds the upload: no file, or the whole one, and nothing else."""
    storage, kept = LocalStorage(tmp_path), list[Upload]()

    def write() -> None:
        with storage.open_upload("x.tar") as upload:
            kept.append(upload)
            upload.write(b"whole")
            upload.finish()

    for at in count():
        was_interrupted = is_interrupted(write, at)
        kept.clear()
        assert left_behind(tmp_path) == []
        if not was_interrupted:
            break
        assert all(path.read_bytes() == b"whole" for path in tmp_path.iterdir())
        (tmp_path / "x.tar").unlink(missing_ok=True)
    assert at > 50


def test_a_forked_child_leaves_the_upload_of_its_parent_alone(tmp_path: Path) -> None:
    """A child that forgets its copy of an open upload does not remove the file."""
    upload = LocalStorage(tmp_path).open_upload("x.tar")
    upload.write(b"whole")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn where other tests have left threads
        pid = os.fork()
    if pid == 0:
        del upload
        os._exit(0)
    os.waitpid(pid, 0)
    upload.finish()
    assert (tmp_path / "x.tar").read_bytes() == b"whole"
