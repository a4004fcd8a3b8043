"""A sample on its way into a shard: checked and encoded before a byte is written. No I/O here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from janus_shards.decode.fields import encode_field
from janus_shards.errors import ConfigError, JanusShardsError
from janus_shards.format.index import ColumnValue
from janus_shards.format.naming import check_field, check_key
from janus_shards.format.tar import member_bytes
from janus_shards.sample import RawBytes

KEY_ENTRY = "__key__"


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """One sample as it will lie in the shard.

    Attributes:
        key: Checked by ``format.naming.check_key``.
        fields: Name and bytes of each field, in member order; names are checked and differ.
        columns: Typed metadata of this row, kept in the index.
    """

    key: str
    fields: tuple[tuple[str, RawBytes], ...]
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)

    def tar_bytes(self) -> int:
        """Length of all members in the shard: headers, data and padding."""
        return sum(member_bytes(f"{self.key}.{name}", len(data)) for name, data in self.fields)


def encode_sample(sample: Mapping[str, object], columns: Mapping[str, ColumnValue] | None = None) -> EncodedSample:
    """Check a sample and turn every value into bytes.

    Args:
        sample: ``__key__`` and the fields by name. Other names of the form ``__x__`` are ignored, as webdataset does.
        columns: Typed metadata of this row.

    Raises:
        ConfigError: The key, a field name or a column value cannot be stored, a value cannot be encoded for its field,
            or there is no field.
    """
    key = _key(sample)
    fields = tuple((name, _encode(key, name, value)) for name, value in sample.items() if not _is_private(name))
    if not fields:
        raise ConfigError(f"sample {key!r}: expected at least one field, such as 'jpg'", kind="bad_sample", key=key)
    return EncodedSample(
        key, fields, {name: _column_value(key, name, value) for name, value in (columns or {}).items()}
    )


def _key(sample: Mapping[str, object]) -> str:
    key = sample.get(KEY_ENTRY)
    if not isinstance(key, str):
        found = "nothing" if KEY_ENTRY not in sample else type(key).__name__
        raise ConfigError(f"a sample needs its key as text under '{KEY_ENTRY}', found {found}", kind="bad_key")
    check_key(key)
    return key


def _is_private(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _encode(key: str, name: str, value: object) -> RawBytes:
    check_field(name)
    try:
        return encode_field(name, value)
    except JanusShardsError as exc:
        exc.key, exc.field = exc.key or key, exc.field or name
        exc.message = exc.message if key in exc.message else f"sample {key!r}: {exc.message}"
        raise


def _column_value(key: str, name: str, value: object) -> ColumnValue:
    """A plain Python value, so that one column has one type whether NumPy scalars or Python numbers came in."""
    plain = value.item() if isinstance(value, np.generic) else value
    fits = not isinstance(plain, int) or -(2**63) <= plain < 2**63
    if isinstance(plain, bool | int | float | str) and fits:
        return plain
    found = type(value).__name__ if fits else f"{plain}"
    raise ConfigError(
        f"sample {key!r}, column {name!r}: expected a bool, 64-bit integer, float or text, found {found}",
        kind="bad_column",
        key=key,
    )
