"""Object stores through obstore: S3, Google Cloud Storage, Azure and web servers. The only module that imports obstore.

obstore's runtime does not survive ``fork``: in a forked child every operation goes to the fallback, which reads through
fsspec. The same fallback serves the few keys that obstore cannot name (empty folder names, ``.`` and ``..``), and lists
unfinished uploads and buckets whose readers pay.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from janus_shards.errors import (
    ConfigError,
    IntegrityError,
    JanusShardsError,
    ObjectNotFoundError,
    StorageError,
    TransientError,
)
from janus_shards.sample import RawBytes
from janus_shards.storage.base import ObjectMeta, Storage, StorageOptions, Upload
from janus_shards.storage.cloud_errors import store_error
from janus_shards.storage.credentials import find_keys

if TYPE_CHECKING:
    from obstore import GetOptions, ListStream, PutMode, WritableFile
    from obstore import ObjectMeta as StoreMeta
    from obstore.store import (
        AzureStore,
        ClientConfig,
        GCSStore,
        HTTPStore,
        RetryConfig,
        S3Config,
        S3Store,
    )

    Store: TypeAlias = S3Store | GCSStore | AzureStore | HTTPStore

_log = logging.getLogger(__name__)

# A read is one request up to this size, so that its deadline can be short enough to be worth having.
_PIECE_BYTES = 32 * 2**20
_SLOWEST_BYTES_PER_S = 256 * 2**10
_PART_BYTES = 8 * 2**20
_PARTS_IN_FLIGHT = 4
_SINGLE_PUT_BYTES = 64 * 2**20
_PAGE_OBJECTS = 1000
# Servers send pages of 1,000 keys or of another round number.
_ROUND_PAGE = 100

# Process in which obstore's runtime was started; in any other process that inherited it, obstore would hang.
_runtime_pid: int | None = None


class CloudStorage:
    """Objects of one bucket (or web server) under one prefix.

    Reads make one attempt; ``RetryingStorage`` repeats them. Writes and listings are repeated inside the client.

    Args:
        url: ``scheme://bucket/prefix``, the prefix byte for byte.
        options: Settings of the store.
        fallback: Opens the same root through another library.
    """

    is_local = False

    def __init__(self, url: str, options: StorageOptions, *, fallback: Callable[[], Storage]) -> None:
        scheme, _, rest = url.partition("://")
        self._scheme = scheme
        self._root = url.rstrip("/")
        self._bucket, _, self._prefix = rest.rstrip("/").partition("/")
        if not self._bucket:
            raise ConfigError(f"{url!r} names no {'host' if scheme.startswith('http') else 'bucket'}", kind="bad_url")
        self.url = _without_secrets(self._root) if scheme.startswith("http") else self._root
        self._options = options
        self._fallback = fallback
        self._clients: _Clients | None = None
        self._other: tuple[int, Storage] | None = None  # process, fallback

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_clients": None, "_other": None}

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag of an object."""
        if other := self._elsewhere(name):
            return other.head(name)
        with self._translated("reading the size of", name):
            return _meta(name, self._connect().reads.head(self._key(name)))

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)``, in one request up to 32 MiB."""
        if other := self._elsewhere(name):
            return other.read(name, start, stop, etag=etag)
        if stop is not None and stop - start <= _PIECE_BYTES:
            return self._read_piece(name, start, stop, etag)
        with self._translated("reading", name):
            meta = self._connect().reads.head(self._key(name))
        stop = meta["size"] if stop is None else stop
        pieces = (
            self._read_piece(name, at, min(at + _PIECE_BYTES, stop), etag or meta["e_tag"])
            for at in range(start, stop, _PIECE_BYTES)
        )
        return b"".join(pieces) if stop - start > _PIECE_BYTES else next(pieces, b"")

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object, a ranged read at a time."""
        meta = self.head(name)
        for start in range(0, meta.size, chunk_bytes):
            yield self.read(name, start, min(start + chunk_bytes, meta.size), etag=meta.etag)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects under a prefix, in name order."""
        if other := self._elsewhere(prefix):
            yield from other.list(prefix)
            return
        if self._scheme.startswith("http"):
            raise StorageError(f"{self.url}: a web server cannot be listed; name the objects", kind="no_listing")
        if self._options.requester_pays and self._scheme == "s3":
            # obstore says who pays when it reads an object, but not when it lists.
            yield from self._open_payer().list(prefix)
            return
        start, last = len(self._key("")), ""
        try:
            with self._translated("listing", prefix):
                for meta in self._list_keys(self._key(prefix)):
                    last = meta["path"][start:]
                    yield _meta(last, meta)
        except StorageError as exc:
            if exc.kind != "bad_path":
                raise
            # A key that obstore cannot name lies among the others.
            yield from (meta for meta in self._open_other().list(prefix) if meta.name.encode() > last.encode())

    def close(self) -> None:
        """Drop the connections; later calls open new ones."""
        if self._clients is not None and not self._clients.inherited:
            self._clients = None
        if self._other is not None:
            self._other[1].close()

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write an object with one conditional request."""
        if other := self._elsewhere(name):
            return other.put(name, data, if_absent=if_absent, if_match=if_match)
        mode: PutMode = "create" if if_absent else "overwrite"
        if if_match is not None:
            mode = {"e_tag": if_match}
        several = mode == "overwrite" and len(data) > _SINGLE_PUT_BYTES
        with self._translated("writing", name, writes=True):
            result = self._connect().writes.put(self._key(name), bytes(data), mode=mode, use_multipart=several)
        return ObjectMeta(name=name, size=len(data), etag=result["e_tag"], version=_version(result["version"]))

    def open_upload(self, name: str) -> Upload:
        """Begin a multipart upload that holds a few parts in memory."""
        if other := self._elsewhere(name):
            return other.open_upload(name)
        import obstore

        with self._translated("writing", name, writes=True):
            writer = obstore.open_writer(
                self._connect().writes, self._key(name), buffer_size=_PART_BYTES, max_concurrency=_PARTS_IN_FLIGHT
            )
        return _CloudUpload(self, name, writer)

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine."""
        if other := self._elsewhere(name):
            other.delete(name)
            return
        try:
            with self._translated("removing", name, writes=True):
                self._connect().writes.delete(self._key(name))
        except ObjectNotFoundError as exc:
            if exc.kind == "no_bucket":
                raise

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Unfinished multipart uploads under a prefix; needs s3fs, because obstore cannot list them."""
        other = self._open_lister(prefix)
        return other.stale_uploads(prefix) if other else []

    def abort_stale_uploads(self, prefix: str) -> int:
        """Abort unfinished multipart uploads under a prefix; needs s3fs, because obstore cannot list them."""
        other = self._open_lister(prefix)
        return other.abort_stale_uploads(prefix) if other else 0

    def _open_lister(self, prefix: str) -> Storage | None:
        if self._scheme != "s3":
            return None  # the other stores drop unfinished parts by themselves after some days
        try:
            return self._open_other()
        except ConfigError:
            _log.warning(
                "unfinished uploads under %s/%s cannot be listed without s3fs: pip install 'janus-shards[fsspec]', or "
                "let a lifecycle rule of the bucket remove them",
                self.url,
                prefix,
            )
            return None

    def _read_piece(self, name: str, start: int, stop: int, etag: str | None) -> RawBytes:
        if start == stop:
            return b""
        options: GetOptions = {"range": (start, stop)}
        # A weak ETag never matches in If-Match; it is compared below like every other.
        if etag is not None and not etag.startswith("W/"):
            options["if_match"] = etag
        doing = f"reading bytes {start}-{stop} of"
        with self._translated(doing, name):
            result = self._connect().reads.get(self._key(name), options=options)
            data = memoryview(result.bytes())
            found = result.meta
        if etag is not None and found["e_tag"] not in (etag, None):
            raise IntegrityError(
                f"{doing} {self._named(name)}: it changed, expected ETag {etag}, found {found['e_tag']}", shard=name
            )
        if len(data) != stop - start:
            message = f"{doing} {self._named(name)}: expected {stop - start} bytes, found {len(data)}"
            if found["size"] < stop:
                raise IntegrityError(f"{message}; the object has {found['size']}", kind="truncated_shard", shard=name)
            raise TransientError(message, shard=name)
        return data

    def _list_keys(self, full: str) -> "Iterator[StoreMeta]":
        """Objects whose key starts with a string; obstore itself lists whole folders."""
        folder, store, offset = full.rpartition("/")[0], self._connect().writes, None
        while True:
            count = 0
            stream: ListStream[Sequence[StoreMeta]] = store.list(
                folder or None, offset=offset, chunk_size=_PAGE_OBJECTS
            )
            for meta in (meta for page in stream for meta in page):
                count, offset = count + 1, meta["path"]
                if offset.startswith(full) and len(offset) > len(self._key("")):
                    yield meta
                elif offset.encode() > full.encode():
                    return
            # Some servers say "more follows" without a token to ask for it, which obstore takes for the end. So a list
            # that ends with what may be a whole page is asked to go on; at its real end that is one request too many.
            if count == 0 or count % _ROUND_PAGE:
                return

    def _key(self, name: str) -> str:
        # HTTPStore holds the path of its URL itself.
        prefix = "" if self._scheme.startswith("http") else self._prefix
        return f"{prefix}/{name}" if prefix else name

    def _named(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _elsewhere(self, name: str) -> Storage | None:
        """The fallback, where obstore cannot be used."""
        forked = _runtime_pid is not None and _runtime_pid != os.getpid()
        if not forked and _nameable(self._key(name)):
            return None
        try:
            return self._open_other()
        except ConfigError as exc:
            if forked:
                raise ConfigError(
                    f"{self.url}: the object-store client was used before this process forked and is of no use in it; "
                    "start workers with the spawn or forkserver method, or pip install 'janus-shards[fsspec]'",
                    kind="forked",
                ) from exc
            raise ConfigError(
                f"{self._named(name)}: keys with empty, '.' or '..' folder names are read through fsspec: "
                "pip install 'janus-shards[fsspec]'",
                kind="bad_path",
                shard=name,
            ) from exc

    def _open_payer(self) -> Storage:
        try:
            return self._open_other()
        except ConfigError as exc:
            raise ConfigError(
                f"{self.url}: a bucket whose readers pay is listed through fsspec: pip install 'janus-shards[fsspec]', "
                "or name the shards, as in part-{000..123}.tar",
                kind="no_listing",
            ) from exc

    def _open_other(self) -> Storage:
        if self._other is None or self._other[0] != os.getpid():
            self._other = os.getpid(), self._fallback()
        return self._other[1]

    def _connect(self) -> "_Clients":
        global _runtime_pid
        if self._clients is None:
            _runtime_pid = os.getpid()
            self._clients = _open_clients(self._scheme, self._root, self._bucket, self._options, os.environ)
        return self._clients

    @contextmanager
    def _translated(self, doing: str, name: str, *, writes: bool = False) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except JanusShardsError:
            raise
        except (BaseError, OSError, ValueError) as exc:
            error = store_error(exc, f"{doing} {self._named(name)}", self._bucket, writes=writes)
            error.shard = name or None
            # The text of the foreign error may quote a URL with its signature.
            raise error from (None if "?" in self._root else exc)


class _CloudUpload(Upload):
    def __init__(self, storage: CloudStorage, name: str, writer: "WritableFile") -> None:
        self._storage = storage
        self._name = name
        self._writer: WritableFile | None = writer
        self._size = 0

    def write(self, data: RawBytes) -> None:
        with self._aborting():
            self._size += self._open_writer().write(data)

    def finish(self) -> ObjectMeta:
        with self._aborting():
            self._open_writer().close()
        self._writer = None
        meta = self._storage.head(self._name)
        if meta.size != self._size:
            raise StorageError(
                f"writing {self._storage.url}/{self._name}: sent {self._size} bytes, the store has {meta.size}",
                shard=self._name,
            )
        return meta

    def abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                # Leaving its block by an exception is how obstore's writer is told to abort.
                with self._storage._translated("aborting the upload of", self._name, writes=True):
                    writer.__exit__(StorageError, StorageError("aborted"), None)
            except StorageError as exc:
                _log.warning("%s", exc)

    def _open_writer(self) -> "WritableFile":
        if self._writer is None:
            raise StorageError(f"upload of {self._name} is closed", kind="closed", shard=self._name)
        return self._writer

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        try:
            with self._storage._translated("writing", self._name, writes=True):
                yield
        except BaseException:
            self.abort()
            raise


@dataclass(frozen=True)
class _Clients:
    """Two clients of one store: reads fail fast and are repeated by us; writes and listings are repeated inside."""

    reads: "Store"
    writes: "Store"
    pid: int

    @property
    def inherited(self) -> bool:
        """Whether another process opened these; such clients are kept, since closing them may hang as well."""
        return self.pid != os.getpid()


def _open_clients(scheme: str, root: str, bucket: str, options: StorageOptions, env: Mapping[str, str]) -> _Clients:
    endpoint = _endpoint(options, env) or "https:" if scheme == "s3" else root
    build = (
        _s3_builder(bucket, options, env)
        if scheme == "s3"
        else functools.partial(_open_store, scheme, root, bucket, options.anonymous)
    )
    transfer = options.transfer
    reads: ClientConfig = {
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=min(5.0, transfer.stall_timeout_s)),
        "read_timeout": timedelta(seconds=transfer.stall_timeout_s),
        "timeout": timedelta(seconds=transfer.stall_timeout_s + _PIECE_BYTES / _SLOWEST_BYTES_PER_S),
    }
    if env.get("AWS_CA_BUNDLE") and not reads["allow_http"]:
        reads["root_certificate"] = _read_certificates(env["AWS_CA_BUNDLE"])
    # While a part is sent nothing is read, so a stall cannot be told from work; the deadline has to do.
    whole = timedelta(seconds=transfer.stall_timeout_s + _PARTS_IN_FLIGHT * _PART_BYTES / _SLOWEST_BYTES_PER_S)
    writes: ClientConfig = {**reads, "read_timeout": whole, "timeout": whole}
    retries: RetryConfig = {
        "max_retries": transfer.max_attempts - 1,
        "retry_timeout": timedelta(seconds=transfer.deadline_s),
        "backoff": {
            "init_backoff": timedelta(seconds=transfer.first_pause_s),
            "max_backoff": timedelta(seconds=transfer.max_pause_s),
            "base": 2,
        },
    }
    return _Clients(build(reads, {"max_retries": 0}), build(writes, retries), os.getpid())


