"""How member paths become keys and fields, and how shards and their indexes are called.

The sample rule is webdataset's: the key is the path up to the first dot of its last component, the field is the rest
in lower case.
"""

import re

from janus_shards.errors import ConfigError

MANIFEST_NAME = "manifest.msgpack"

_SHARD_SUFFIX = ".tar"
_INDEX_SUFFIX = ".idx"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_=-]*")

# PATH_MAX and NAME_MAX of Linux: what is longer could be written but never be unpacked.
_MAX_KEY_BYTES = 4096
_MAX_FIELD_BYTES = 255

_IMAGES = {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "ppm", "pgm", "pbm", "jp2"}
_SOUND_AND_FILM = {"wav", "mp3", "flac", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov"}
_TENSORS_AND_ARCHIVES = {"npy", "npz", "pth", "pt", "pyd", "pkl", "bin", "safetensors", "tar", "zip", "gz"}
#: Last parts of field names whose data stays in the shard; everything else may be kept in the index when it is small.
NEVER_INLINE = _IMAGES | _SOUND_AND_FILM | _TENSORS_AND_ARCHIVES


def split_member(path: str) -> tuple[str, str] | None:
    """Key and field of a member, or ``None`` for a member that belongs to no sample.

    Ignored are names without a dot, names whose last component starts with a dot or has nothing behind its first one,
    everything under ``__MACOSX/``, and names of the form ``__x__``, webdataset's mark for metadata, also as top folder.
    """
    folder, slash, base = path.rpartition("/")
    stem, dot, field = base.partition(".")
    if not dot or not stem or not field or _is_reserved(base) or _is_reserved_folder(folder.split("/")):
        return None
    return f"{folder}{slash}{stem}", field.lower()


def _is_reserved(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_reserved_folder(parts: list[str]) -> bool:
    return "__MACOSX" in parts or _is_reserved(parts[0])


def check_key(key: str) -> None:
    """Refuse a key that would not come back from a tar as it went in.

    Raises:
        ConfigError: The key is empty, absolute, longer than 4096 bytes, leaves its folder, has a dot in its last
            component, is one that readers skip, or cannot be stored.
    """
    problem = _key_problem(key)
    if problem:
        raise ConfigError(f"key {key!r}: {problem}", kind="bad_key", key=key)


def _key_problem(key: str) -> str | None:
    parts = key.split("/")
    if not key or "" in parts or "." in parts or ".." in parts:
        return "expected a relative path without empty, '.' or '..' components"
    if "\0" in key or not is_unicode(key):
        return "expected text without NUL and lone surrogates"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"expected at most {_MAX_KEY_BYTES} bytes, found {len(key.encode())}"
    if "." in parts[-1]:
        return "the last component has a dot, which would end the key; replace it, for example by '_'"
    if _is_reserved(parts[-1]) or _is_reserved_folder(parts):
        return "this name is reserved and readers skip it"
    return None


def check_field(field: str) -> None:
    """Refuse a field name that would not come back from a tar as it went in.

    Raises:
        ConfigError: The field is empty, not lower case, longer than 255 bytes, or has a slash or a character that
            cannot be stored.
    """
    if not is_unicode(field) or not is_field(field) or field != field.lower():
        raise ConfigError(
            f"field {field!r}: expected a lower-case name without slashes, such as 'jpg' or 'seg.png'", kind="bad_field"
        )
    if len(field.encode()) > _MAX_FIELD_BYTES:
        raise ConfigError(f"field {field!r}: expected at most {_MAX_FIELD_BYTES} bytes", kind="bad_field")
    # A final "__" could turn a member into a name of the form "__x__", which readers skip.
    if field.startswith(".") or field.endswith("__"):
        raise ConfigError(f"field {field!r}: may not start with '.' or end with '__'", kind="bad_field")


def is_field(name: str) -> bool:
    """Whether ``split_member`` can give this field name; its case is not checked."""
    return bool(name) and "/" not in name and "\0" not in name


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text, that is, whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def may_inline(field: str) -> bool:
    """Whether small values of this field may be kept inside the index; media and tensors may not."""
    return field.rpartition(".")[2] not in NEVER_INLINE


def check_prefix(prefix: str) -> None:
    """Refuse a shard name prefix that is no plain file name.

    Raises:
        ConfigError: The prefix has other characters than letters, digits, ``_``, ``=`` and ``-``.
    """
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"prefix {prefix!r}: expected letters, digits, '_', '=' and '-', such as 'train'")


def shard_name(prefix: str, number: int) -> str:
    """Name of shard ``number``: ``train-000000.tar``."""
    return f"{prefix}-{number:06d}{_SHARD_SUFFIX}"


def index_name(shard: str) -> str:
    """Name of the index beside a shard: ``train-000000.idx`` for ``train-000000.tar``."""
    return shard.removesuffix(_SHARD_SUFFIX) + _INDEX_SUFFIX


def generation_name(generation: int) -> str:
    """Name of one immutable manifest generation: ``manifest-000001.msgpack``."""
    return f"manifest-{generation:06d}.msgpack"


def check_relative(name: str) -> bool:
    """Whether ``name`` is a relative path that stays under its root."""
    parts = name.split("/")
    return (
        bool(name)
        and "" not in parts
        and "." not in parts
        and ".." not in parts
        and "\0" not in name
        and "\\" not in name
    )
