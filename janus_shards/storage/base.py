"""The storage protocols, their records and their options. No backend and no I/O here.

Names are relative to the root of a storage, with ``/`` between folders: ``train-000000.tar``, ``sub/x.idx``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.context import get_spawning_popen
from types import TracebackType, UnionType
from typing import Protocol, Self, TypeVar

from janus_shards.errors import ConfigError
from janus_shards.sample import RawBytes

_T = TypeVar("_T")

#: Temporary objects of ours start with this; they are never listed, and ``abort_stale_uploads`` removes them.
TEMP_PREFIX = ".janus-tmp-"
#: And they end with this, so that no pattern such as ``*.tar`` takes a half-written shard for one.
TEMP_SUFFIX = ".part"


@dataclass(frozen=True, kw_only=True)
class ObjectMeta:
    """What a store knows about one object.

    Attributes:
        name: Name relative to the root of the storage.
        size: Length in bytes.
        etag: Changes whenever the bytes change; ``None`` where a store has no such thing.
        version: Version id, where the store keeps versions.
    """

    name: str
    size: int
    etag: str | None
    version: str | None = None


class ReadStorage(Protocol):
    """Objects under one root, for reading.

    Attributes:
        url: The root for messages: no credentials, no query string.
        is_local: Reads are as cheap as the page cache, so nothing gains from reading ahead in large pieces.

    Every method raises ``ObjectNotFoundError``, ``AccessDeniedError``, ``TransientError`` or another ``StorageError``.
    """

    url: str
    is_local: bool

    def head(self, name: str) -> ObjectMeta:
        """Size and ETag of an object, without its bytes."""
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> RawBytes:
        """Exactly the bytes ``[start, stop)`` of an object; to its end without ``stop``.

        Args:
            name: The object.
            start: First byte.
            stop: First byte behind the range.
            etag: ETag the object must still have.

        Raises:
            IntegrityError: The object is another one than ``etag`` says (``shard_changed``), or has fewer bytes than
                asked for (``truncated_shard``). Short reads are never returned.
        """
        ...

    def stream(self, name: str, *, chunk_bytes: int = 4 * 2**20) -> Iterator[RawBytes]:
        """The whole object in order, in pieces of at most ``chunk_bytes``, holding a bounded number of them."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects whose name starts with ``prefix``, in the order of their UTF-8 names."""
        ...

    def close(self) -> None:
        """Release files and connections; reading afterwards opens them again."""
        ...


class Upload(Protocol):
    """One object being written; nothing is visible under its name before ``finish``.

    As a context manager it aborts when the block is left without ``finish``, by an exception or otherwise.
    """

    def write(self, data: RawBytes) -> None:
        """Append bytes; holds only a bounded part of them in memory."""
        ...

    def finish(self) -> ObjectMeta:
        """Make the object visible under its name, replacing what was there."""
        ...

    def abort(self) -> None:
        """Drop everything written. Does nothing after ``finish`` or a first ``abort``."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()


class WriteStorage(Protocol):
    """Objects under one root, for writing."""

    url: str

    def put(self, name: str, data: RawBytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectMeta:
        """Write a small object whole or not at all.

        Args:
            name: The object.
            data: Its bytes.
            if_absent: Refuse when the name is taken.
            if_match: Refuse unless the object has this ETag.

        Raises:
            StorageError: A condition does not hold (``conflict``), or the store failed.
        """
        ...

    def open_upload(self, name: str) -> Upload:
        """Begin an object of any size."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine."""
        ...

    def stale_uploads(self, prefix: str) -> Sequence[str]:
        """Names of what ``abort_stale_uploads`` would remove."""
        ...

    def abort_stale_uploads(self, prefix: str) -> int:
        """Remove what writers that died left unfinished under this prefix; returns how many were removed.

        Local uploads that another process is still writing are kept. A store cannot tell those apart: call this
        only while nobody else writes under the prefix.
        """
        ...


class Storage(ReadStorage, WriteStorage, Protocol):
    """Reading and writing of one root."""


@dataclass(frozen=True)
class Credentials:
    """Keys given in the program. They show in no ``repr`` and in no pickle: a copy knows only that keys were withheld.

    The one exception is a process that ``multiprocessing`` starts: its arguments go through a pipe of its own, and no
    further, so that a ``DataLoader`` with spawned workers reads with the keys of its parent.
    """

    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ConfigError(
                "storage credentials: access_key_id and secret_access_key are given together or not at all"
            )

    @property
    def withheld(self) -> bool:
        """Whether these are what is left of credentials after a trip to another process."""
        return not self.access_key_id

    def __reduce__(self) -> tuple[type[Self], tuple[str | None, ...]]:
        keys = (self.access_key_id, self.secret_access_key, self.session_token)
        return type(self), keys if _goes_to_own_child() else ()


