"""All exceptions of the library, in one family.

::

    JanusShardsError
      ConfigError (ValueError)
      FormatError (ValueError): TarFormatError, IndexFormatError, ManifestError, VersionError
      StorageError (OSError): ObjectNotFoundError (FileNotFoundError), AccessDeniedError (PermissionError),
        TransientError, IntegrityError
      SampleError: DecodeError, MissingFieldError
      SampleBudgetError
      ResumeError

Worker processes re-raise these, so each one can be built from a single message string and survives pickling with its
context. Torch's ``DataLoader`` re-raises what a worker raised from the text of its traceback alone; so every traceback
ends with a line that holds the context, which is read back from there.

Foreign exceptions are translated where they arise, in the module that owns the foreign library, never here.
"""

import json
from typing import Any, Self

# Opens the last line of a traceback.
_CONTEXT = "janus-shards context: "
_NAMES = ("kind", "shard", "key", "field")


class JanusShardsError(Exception):
    """Base of everything the library raises on purpose.

    Args:
        message: What was tried, on what, what was expected and found, and what to do next. Holds no credentials.
        kind: Machine-readable cause, such as ``truncated_shard``; the class default when not given.
        shard: Name or URL of the shard or other object concerned.
        key: Key of the sample concerned.
        field: Field of the sample concerned.
    """

    default_kind = "error"

    def __init__(
        self,
        message: str = "",
        *,
        kind: str | None = None,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        given = {"kind": kind, "shard": shard, "key": key, "field": field}
        context = given if any(given.values()) else _noted_context(message)
        self.message = message
        self.kind = context.get("kind") or self.default_kind
        self.shard = context.get("shard")
        self.key = context.get("key")
        self.field = context.get("field")
        self._added_notes: list[str] = []

    def __str__(self) -> str:
        return self.message

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # made when asked for: the context may be set late
        """Lines that tracebacks show below the message: notes that were added, and the context."""
        return [*self._added_notes, _CONTEXT + json.dumps(self._context())]

    def add_note(self, note: str, /) -> None:
        """Add a note that tracebacks show below the message."""
        self._added_notes.append(note)

    def of_sample(self, key: str, field: str) -> Self:
        """The same error, saying which sample cannot be read because of it."""
        context = {**self._context(), "key": key, "field": field}
        return type(self)(f"sample {key!r}, field {field!r}: {self.message}", **context)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self._context())

    def _context(self) -> dict[str, str | None]:
        return {"kind": self.kind, "shard": self.shard, "key": self.key, "field": self.field}


def _rebuild(cls: type[JanusShardsError], message: str, context: dict[str, str | None]) -> JanusShardsError:
    return cls(message, **context)


def _noted_context(message: str) -> dict[str, str | None]:
    _, found, rest = message.rpartition(_CONTEXT)
    if not found:
        return {}
    try:
        context = json.loads(rest.partition("\n")[0])
        return {name: None if context[name] is None else str(context[name]) for name in _NAMES}
    except (ValueError, TypeError, KeyError):
        return {}


class ConfigError(JanusShardsError, ValueError):
    """An option or a combination of options cannot work."""

    default_kind = "bad_option"


class FormatError(JanusShardsError, ValueError):
    """Stored bytes do not follow the format they claim."""

    default_kind = "bad_format"


class TarFormatError(FormatError):
    """A shard is not a readable tar file."""

    default_kind = "not_a_tar"


class IndexFormatError(FormatError):
    """A sidecar index is damaged or does not belong to its shard."""

    default_kind = "index_mismatch"


class ManifestError(FormatError):
    """A manifest is missing, damaged or inconsistent."""

    default_kind = "bad_manifest"


class VersionError(FormatError):
    """The bytes were written by a version of the format that is not known here."""

    default_kind = "unknown_version"


class StorageError(JanusShardsError, OSError):
    """A storage backend failed in a way that another attempt would not mend."""

    default_kind = "storage"


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object, bucket or folder does not exist."""

    default_kind = "not_found"


class AccessDeniedError(StorageError, PermissionError):
    """The store or file system refused access."""

    default_kind = "access_denied"


class TransientError(StorageError):
    """A failure that may pass; the only kind that is retried."""

    default_kind = "transfer_failed"


class IntegrityError(StorageError):
    """Bytes that arrived are not the bytes that were promised."""

    default_kind = "shard_changed"


class SampleError(JanusShardsError):
    """One sample cannot be delivered because of its bytes."""

    default_kind = "bad_sample"


class DecodeError(SampleError):
    """The bytes of a field cannot be decoded."""

    default_kind = "decode"


class MissingFieldError(SampleError, KeyError):
    """A sample lacks a requested field."""

    default_kind = "missing_field"


class SampleBudgetError(JanusShardsError):
    """More samples were bad than the caller allowed."""

    default_kind = "over_budget"


class ResumeError(JanusShardsError):
    """A saved state does not fit the data set or the options it is loaded into."""

    default_kind = "state_mismatch"
