"""The folder of the entries: whose it is, what lies in it, and what may be deleted.

Everything is named relative to a descriptor of the folder, never follows a symbolic link, and is trusted only when its
owner is. What has our marker beside it, our name, our header and our owner is ours; nothing else is ever changed.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from janus_shards.cache.entry import MAGIC, PROBE_BYTES, Header, Stamp, decode_header, header_bytes, stamp_of
from janus_shards.errors import ConfigError

MARKER_NAME = "JANUS-SHARDS-CACHE"
_MARKER = b"This folder is a cache of janus-shards, version 1. It may be deleted whole at any time.\n"
_ENTRY_NAME = re.compile(r"[0-9a-f]{32}\.(raw|rows)")
_FOLDER_NAME = re.compile(r"janus-cache-v1-([ug])(\d+)")
_TEMP_NAME = re.compile(r"tmp-(\d{3})-[0-9a-f]{16}")
# Without O_NONBLOCK, opening a pipe that somebody put here would wait for ever.
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def folder_name(group_id: int | None) -> str:
    """Name of the folder inside the user's directory: one for each user, or for each group that shares one."""
    return f"janus-cache-v1-u{os.geteuid()}" if group_id is None else f"janus-cache-v1-g{group_id}"


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file with one of our names.

    Attributes:
        name: Its name.
        num_bytes: Its size.
        touched_ns: When it was last written.
        slot: Which slot's temporary file it is; ``None`` for an entry.
    """

    name: str
    num_bytes: int
    touched_ns: int
    slot: int | None


class CacheFolder:
    """An open folder of entries. Made by ``open_folder``.

    Attributes:
        path: For messages.
        fd: Descriptor of the folder.
    """

    def __init__(self, path: str, fd: int, group_id: int | None) -> None:
        self.path = path
        self.fd = fd
        self._group_id = group_id

    def __del__(self) -> None:
        os.close(self.fd)

    def has_marker(self) -> bool:
        """Whether the folder still says that it is a cache."""
        try:
            return self._trusts(os.stat(MARKER_NAME, dir_fd=self.fd, follow_symlinks=False))
        except OSError:
            return False

    def open_shared(self, name: str) -> int:
        """Open a file that all processes write, and make it where it is missing.

        Raises:
            OSError: It cannot be opened for writing, or belongs to somebody else.
        """
        fd = os.open(name, os.O_RDWR | os.O_CREAT | _FLAGS, self._mode(), dir_fd=self.fd)
        return self._checked(fd, name)

    def create_temp(self, slot: int) -> tuple[str, int]:
        """A new file that is nobody's yet: its name and a descriptor for reading and writing."""
        name = f"tmp-{slot:03d}-{os.urandom(8).hex()}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, self._mode(), dir_fd=self.fd)
        return name, self._checked(fd, name)

    def publish(self, temp: str, name: str) -> None:
        """Give a temporary file its name, in place of what had it before."""
        os.replace(temp, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def drop_temp(self, name: str) -> None:
        """Remove a temporary file of this process."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except OSError:
            pass  # whoever takes the slot next removes it

    def open_entry(self, name: str) -> int | None:
        """Descriptor of an entry, for writing too where that is possible; ``None`` when it is not there or not ours."""
        for access in (os.O_RDWR, os.O_RDONLY):
            try:
                fd = os.open(name, access | _FLAGS, dir_fd=self.fd)
            except FileNotFoundError:
                return None
            except OSError:
                continue  # a read-only disk; at the second time a link, a socket, or somebody else's
            if self._trusts(os.fstat(fd)):
                return fd
            os.close(fd)
            return None
        return None

    def is_taken(self, name: str) -> bool:
        """Whether a name is held by something that is not ours to replace."""
        fd = self.open_entry(name)
        if fd is None:
            try:
                os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True
        try:
            return not _may_be_ours(read_head(fd), is_temp=False)
        finally:
            os.close(fd)

    def remove(self, name: str, *, expected: Stamp | None = None) -> int | None:
        """Remove one of our files: the bytes that it took, or ``None`` when it stays.

        Args:
            name: The file.
            expected: Leave it when somebody has touched it since.
        """
        fd = self.open_entry(name)
        if fd is None:
            return None
        try:
            probe, size = read_head(fd), os.fstat(fd).st_size
        finally:
            os.close(fd)
        is_temp = _TEMP_NAME.fullmatch(name) is not None
        if not (is_temp or _ENTRY_NAME.fullmatch(name)) or not _may_be_ours(probe, is_temp=is_temp):
            return None
        if (expected is not None and stamp_of(probe) != expected) or not self.has_marker():
            return None
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        header = decode_header(probe)
        # A file that was cut was charged in full; taking off too little is put right when the folder is counted.
        return size if header is None else min(size, header.file_bytes)

    def scan(self) -> Iterator[FolderFile]:
        """All files with one of our names."""
        with os.scandir(self.fd) as found:
            for item in found:
                temp = _TEMP_NAME.fullmatch(item.name)
                if not temp and not _ENTRY_NAME.fullmatch(item.name):
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    slot = int(temp[1]) if temp else None
                    yield FolderFile(item.name, status.st_size, status.st_mtime_ns, slot)

    def peek(self, name: str) -> tuple[Header, Stamp] | None:
        """Header and stamp of an entry, or ``None`` when it is not ours."""
        fd = self.open_entry(name)
        if fd is None:
            return None
        try:
            probe = read_head(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        header = decode_header(probe)
        return None if header is None else (header, stamp_of(probe))

    def free_bytes(self) -> int:
        """Space on the file system for files of this user."""
        status = os.fstatvfs(self.fd)
        return status.f_bavail * status.f_frsize

    def is_gone(self) -> bool:
        """Whether the folder was removed."""
        return os.fstat(self.fd).st_nlink == 0

    def _mode(self) -> int:
        return 0o600 if self._group_id is None else 0o660

    def _checked(self, fd: int, name: str) -> int:
        """The descriptor of a file that is ours, with the mode of the folder whatever the umask."""
        try:
            status = os.fstat(fd)
            if not self._trusts(status):
                raise PermissionError(f"{self.path}/{name} belongs to user {status.st_uid}")
            if self._group_id is not None and status.st_uid == os.geteuid():
                if status.st_gid != self._group_id:
                    os.fchown(fd, -1, self._group_id)
                os.fchmod(fd, 0o660)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _trusts(self, status: os.stat_result) -> bool:
        if not stat.S_ISREG(status.st_mode):
            return False
        if status.st_uid == os.geteuid():
            return True
        return self._group_id is not None and status.st_gid == self._group_id and not status.st_mode & stat.S_IWOTH


def read_head(fd: int) -> bytes:
    """What stands before the payload, as far as the file goes."""
    probe = os.pread(fd, PROBE_BYTES, 0)
    length = header_bytes(probe)
    return probe if length is None or length <= len(probe) else os.pread(fd, length, 0)


def _may_be_ours(probe: bytes, *, is_temp: bool) -> bool:
    """Whether the start of a file is what we write, or what a crash leaves of it: nothing, or zeros."""
    if not probe.strip(b"\0"):
        return True
    return probe.startswith(MAGIC) if is_temp else decode_header(probe) is not None


def open_folder(directory: str, group_id: int | None) -> CacheFolder:
    """Open the cache's own folder inside a directory, and make what is missing.

    Args:
        directory: The user's; links in its path are followed.
        group_id: The group that shares it, or ``None`` for a folder of this user alone.

    Raises:
        ConfigError: ``directory`` is no folder, or somebody else made the cache's folder in it.
        OSError: The folder is missing and cannot be made.
    """
    root = os.path.abspath(directory)
    path = os.path.join(root, folder_name(group_id))
    try:
        if not os.path.isdir(root):
            os.makedirs(root, 0o700, exist_ok=True)
            if group_id is not None:
                _give(root, group_id)
        try:
            os.mkdir(path, 0o700)
            is_new = True
        except FileExistsError:
            is_new = False
        fd = os.open(path, _FOLDER_FLAGS)
    except (FileExistsError, NotADirectoryError) as exc:
        raise ConfigError(f"cache {directory}: expected a folder, found something else at {exc.filename}") from exc
    folder = CacheFolder(path, fd, group_id)
    _claim(folder, group_id, is_new=is_new)
    return folder


def existing_folders(directory: str) -> list[CacheFolder]:
    """The caches in a directory that this user may use: its own, and those of its groups. Nothing is made.

    Raises:
        OSError: The directory is missing or cannot be read.
    """
    found = []
    for name in sorted(os.listdir(directory)):
        match = _FOLDER_NAME.fullmatch(name)
        if match is None:
            continue
        group_id = int(match[2]) if match[1] == "g" else None
        try:
            fd = os.open(os.path.join(directory, name), _FOLDER_FLAGS)
        except OSError:
            continue  # somebody else's, or no folder
        folder = CacheFolder(os.path.join(os.path.abspath(directory), name), fd, group_id)
        if _is_ours(os.fstat(fd), group_id) and folder.has_marker():
            found.append(folder)
    return found


def _is_ours(status: os.stat_result, group_id: int | None) -> bool:
    return status.st_uid == os.geteuid() or (group_id is not None and status.st_gid == group_id)


def _give(path: str, group_id: int) -> None:
    os.chown(path, -1, group_id)
    os.chmod(path, 0o2770)


def _claim(folder: CacheFolder, group_id: int | None, *, is_new: bool) -> None:
    """Check whose folder it is, and mark a new one."""
    status = os.fstat(folder.fd)
    mine = status.st_uid == os.geteuid()
    if not _is_ours(status, group_id):
        raise ConfigError(
            f"cache {folder.path} belongs to user {status.st_uid}; choose another directory"
            + ("" if group_id is None else f", or let group {group_id} own it")
        )
    if mine and group_id is None and stat.S_IMODE(status.st_mode) != 0o700:
        os.fchmod(folder.fd, 0o700)
    if mine and group_id is not None and (is_new or status.st_gid != group_id):
        os.fchown(folder.fd, -1, group_id)
        os.fchmod(folder.fd, 0o2770)
    # Whoever made an empty folder may have died before marking it; what has other files in it and no marker stays as
    # it is, and nothing in it is ever deleted.
    if not folder.has_marker() and (is_new or not os.listdir(folder.fd)):
        fd = folder.open_shared(MARKER_NAME)
        try:
            os.pwrite(fd, _MARKER, 0)
        finally:
            os.close(fd)