def _goes_to_own_child() -> bool:
    """Whether this thread is pickling the arguments of a process that it starts."""
    return get_spawning_popen() is not None


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How long to wait and how often to try.

    Attributes:
        max_attempts: Tries of one read or write, the first one included.
        stall_timeout_s: Seconds without a byte after which a transfer counts as dead.
        deadline_s: Seconds after which no further try is started.
        first_pause_s: Pause before the second try; it doubles from try to try, less a random part.
        max_pause_s: Longest pause.
    """

    max_attempts: int = 6
    stall_timeout_s: float = 20.0
    deadline_s: float = 180.0
    first_pause_s: float = 0.1
    max_pause_s: float = 15.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts={self.max_attempts}: expected at least 1 try")
        for name in ("stall_timeout_s", "deadline_s", "first_pause_s", "max_pause_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: expected a number of seconds above 0")


# What other libraries call the same settings.
_ALIASES = {
    "key": "access_key_id",
    "aws_access_key_id": "access_key_id",
    "access_key": "access_key_id",
    "secret": "secret_access_key",
    "aws_secret_access_key": "secret_access_key",
    "secret_key": "secret_access_key",
    "token": "session_token",
    "aws_session_token": "session_token",
    "anon": "anonymous",
    "endpoint": "endpoint_url",
}
# Values that are no text.
_NUMBER = (int | float, "a number")
_SWITCH = (bool, "true or false")
_EXPECTED: dict[str, tuple[UnionType | type, str]] = {
    "anonymous": _SWITCH,
    "requester_pays": _SWITCH,
    "max_attempts": (int, "an integer"),
    "stall_timeout_s": _NUMBER,
    "deadline_s": _NUMBER,
    "first_pause_s": _NUMBER,
    "max_pause_s": _NUMBER,
    "fsspec": (Mapping, "a mapping"),
    "credentials": (Credentials, "Credentials"),
    "transfer": (TransferOptions, "TransferOptions"),
}


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Settings of a store. What is not given here comes from the usual AWS variables, which the store's client reads
    itself.

    Attributes:
        endpoint_url: Own S3 endpoint; addressed as ``endpoint/bucket/key`` unless its host starts with the bucket's
            name.
        region: Region of the bucket.
        profile: AWS profile; needs boto3 (extra ``aws``).
        anonymous: Send unsigned requests, for public buckets.
        requester_pays: Accept the cost of requests.
        credentials: Keys given in the program.
        transfer: Timeouts and tries.
        fsspec: Further settings for the schemes that go through fsspec, handed to its file system.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    credentials: Credentials | None = None
    transfer: TransferOptions = TransferOptions()
    fsspec: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if self.anonymous and (self.credentials is not None or self.profile is not None):
            raise ConfigError("storage options: anonymous goes with neither credentials nor a profile")
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint_url={self.endpoint_url!r}: expected http://host:port or https://host")

    def __getstate__(self) -> dict[str, object]:
        # The fsspec settings may hold tokens, so they stay behind like the credentials.
        state = {f.name: getattr(self, f.name) for f in fields(self)}
        return state if _goes_to_own_child() else {**state, "fsspec": {}}

    @classmethod
    def from_mapping(cls, values: Mapping[str, object] | None) -> Self:
        """Options from a flat mapping, as a user writes ``storage_options={...}``.

        Args:
            values: Names of the attributes above, of ``TransferOptions`` and of ``Credentials``; the names of boto3 and
                s3fs for the same things are understood.

        Raises:
            ConfigError: A name is unknown, or a value is out of range.
        """
        given = {_ALIASES.get(name, name): value for name, value in (values or {}).items()}
        groups: dict[type, dict[str, object]] = {Credentials: {}, TransferOptions: {}, cls: {}}
        for name, value in given.items():
            owner = next((group for group in groups if name in {f.name for f in fields(group)}), None)
            if owner is None or name == "transfer":
                raise ConfigError(f"storage option {name!r} is not known; known are {', '.join(_known_names())}")
            groups[owner][name] = value
        options = groups[cls]
        if groups[Credentials]:
            options["credentials"] = _build(Credentials, groups[Credentials])
        if groups[TransferOptions]:
            options["transfer"] = _build(TransferOptions, groups[TransferOptions])
        return _build(cls, options)


def _build(build: Callable[..., _T], values: dict[str, object]) -> _T:
    for name, value in values.items():
        expected, described = _EXPECTED.get(name, (str | None, "text"))
        if not isinstance(value, expected):
            raise ConfigError(f"storage option {name}: expected {described}, found {type(value).__name__}")
    return build(**values)


def _known_names() -> list[str]:
    groups = (StorageOptions, Credentials, TransferOptions)
    return sorted({f.name for group in groups for f in fields(group)} - {"transfer"})
