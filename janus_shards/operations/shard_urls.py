"""Which tars a user means, the folder that they share, and their names under it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import unquote

from janus_shards.errors import ConfigError, ObjectNotFoundError
from janus_shards.format.naming import check_relative
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.urls import expand_urls, open_storage, split_url

_WEB = ("http://", "https://")


@dataclass(frozen=True, kw_only=True)
class ShardSet:
    """Tars under one root.

    Attributes:
        root: Longest folder that all of them share; for web servers with the query string that they share, which may be
            a signature.
        names: Their names under that root, in the order given.
    """

    root: str
    names: Sequence[str]


def find_shards(patterns: str | Sequence[str], options: StorageOptions) -> ShardSet:
    """The tars that brace patterns, globs, folders and single URLs stand for.

    Raises:
        ConfigError: A pattern matches nothing (``empty_dataset``), a tar is named twice, or the tars share no root.
    """
    found = common_root([url for found in expand_urls(patterns, options) for url in _inside(found, options)])
    given = [patterns] if isinstance(patterns, str) else patterns
    if any("{" in pattern for pattern in given) and not found.root.startswith(_WEB):
        _check_some_exist(found, given, options)
    return found


def _check_some_exist(found: ShardSet, patterns: Sequence[str], options: StorageOptions) -> None:
    """Refuse names counted by braces of which none exists, before anything that is there is replaced."""
    storage = open_storage(found.root, options)
    with suppress(ObjectNotFoundError):
        storage.head(found.names[0])
        return
    names = set(found.names)
    with suppress(ObjectNotFoundError):
        shared = os.path.commonprefix(found.names)  # noqa: RUF071  listings take any start of a name
        if any(meta.name in names for meta in storage.list(shared)):
            return
    raise ConfigError(
        f"{', '.join(patterns)} matches nothing: there is none of the {len(names)} shards under {storage.url}",
        kind="empty_dataset",
    )


def _inside(url: str, options: StorageOptions) -> Iterator[str]:
    """The tars of a folder in name order; the URL itself where it is no folder."""
    if url.endswith(".tar") or url.startswith(_WEB):
        yield url
        return
    folder = url.rstrip("/") or "/"
    try:
        found = [meta.name for meta in open_storage(folder, options).list() if meta.name.endswith(".tar")]
    except ObjectNotFoundError:
        found = []
    if found:
        yield from (os.path.join(folder, name) for name in found)
    elif url.endswith("/") or os.path.isdir(url):
        raise ConfigError(f"{url}: found no .tar file in this folder", kind="empty_dataset")
    else:
        yield url


def common_root(urls: Sequence[str]) -> ShardSet:
    """Longest shared folder of some objects, and their names under it.

    Raises:
        ConfigError: The URLs are of different stores or carry different query strings, or one comes twice.
    """
    folders, queries, bases = zip(*(_split(url) for url in urls), strict=True)
    shared = _common_start(folders)
    # "s3:", "" and the bucket are three components; a local path starts with an empty one.
    if len(shared) < (3 if "://" in urls[0] else 1):
        raise ConfigError(f"{urls[0]} and others share no root: index the shards of each store or bucket apart")
    if len(set(queries)) > 1:
        raise ConfigError(
            f"{_shown(urls[0])} and others carry different query strings, as presigned URLs do; give URLs that one "
            "signature or none opens"
        )
    names = [
        "/".join([*_decoded(folder[len(shared) :], urls[0]), base]) for folder, base in zip(folders, bases, strict=True)
    ]
    _check_names(names, urls)
    root = "/".join(shared) or "/"
    return ShardSet(root=f"{root}?{queries[0]}" if queries[0] else root, names=names)


def _common_start(folders: Sequence[tuple[str, ...]]) -> list[str]:
    first, last = min(folders), max(folders)
    # All others sort between these two, and so start like both.
    return [part for part, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]


def _split(url: str) -> tuple[tuple[str, ...], str, str]:
    """Folder in components, query string, and base name."""
    root, base = split_url(url)
    folder, _, query = root.partition("?") if url.startswith(_WEB) else (root, "", "")
    if "://" not in folder:
        folder = os.path.abspath(folder).rstrip("/")
    return tuple(folder.split("/")), query, base


def _decoded(parts: Sequence[str], url: str) -> list[str]:
    return [unquote(part) for part in parts] if url.startswith(_WEB) else list(parts)


def _check_names(names: Sequence[str], urls: Sequence[str]) -> None:
    seen: set[str] = set()
    for name, url in zip(names, urls, strict=True):
        if not check_relative(name):
            raise ConfigError(f"{_shown(url)}: expected a path without empty, '.' and '..' components", kind="bad_path")
        if name in seen:
            raise ConfigError(f"{_shown(url)} is named twice; name each shard once")
        seen.add(name)


def _shown(url: str) -> str:
    return url.partition("?")[0] if url.startswith(_WEB) else url
