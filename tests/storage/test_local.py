import gc
import os
import pickle
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from janus_shards.errors import AccessDeniedError, IntegrityError, ObjectNotFoundError, StorageError
from janus_shards.storage.local import LocalStorage
from tests.contracts.storage import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        """An empty folder, not yet made."""
        return LocalStorage(tmp_path / "root dir")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A storage in a folder of its own."""
    return LocalStorage(tmp_path)


def test_bytes_go_straight_into_a_buffer(storage: LocalStorage) -> None:
    """A buffer is filled where it lies; one that reaches behind the end of the file is refused."""
    storage.put("x.tar", b"0123456789")
    buffer = bytearray(4)
    storage.pread_into("x.tar", 3, buffer)
    storage.pread_into("x.tar", 8, memoryview(buffer)[:2])
    assert buffer == b"8956"
    with pytest.raises(IntegrityError, match=r"x\.tar") as caught:
        storage.pread_into("x.tar", 8, buffer)
    assert caught.value.kind == "truncated_shard"


@pytest.mark.parametrize("name", ["../x.tar", "a/../../x.tar", "/etc/passwd", "", "a\0b", "sub/"])
def test_names_stay_inside_the_root(storage: LocalStorage, name: str) -> None:
    """A name from an untrusted manifest neither reads nor writes outside of the folder."""
    for access in (storage.read, storage.head, storage.open_upload, storage.delete):
        with pytest.raises(StorageError) as caught:
            access(name)
        assert caught.value.kind == "bad_path"


def test_writes_follow_no_link_out_of_the_root(tmp_path: Path) -> None:
    """Nothing is written or removed through a linked folder; a linked file is replaced, not followed."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.tar").write_bytes(b"precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "x.tar").symlink_to(tmp_path / "outside" / "x.tar")
    storage = LocalStorage(tmp_path / "root")
    assert storage.read("linked/x.tar") == storage.read("x.tar") == b"precious"
    for write in (storage.open_upload, storage.delete):
        with pytest.raises(StorageError, match="symbolic link") as caught:
            write("linked/x.tar")
        assert caught.value.kind == "bad_path"
    storage.put("x.tar", b"new")
    assert (tmp_path / "outside" / "x.tar").read_bytes() == b"precious"
    assert storage.read("x.tar") == b"new"


def test_open_files_are_bounded_and_reopened(tmp_path: Path) -> None:
    """No more descriptors are kept than allowed, and all files stay readable."""
    storage = LocalStorage(tmp_path, max_open_files=2)
    for number in range(5):
        storage.put(f"{number}.tar", str(number).encode())
    before = len(os.listdir("/dev/fd"))
    assert [storage.read(f"{number}.tar") for number in (0, 1, 0, 2, 3, 4, 0)] == [
        b"0",
        b"1",
        b"0",
        b"2",
        b"3",
        b"4",
        b"0",
    ]
    assert len(os.listdir("/dev/fd")) - before == 2
    storage.close()
    assert len(os.listdir("/dev/fd")) == before


def test_threads_share_few_descriptors(tmp_path: Path) -> None:
    """Eviction by one thread never closes a file, or puts another in its place, while a second one reads it."""
    storage = LocalStorage(tmp_path, max_open_files=2)
    for number in range(8):
        storage.put(f"{number}.tar", bytes([number]) * 4096)

    def read(first: int) -> bool:
        numbers = [(first + step * step) % 8 for step in range(400)]
        return all(storage.read(f"{number}.tar", 5, 4000) == bytes([number]) * 3995 for number in numbers)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


def test_replaced_file_is_never_mixed(storage: LocalStorage, tmp_path: Path) -> None:
    """An open file goes on with its old bytes when it is replaced; asking for the new ETag opens the new one."""
    old = storage.put("x.tar", b"old bytes")
    assert storage.read("x.tar", 0, 3, etag=old.etag) == b"old"
    LocalStorage(tmp_path).put("x.tar", b"new bytes!")
    assert storage.read("x.tar", 4, 9, etag=old.etag) == b"bytes"
    assert storage.read("x.tar", 0, 3, etag=storage.head("x.tar").etag) == b"new"


def test_stale_temporary_files_are_removed_and_live_ones_kept(storage: LocalStorage, tmp_path: Path) -> None:
    """What a killed writer left is removed; what a living one writes, of another prefix or of others, is not."""
    script = (
        "import os, sys; from janus_shards.storage.local import LocalStorage\n"
        "upload = LocalStorage(sys.argv[1]).open_upload('train-0.tar'); upload.write(b'half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (tmp_path / ".janus-tmp-0123abcd-val-0.tar").touch()
    (tmp_path / "train-0.tmp").touch()
    with storage.open_upload("train-1.tar") as live:
        assert [meta.name for meta in storage.list()] == ["train-0.tmp"]
        (stale,) = storage.stale_uploads("train-")
        assert (tmp_path / stale).read_bytes() == b"half"
        assert storage.abort_stale_uploads("train-") == 1
        assert storage.stale_uploads("train-") == []
        live.finish()
    assert sorted(os.listdir(tmp_path)) == [".janus-tmp-0123abcd-val-0.tar", "train-0.tmp", "train-1.tar"]


def test_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """When the bytes do not fit, the error says so and the temporary file is gone."""
    script = (
        "import resource, signal, sys; from janus_shards.storage.local import LocalStorage\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: LocalStorage(sys.argv[1]).put('x.tar', b'x' * 2000)\n"
        "except OSError as exc: print(type(exc).__name__, exc)"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("StorageError writing")
    assert os.listdir(tmp_path) == []


def test_full_device_is_a_clear_error(storage: LocalStorage, tmp_path: Path) -> None:
    """ENOSPC becomes a storage error of kind disk_full."""
    upload = storage.open_upload("x.tar")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, upload._fd)  # type: ignore[attr-defined]
    os.close(full)
    with pytest.raises(StorageError, match=r"x\.tar.*space") as caught:
        upload.write(b"x")
    assert caught.value.kind == "disk_full"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_access_denied(storage: LocalStorage, tmp_path: Path) -> None:
    """A file without permission says so."""
    storage.put("x.tar", b"x")
    (tmp_path / "x.tar").chmod(0)
    with pytest.raises(AccessDeniedError):
        storage.read("x.tar")


def test_missing_root_is_named(tmp_path: Path) -> None:
    """Listing a folder that is not there is an error, not an empty list; a folder is not an object."""
    with pytest.raises(ObjectNotFoundError, match="gone"):
        list(LocalStorage(tmp_path / "gone").list())
    (tmp_path / "sub").mkdir()
    for access in (LocalStorage(tmp_path).head, LocalStorage(tmp_path).read):
        with pytest.raises(ObjectNotFoundError):
            access("sub")


def test_mapped_files_are_pages_that_processes_share(storage: LocalStorage, tmp_path: Path) -> None:
    """A mapping has the asked bytes, and keeps them when the file is replaced; a file that is too short is an error."""
    storage.put("x.idx", b"0123456789")
    mapped = storage.map("x.idx", 4)
    assert (bytes(mapped), storage.map("x.idx", 0)) == (b"0123", b"")
    storage.put("x.idx", b"abcd")
    assert (bytes(mapped), bytes(storage.map("x.idx", 4))) == (b"0123", b"abcd")
    with pytest.raises(IntegrityError, match="4 bytes"):
        storage.map("x.idx", 5)
    with pytest.raises(ObjectNotFoundError):
        storage.map("gone", 5)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="mappings need no descriptor there")
def test_mappings_leave_descriptors_to_others(tmp_path: Path) -> None:
    """Beyond twice the kept descriptors the bytes are copies; with the mappings gone, there is room again."""
    storage = LocalStorage(tmp_path, max_open_files=2)
    storage.put("x.idx", b"0123456789")
    found = [storage.map("x.idx", 10) for _ in range(6)]
    assert [isinstance(data, memoryview) for data in found] == [True] * 4 + [False] * 2
    assert {bytes(data) for data in found} == {b"0123456789"}
    del found
    gc.collect()
    assert isinstance(storage.map("x.idx", 10), memoryview)


def test_forked_child_reads_on(storage: LocalStorage) -> None:
    """A child of fork reads through the descriptors of its parent, and opens others."""
    storage.put("x.tar", b"parent")
    storage.put("y.tar", b"child")
    storage.read("x.tar")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if (storage.read("x.tar"), storage.read("y.tar")) == (b"parent", b"child") else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_pickled_copy_reads_the_same_folder(storage: LocalStorage) -> None:
    """A copy in another process sees the same files."""
    storage.put("x.tar", b"x")
    assert pickle.loads(pickle.dumps(storage)).read("x.tar") == b"x"


def test_descriptor_limit_follows_the_process(tmp_path: Path) -> None:
    """By default a quarter of the descriptors that the process may open is used at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert LocalStorage(tmp_path)._max_open_files <= max(8, soft // 4)
