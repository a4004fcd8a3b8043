"""What a URL or pattern means, and which backend opens it.

An ``s3`` (``gs``, ``az``) URL is scheme, bucket and key, byte for byte to the end of the string: it is not
percent-decoded, and ``#``, ``?`` and ``;`` mean nothing in it. ``http(s)`` and ``file`` URLs follow RFC 3986: names are
percent-decoded, and a query string belongs to the root (it may be a signature, so it never reaches names or messages).
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from janus_shards.errors import ConfigError, ObjectNotFoundError
from janus_shards.storage.base import Storage, StorageOptions
from janus_shards.storage.local import LocalStorage
from janus_shards.storage.retry import RetryingStorage

if TYPE_CHECKING:
    from janus_shards.storage.base import ReadStorage

#: A pattern that stands for more objects than this is taken for a mistake.
MAX_EXPANSION = 1_000_000

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_CLOUD = ("s3", "gs", "az", "http", "https")
_DIRECT_URL = re.compile(r"(?:s3|gs|az|hf|https?)://[^\s'\"|]+")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?", re.ASCII)
# Not the colons of the address http://[::1]:9000.
_JOIN = re.compile(r"(?<!\[)::")
_GROUP = re.compile(r"\{([^{}]*)\}")


def open_storage(url: str, options: StorageOptions | None = None) -> Storage:
    """The storage of everything under a root URL or folder. Touches neither network nor disk.

    Args:
        url: Folder, ``file://``, ``s3://bucket/prefix``, ``gs://``, ``az://``, ``http(s)://``, or a URL of any scheme
            fsspec knows.
        options: Settings of the store.

    Raises:
        ConfigError: The URL is no storage, or its scheme needs an extra that is not installed.
    """
    options = options or StorageOptions()
    scheme, rest = _split_scheme(url)
    if scheme == "file":
        return LocalStorage(rest)
    if scheme not in _CLOUD:
        return RetryingStorage(_open_bridge(url.rstrip("/") if rest.strip("/") else url, options), options.transfer)
    return _open_cloud(f"{scheme}://{rest}", options)


def split_url(url: str) -> tuple[str, str]:
    """Root and name of the object a URL or path points at: ``s3://bucket/a/b.tar`` is ``b.tar`` of ``s3://bucket/a``.

    Raises:
        ConfigError: The URL names no object.
    """
    scheme, rest = _split_scheme(url)
    if scheme in ("http", "https"):
        return _split_http(url)
    # A root never ends in a slash, so that users may write one: empty folder names stay with the name.
    match = re.fullmatch(r"(.*[^/])/(/*[^/]+)", rest, re.DOTALL)
    if scheme == "file":
        folder, slash, name = rest.rpartition("/")
        if not name:
            raise ConfigError(f"{url!r} names a folder, not an object")
        return (folder or "/") if slash else ".", name
    if match is None:
        raise ConfigError(f"{url!r} names no object: expected {scheme}://bucket/name")
    return f"{scheme}://{match[1]}", match[2]


def expand_pattern(pattern: str, *, limit: int = MAX_EXPANSION) -> list[str]:
    """The URLs that a brace pattern stands for, in order; ``::`` joins lists.

    ``{000..123}`` counts with leading zeros, up or down, ``{a,b}`` lists. The number is known before anything is
    expanded.

    Raises:
        ConfigError: Braces that say neither (``bad_pattern``), or more than ``limit`` URLs (``pattern_too_large``).
    """
    _refuse_command(pattern)
    parts = [_parse_braces(part, pattern) for part in _JOIN.split(pattern)]
    count = sum(math.prod(map(_count, part)) for part in parts)
    if count > limit:
        raise ConfigError(
            f"pattern {pattern!r} stands for {count} objects, more than {limit}; use a narrower one",
            kind="pattern_too_large",
        )
    return ["".join(choice) for part in parts for choice in itertools.product(*part)]


def expand_urls(patterns: str | Sequence[str], options: StorageOptions | None = None) -> list[str]:
    """The URLs that patterns stand for; ``*`` matches inside one folder name and is expanded by listing, in name order.

    Raises:
        ConfigError: A pattern is malformed or too large, or a ``*`` matches nothing (``empty_dataset``).
    """
    urls = [
        url for pattern in ([patterns] if isinstance(patterns, str) else patterns) for url in expand_pattern(pattern)
    ]
    return [found for url in urls for found in (_list_matching(url, options) if "*" in url else [url])]


def _open_cloud(url: str, options: StorageOptions) -> Storage:
    # Late: obstore is loaded by whoever needs a store, not by `import janus_shards`.
    from janus_shards.storage.cloud import CloudStorage

    return RetryingStorage(CloudStorage(url, options, fallback=partial(_open_bridge, url, options)), options.transfer)


def _open_bridge(url: str, options: StorageOptions) -> Storage:
    from janus_shards.storage.bridge import open_bridge

    return open_bridge(url, options)


def _list_matching(url: str, options: StorageOptions | None) -> list[str]:
    head, _, _ = url.partition("*")
    if url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{url!r}: a web server cannot be listed; write the names as {{000..123}}", kind="bad_pattern"
        )
    root, slash, _ = head.rpartition("/")
    if root.endswith((":/", ":")):
        raise ConfigError(f"{url!r}: a '*' cannot stand for a bucket", kind="bad_pattern")
    root = root if slash else "."
    rest = url[len(head.rpartition("/")[0]) + 1 :] if slash else url
    matches = re.compile("[^/]*".join(re.escape(piece) for piece in rest.split("*")), re.DOTALL).fullmatch
    storage: ReadStorage = open_storage(root or "/", options)
    try:
        found = [
            f"{root}/{meta.name}" if slash else meta.name
            for meta in storage.list(rest.partition("*")[0])
            if matches(meta.name)
        ]
    except ObjectNotFoundError as exc:
        raise ConfigError(f"{url!r} matches nothing: {exc}", kind="empty_dataset") from exc
    finally:
        storage.close()
    if not found:
        raise ConfigError(f"{url!r} matches nothing in {storage.url}", kind="empty_dataset")
    return found


def _split_scheme(url: str) -> tuple[str, str]:
    """Scheme in lower case and what follows; a path without a scheme is a ``file``."""
    _refuse_command(url)
    match = _SCHEME.match(url)
    if match is None:
        if not url:
            raise ConfigError("an empty string is no URL or path", kind="bad_url")
        return "file", url
    scheme, rest = match[1].lower(), url[match.end() :]
    scheme = _ALIASES.get(scheme, scheme)
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise ConfigError(f"{url!r}: expected file:///path", kind="bad_url")
        return scheme, unquote("/" + path)
    return scheme, rest


def _refuse_command(url: str) -> None:
    if url.startswith("pipe:"):
        direct = _DIRECT_URL.search(url)
        hint = f"give the URL itself: {_without_query(direct[0])}" if direct else "give the URL of the object itself"
        raise ConfigError(f"{url.partition(' ')[0]} …: commands are not run to read data; {hint}", kind="bad_url")


def _split_http(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name or not parts.netloc:
        raise ConfigError(f"{_without_query(url)!r} names no object", kind="bad_url")
    if "%2f" in name.lower():
        raise ConfigError(f"{_without_query(url)!r}: an encoded slash in a name is not supported", kind="bad_path")
    return urlunsplit((parts.scheme.lower(), parts.netloc, folder, parts.query, "")), unquote(name)


def _without_query(url: str) -> str:
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The names of ``{first..last..step}``, not expanded."""

    first: int
    last: int
    step: int
    width: int

    @property
    def count(self) -> int:
        return abs(self.last - self.first) // self.step + 1

    def __iter__(self) -> Iterator[str]:
        sign = 1 if self.first <= self.last else -1
        return (f"{number:0{self.width}d}" for number in range(self.first, self.last + sign, sign * self.step))


