"""Every other scheme through fsspec, and S3 through s3fs where obstore cannot go (forked children, keys it cannot
name).

The only module that imports fsspec, and late. Nothing here is fast: blocks are read one after the other, and an ETag
costs a request of its own, because fsspec has no conditional reads.
"""

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from janus_shards.errors import (
    AccessDeniedError,
    ConfigError,
    IntegrityError,
    JanusShardsError,
    ObjectNotFoundError,
    StorageError,
    TransientError,
)
from janus_shards.sample import RawBytes
from janus_shards.storage.base import TEMP_PREFIX, TEMP_SUFFIX, ObjectMeta, StorageOptions, Upload

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PART_BYTES = 8 * 2**20
_PASSING = (errno.EBUSY, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EIO)

_CONDITION_FAILED = ("PreconditionFailed", "412", "ConditionalRequestConflict")


def open_bridge(url: str, options: StorageOptions) -> "BridgeStorage":
    """The storage of a URL of any scheme that fsspec knows.

    Raises:
        ConfigError: fsspec, or the package it needs for this scheme, is not installed, or the scheme is unknown.
    """
    scheme = url.partition("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as exc:
        raise ConfigError(
            f"{scheme}:// URLs need fsspec and its package for the scheme: pip install 'janus-shards[fsspec]' ({exc})"
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"{url!r}: no storage is known for scheme {scheme!r}", kind="bad_url") from exc
    return BridgeStorage(url, options)


class BridgeStorage:
    """Objects under one root of an fsspec file system.

    Args:
        url: The root.
        options: Settings; ``options.fsspec`` goes to the file system as it is.
    """

    is_local = False

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url.partition("?")[0] if url.startswith(("http://", "https://")) else url
        self._root = url
        self._options = options
        self._opened: tuple[int, AbstractFileSystem, str] | None = None  # process, file system, its name for the root

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag; where a file system has none, a hash of what it tells about the file."""
        fs, path = self._locate(name)
        with self._translated("reading the size of", name):
            fs.invalidate_cache()
            entry = fs.info(path)
        if entry.get("type") == "directory":
            raise ObjectNotFoundError(f"{self._named(name)} is a folder", shard=name)
        return self._meta(name, entry)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)``."""
        if etag is not None and (found := self.head(name).etag) != etag:
            raise IntegrityError(f"{self._named(name)} changed: expected ETag {etag}, found {found}", shard=name)
        if stop is not None and start == stop:
            return b""
        fs, path = self._locate(name)
        doing = f"reading bytes {start}-{'end' if stop is None else stop} of"
        with self._translated(doing, name):
            data: bytes = fs.cat_file(path, start=start or None, end=stop)
        if stop is not None and len(data) != stop - start:
            message = f"{doing} {self._named(name)}: found {len(data)} bytes"
            if self.head(name).size < stop:
                raise IntegrityError(f"{message}, the object ends there", kind="truncated_shard", shard=name)
            raise TransientError(message, shard=name)
        return data

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object, a ranged read at a time."""
        meta = self.head(name)
        for start in range(0, meta.size, chunk_bytes):
            yield self.read(name, start, min(start + chunk_bytes, meta.size))

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects under a prefix, in name order."""
        folder = prefix.rpartition("/")[0]
        fs, path = self._locate(folder)
        _, root = self._locate("")
        with self._translated("listing", folder):
            fs.invalidate_cache()
            found = self._find(fs, path)
        names = {each[len(root) :].removeprefix("/"): entry for each, entry in found.items() if each != root}
        for name in sorted(names, key=str.encode):
            if name.startswith(prefix) and not name.rpartition("/")[2].startswith(TEMP_PREFIX):
                yield self._meta(name, names[name])

    def _find(self, fs: "AbstractFileSystem", path: str) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = fs.find(path, detail=True)
        except KeyError as exc:
            # botocore looks for the token that a server which says "more follows" should have sent.
            if exc.args != ("NextContinuationToken",):
                raise
            raise StorageError(
                f"{self.url}: the server says that more objects follow, but not how to ask for them; name the objects, "
                "as in part-{000..123}.tar",
                kind="incomplete_listing",
            ) from exc
        return found

    def close(self) -> None:
        """Let go of the file system."""
        self._opened = None

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write an object. Conditions hold atomically where the file system has them: both on S3, ``if_absent`` on some
        others.
        """
        if if_match is not None:
            self._require(name, if_match)
        fs, path = self._locate(name)
        with self._translated("writing", name, writes=True):
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            condition = {"IfMatch": if_match} if if_match is not None and self._is_s3(fs) else {}
            fs.pipe_file(path, bytes(data), mode="create" if if_absent else "overwrite", **condition)
        return self.head(name)

    def open_upload(self, name: str) -> Upload:
        """Begin an object: a multipart upload on S3, elsewhere a temporary object that is renamed."""
        fs, path = self._locate(name)
        with self._translated("writing", name, writes=True):
            if self._is_s3(fs):
                return _S3Upload(self, name, fs, path)
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return _RenamedUpload(self, name, fs, path)

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine."""
        fs, path = self._locate(name)
        try:
            with self._translated("removing", name, writes=True):
                fs.rm_file(path)
        except ObjectNotFoundError:
            pass

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Unfinished multipart uploads (S3), or temporary objects, under a prefix."""
        fs, path = self._locate(prefix)
        with self._translated("looking for unfinished uploads in", prefix, writes=False):
            paths = [each["Key"] for each in _s3_uploads(fs, path)] if self._is_s3(fs) else _temporaries(fs, path)
        root = self._locate("")[1]
        return sorted(each.removeprefix(f"{root.partition('/')[2] if self._is_s3(fs) else root}/") for each in paths)

    def abort_stale_uploads(self, prefix: str) -> int:
        """Abort unfinished multipart uploads (S3), or remove temporary objects, under a prefix."""
        fs, path = self._locate(prefix)
        with self._translated("looking for unfinished uploads in", prefix, writes=True):
            return _abort_s3_uploads(fs, path) if self._is_s3(fs) else _remove_temporaries(fs, path)

    def _require(self, name: str, etag: str) -> None:
        try:
            found = self.head(name).etag
        except ObjectNotFoundError:
            found = None
        if found != etag:
            raise StorageError(
                f"writing {self._named(name)}: it is not at ETag {etag} any more", kind="conflict", shard=name
            )

    def _locate(self, name: str) -> "tuple[AbstractFileSystem, str]":
        # fsspec's event loop belongs to one process, so a forked child opens a file system of its own.
        if self._opened is None or self._opened[0] != os.getpid():
            fs, root = _open_file_system(self._root, self._options)
            self._opened = os.getpid(), fs, root
        _, fs, root = self._opened
        if root.startswith(("http://", "https://")):
            path, mark, query = root.partition("?")
            return fs, f"{path}/{quote(name)}{mark}{query}" if name else root
        return fs, f"{root}/{name}" if name else root

    def _is_s3(self, fs: "AbstractFileSystem") -> bool:
        return "s3" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))

    def _meta(self, name: str, entry: Mapping[str, Any]) -> ObjectMeta:
        from fsspec.utils import tokenize

        etag = entry.get("ETag") or entry.get("etag") or tokenize(dict(entry))
        return ObjectMeta(name=name, size=int(entry["size"] or 0), etag=str(etag), version=entry.get("VersionId"))

    def _named(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    @contextmanager
    def _translated(self, doing: str, name: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except JanusShardsError:
            raise
        except _foreign_errors() as exc:
            error = _translate(exc, f"{doing} {self._named(name)}", writes=writes)
            error.shard = name or None
            raise error from (None if "?" in self._root else exc)


class _BridgeUpload(Upload):
    """What both ways of uploading share; subclasses say how the bytes become visible or vanish."""

    def __init__(self, storage: BridgeStorage, name: str, fs: "AbstractFileSystem", path: str) -> None:
        self._storage = storage
        self._name = name
        self._fs = fs
        self._path = path
        self._file = self._open()
        self._open_still = True

    def write(self, data: RawBytes) -> None:
        with self._aborting():
            self._file.write(data)

    def finish(self) -> ObjectMeta:
        with self._aborting():
            self._file.close()
            self._publish()
        self._open_still = False
        return self._storage.head(self._name)

    def abort(self) -> None:
        if self._open_still:
            self._open_still = False
            with self._storage._translated("aborting the upload of", self._name, writes=True):
                self._discard()

    def _open(self) -> Any:
        raise NotImplementedError

    def _publish(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        if not self._open_still:
            raise StorageError(f"upload of {self._name} is closed", kind="closed", shard=self._name)
        try:
            with self._storage._translated("writing", self._name, writes=True):
                yield
        except BaseException:
            self.abort()
            raise


class _S3Upload(_BridgeUpload):
    def _open(self) -> Any:
        return self._fs.open(self._path, "wb", autocommit=False, block_size=_PART_BYTES)

    def _publish(self) -> None:
        self._file.commit()

    def _discard(self) -> None:
        self._file.discard()
        # Its destructor would otherwise write what is still buffered.
        self._file.closed = True


class _RenamedUpload(_BridgeUpload):
    def _open(self) -> Any:
        folder, _, base = self._path.rpartition("/")
        self._temp = f"{folder}/{TEMP_PREFIX}{os.urandom(4).hex()}-{base}{TEMP_SUFFIX}"
        return self._fs.open(self._temp, "wb")

    def _publish(self) -> None:
        if self._fs.exists(self._path):
            self._fs.rm_file(self._path)
        self._fs.mv(self._temp, self._path)

    def _discard(self) -> None:
        self._file.close()
        self._fs.rm_file(self._temp)


def _open_file_system(url: str, options: StorageOptions) -> "tuple[AbstractFileSystem, str]":
    from fsspec.core import url_to_fs

    settings = {**_s3_settings(options), **options.fsspec} if url.startswith("s3://") else dict(options.fsspec)
    fs, root = url_to_fs(url, **settings)
    return fs, root.rstrip("/")


def _s3_settings(options: StorageOptions) -> dict[str, object]:
    keys = options.credentials
    settings: dict[str, object] = {
        "anon": options.anonymous,
        "requester_pays": options.requester_pays,
        "use_listings_cache": False,
        "config_kwargs": {"read_timeout": options.transfer.stall_timeout_s, "connect_timeout": 5},
    }
    if options.endpoint_url is not None:
        settings["endpoint_url"] = options.endpoint_url
    if options.region is not None:
        settings["client_kwargs"] = {"region_name": options.region}
    if options.profile is not None:
        settings["profile"] = options.profile
    if keys is not None and not keys.withheld:
        settings |= {"key": keys.access_key_id, "secret": keys.secret_access_key, "token": keys.session_token}
    return settings


def _s3_uploads(fs: "AbstractFileSystem", path: str) -> list[dict[str, str]]:
    bucket, _, prefix = path.partition("/")
    return [each for each in fs.list_multipart_uploads(bucket) if each["Key"].startswith(prefix)]


def _abort_s3_uploads(fs: "AbstractFileSystem", path: str) -> int:
    bucket, uploads = path.partition("/")[0], _s3_uploads(fs, path)
    for each in uploads:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])
    return len(uploads)


def _temporaries(fs: "AbstractFileSystem", path: str) -> list[str]:
    folder, _, start = path.rpartition("/")
    bases = ((each, each.rpartition("/")[2]) for each in fs.find(folder, maxdepth=1))
    return [
        each for each, base in bases if base.startswith(TEMP_PREFIX) and base[len(TEMP_PREFIX) + 9 :].startswith(start)
    ]


def _remove_temporaries(fs: "AbstractFileSystem", path: str) -> int:
    found = _temporaries(fs, path)
    for each in found:
        fs.rm_file(each)
    return len(found)


def _foreign_errors() -> tuple[type[Exception], ...]:
    """What fsspec's file systems raise; the clients behind them are loaded by then, or not at all."""
    kinds: list[type[Exception]] = [OSError, TimeoutError, ValueError, NotImplementedError]
    for module, names in (("botocore.exceptions", ("BotoCoreError", "ClientError")), ("aiohttp", ("ClientError",))):
        if module in sys.modules:
            kinds += [getattr(sys.modules[module], name) for name in names]
    return tuple(kinds)


def _translate(exc: Exception, doing: str, *, writes: bool) -> StorageError:
    reason = type(exc).__name__
    number = exc.errno if isinstance(exc, OSError) else None
    if isinstance(exc, FileNotFoundError):
        return ObjectNotFoundError(f"{doing}: it does not exist")
    if reason in ("NoCredentialsError", "PartialCredentialsError"):
        return AccessDeniedError(
            f"{doing}: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use --anonymous",
            kind="no_credentials",
        )
    if isinstance(exc, PermissionError):
        return AccessDeniedError(f"{doing}: the store refused; check the keys, or use --anonymous for public buckets")
    if _code(exc) in ("InvalidRange", "416"):
        return IntegrityError(f"{doing}: the object ends before that", kind="truncated_shard")
    if writes and (isinstance(exc, FileExistsError) or _code(exc) in _CONDITION_FAILED):
        return StorageError(f"{doing}: somebody else wrote it meanwhile", kind="conflict")
    if isinstance(exc, TimeoutError | ConnectionError) or number in _PASSING or reason.startswith(("Client", "Server")):
        return TransientError(f"{doing}: the transfer failed ({reason})")
    if isinstance(exc, NotImplementedError):
        return StorageError(f"{doing}: this file system cannot do that", kind="unsupported")
    return StorageError(f"{doing}: the file system failed ({reason})")


def _code(exc: Exception) -> str:
    """Code that the store gave; s3fs turns several into an invalid argument and keeps the answer as the cause."""
    response = getattr(exc.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
