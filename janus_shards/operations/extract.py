"""Save the fields of one sample as files. Keys are untrusted: no file lands outside the folder that was asked for."""

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from janus_shards.decode.lazy import Sample
from janus_shards.errors import ConfigError, FormatError, StorageError
from janus_shards.storage.base import TEMP_PREFIX

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ExtractedFile(NamedTuple):
    """One file that was written: field, path below the folder, and length in bytes."""

    field: str
    path: str
    size: int


def extract(
    sample: Sample, folder: str, *, fields: Sequence[str] | None = None, overwrite: bool = False
) -> list[ExtractedFile]:
    """Write each field of a sample to the file KEY.FIELD below a folder; a key with slashes makes folders.

    Nothing is written before every field has been read and no file stands in the way, and each file appears whole.

    Args:
        sample: The sample.
        folder: Where to; made when missing. It may be a link itself, but no link below it is followed.
        fields: Fields to write; all when not given.
        overwrite: Replace files that are there.

    Raises:
        ConfigError: A file is there already (kind ``exists``).
        FormatError: The key would leave the folder (kind ``bad_path``).
        MissingFieldError: The sample lacks a field.
        StorageError: Something below the folder is a link or no folder (kind ``bad_path``), or writing failed.
    """
    inner, base = _parts(sample)
    data = {field: sample.raw(field) for field in fields or sample}
    names = {field: f"{base}.{field}" for field in data}
    with _translated(os.path.join(folder, *inner)):
        os.makedirs(folder, exist_ok=True)
    with _open_folder(folder, inner) as at:
        if not overwrite:
            _refuse_existing(at, [os.path.join(folder, *inner, name) for name in names.values()])
        for field, name in names.items():
            with _translated(os.path.join(folder, *inner, name)):
                _write(at, name, data[field], overwrite=overwrite)
    return [ExtractedFile(field, "/".join((*inner, name)), len(data[field])) for field, name in names.items()]


def _parts(sample: Sample) -> tuple[list[str], str]:
    """Folders and base name of the files."""
    *inner, base = sample.key.split("/")
    # As in "./train/1", which `tar cf x.tar .` writes.
    inner = [part for part in inner if part != "."]
    if "\0" in sample.key or base == "." or {"", ".."} & {*inner, base}:
        raise FormatError(
            f"sample {sample.key!r}: expected a key that stays below a folder; read it with `janus-shards cat` instead",
            kind="bad_path",
            shard=sample.shard,
            key=sample.key,
        )
    return inner, base


@contextmanager
def _open_folder(folder: str, inner: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder below a folder, made where missing, without following a link on the way."""
    with _translated(folder):
        at = os.open(folder, _FOLDER)
    try:
        path = folder
        for part in inner:
            path = os.path.join(path, part)
            with _translated(path):
                below = _open_below(at, part)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _open_below(at: int, part: str) -> int:
    try:
        os.mkdir(part, dir_fd=at)
    except FileExistsError:
        pass
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=at)


def _refuse_existing(at: int, paths: Sequence[str]) -> None:
    there = set(os.listdir(at))
    for path in paths:
        if os.path.basename(path) in there:
            raise ConfigError(
                f"{path} is there already: nothing was written. Choose another folder, or replace it with "
                "overwrite=True (--overwrite)",
                kind="exists",
            )


def _write(at: int, name: str, data: bytes, *, overwrite: bool) -> None:
    temporary = f"{TEMP_PREFIX}{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        if overwrite or not _link(at, temporary, name):
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        else:
            os.unlink(temporary, dir_fd=at)
    except BaseException:
        _remove(at, temporary)
        raise


def _link(at: int, temporary: str, name: str) -> bool:
    """Take the name, which unlike renaming fails where a file has appeared meanwhile; False on file systems without
    links.
    """
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        return False
    return True


def _remove(at: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as exc:
        raise ConfigError(f"{path} appeared while it was written; nothing of it was replaced", kind="exists") from exc
    except NotADirectoryError as exc:
        raise StorageError(
            f"{path}: expected a folder, found a file or a link, which is not followed", kind="bad_path", shard=path
        ) from exc
    except OSError as exc:
        raise StorageError(f"{path}: cannot be written: {exc.strerror or exc}", shard=path) from exc