def _count(choices: "Sequence[str] | _Counted") -> int:
    return choices.count if isinstance(choices, _Counted) else len(choices)


def _parse_braces(part: str, pattern: str) -> "list[Sequence[str] | _Counted]":
    """The choices at each place of a pattern, literal text being a single choice."""
    places: list[Sequence[str] | _Counted] = []
    position = 0
    for group in _GROUP.finditer(part):
        places += [(part[position : group.start()],), _choices(group[1], pattern)]
        position = group.end()
    places.append((part[position:],))
    if set("{}") & set(_GROUP.sub("", part)):
        raise ConfigError(f"pattern {pattern!r}: a brace is not closed, not opened or nested", kind="bad_pattern")
    return places


def _choices(text: str, pattern: str) -> "Sequence[str] | _Counted":
    bounds = _RANGE.fullmatch(text)
    if bounds:
        first, last, step = int(bounds[1]), int(bounds[2]), abs(int(bounds[3] or 1)) or 1
        # As in a shell: a leading zero on either side pads both to the longer one.
        padded = any(re.match(r"-?0\d", bound) for bound in bounds.groups()[:2])
        width = max(len(bounds[1]), len(bounds[2])) if padded else 0
        return _Counted(first=first, last=last, step=step, width=width)
    if "," in text:
        return text.split(",")
    raise ConfigError(f"pattern {pattern!r}: '{{{text}}}' is neither {{000..123}} nor {{a,b}}", kind="bad_pattern")