def _read_certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as exc:
        raise ConfigError(f"AWS_CA_BUNDLE={path}: {exc.strerror}") from exc


def _open_store(
    scheme: str, root: str, bucket: str, anonymous: bool, client: "ClientConfig", retries: "RetryConfig"
) -> "Store":
    from obstore.store import AzureStore, GCSStore, HTTPStore

    if scheme == "gs":
        return GCSStore(bucket, skip_signature=anonymous, client_options=client, retry_config=retries)
    if scheme == "az":
        return AzureStore(bucket, skip_signature=anonymous, client_options=client, retry_config=retries)
    return HTTPStore(root, client_options=client, retry_config=retries)


def _s3_builder(
    bucket: str, options: StorageOptions, env: Mapping[str, str]
) -> "Callable[[ClientConfig, RetryConfig], Store]":
    from obstore.store import S3Store

    provider = find_keys(bucket, options, env)
    region = options.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    config: S3Config = {"region": region or getattr(provider, "region", None) or "us-east-1"}
    # Single deletes are understood by every server that speaks S3; bulk deletes are not.
    config["disable_bulk_delete"] = True
    endpoint = _endpoint(options, env)
    if endpoint is not None:
        # Under both names, since the second wins over the first even when it comes from the environment.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
        host = urlsplit(endpoint).hostname or ""
        config["virtual_hosted_style_request"] = host.startswith(f"{bucket}.")
    if options.anonymous:
        config["skip_signature"] = True
    if options.requester_pays:
        config["request_payer"] = True
    return lambda client, retries: S3Store(
        bucket, config=config, client_options=client, retry_config=retries, credential_provider=provider
    )


def _endpoint(options: StorageOptions, env: Mapping[str, str]) -> str | None:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    found = options.endpoint_url or next((env[name] for name in names if env.get(name)), None)
    return found.rstrip("/") if found else None


def _meta(name: str, meta: "StoreMeta") -> ObjectMeta:
    return ObjectMeta(name=name, size=meta["size"], etag=meta["e_tag"], version=_version(meta["version"]))


def _version(version: str | None) -> str | None:
    # What S3 calls the version of an object in a bucket without versions.
    return None if version == "null" else version


def _nameable(key: str) -> bool:
    """Whether obstore's paths can say this key (or prefix, which may end in a slash)."""
    segments = key.removesuffix("/").split("/")
    return key == "" or not ({"", ".", ".."} & set(segments) or any(ord(char) < 32 or ord(char) == 127 for char in key))


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/")
