"""One sample whose fields are read and decoded when they are first asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from janus_shards.decode.fields import Decoder, decode_field
from janus_shards.errors import FormatError, JanusShardsError, MissingFieldError, SampleError, StorageError
from janus_shards.sample import RawBytes


class Sample(Mapping[str, Any]):
    """A read-only mapping from field to decoded value.

    Args:
        key: Key of the sample.
        sample_id: Row across the whole manifest.
        raw: Gives the bytes of a field; called at most once a field.
        fields: Fields the sample has, in stored order.
        decoders: Decoders of the caller, by field or last dotted part; see ``decode_field``.
        shard: Name of the shard, for messages.
    """

    __slots__ = ("_bytes", "_decoders", "_fields", "_raw", "_values", "key", "sample_id", "shard")

    def __init__(
        self,
        key: str,
        sample_id: int,
        raw: Callable[[str], RawBytes],
        fields: Sequence[str],
        decoders: Mapping[str, Decoder] | None = None,
        *,
        shard: str | None = None,
    ) -> None:
        self.key = key
        self.sample_id = sample_id
        self.shard = shard
        self._raw = raw
        self._fields = tuple(fields)
        self._decoders = decoders
        self._bytes: dict[str, RawBytes] = {}
        self._values: dict[str, object] = {}

    def __getitem__(self, field: str) -> Any:
        """Decoded value; the same object at every access.

        Raises:
            MissingFieldError: The sample has no such field.
            DecodeError: Its bytes cannot be decoded; carries shard, key and field. Other fields stay readable.
        """
        if field not in self._values:
            data = self._read(field)
            try:
                self._values[field] = decode_field(field, data, self._decoders)
            except SampleError as exc:
                raise locate(exc, shard=self.shard, key=self.key, field=field) from exc
        return self._values[field]

    def raw(self, field: str) -> bytes:
        """The bytes of a field as stored.

        Raises:
            MissingFieldError: The sample has no such field.
        """
        return bytes(self._read(field))

    def __contains__(self, field: object) -> bool:
        return field in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Sample(key={self.key!r}, sample_id={self.sample_id}, fields={self._fields})"

    def __reduce__(self) -> tuple[object, ...]:
        # Another process has no way to the reader behind ``raw``: the bytes of all fields travel instead.
        stored = {field: self._packed(field) for field in self._fields}
        return _restored, (self.key, self.sample_id, stored, self._decoders, self.shard)

    def _packed(self, field: str) -> bytes | JanusShardsError:
        """The bytes of a field, or what happened in place of them: a copy raises it where the field is used.

        Raised here, while a worker sends its results, it would be lost, and the receiver would wait for ever.
        """
        try:
            return self.raw(field)
        except JanusShardsError as exc:
            return exc

    def _read(self, field: str) -> RawBytes:
        if field not in self._bytes:
            if field not in self._fields:
                message = f"no such field; the sample has {', '.join(self._fields) or 'none'}"
                raise locate(MissingFieldError(message), shard=self.shard, key=self.key, field=field)
            try:
                self._bytes[field] = self._raw(field)
            except (StorageError, FormatError) as exc:
                # Through a loader, the error says so already.
                raise exc if exc.key is not None else exc.of_sample(self.key, field) from exc
        return self._bytes[field]


def locate(error: SampleError, *, shard: str | None, key: str, field: str) -> SampleError:
    """The same error, of the same class and kind, that says where it happened, in its message and attributes."""
    place = f"{shard}: " if shard else ""
    return type(error)(
        f"{place}sample {key!r}, field {field!r}: {error.message}", kind=error.kind, shard=shard, key=key, field=field
    )


def _restored(
    key: str,
    sample_id: int,
    stored: dict[str, bytes | JanusShardsError],
    decoders: Mapping[str, Decoder] | None,
    shard: str | None,
) -> Sample:
    return Sample(key, sample_id, partial(_unpacked, stored), tuple(stored), decoders, shard=shard)


def _unpacked(stored: Mapping[str, bytes | JanusShardsError], field: str) -> bytes:
    data = stored[field]
    if isinstance(data, JanusShardsError):
        raise data
    return data
