"""From index columns to planned sizes, and what to do about rows that are too long."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from janus_shards.errors import ConfigError, SampleError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Raised whenever the same rule on the same lengths gives another plan; part of every state.
PLAN_VERSION = 1

_MAX_TEXT = 48  # characters of an option in a state, before a digest stands for it


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The planned size of every row.

    Attributes:
        values: Tokens, at least 1; with buckets of aspect ratios the number of the bucket; int32 ``(num_rows,)``.
        num_truncated: Rows that are planned shorter than they are.
    """

    values: NDArray[np.int32]
    num_truncated: int


def planned_lengths(
    lengths: NDArray[Any], *, column: str, extra: int, max_length: int | None, limit: int, rule: str
) -> Sizes:
    """Lengths with what every row has besides, cut where the user said so.

    Args:
        lengths: The index column, integers from 0 up, shape ``(num_rows,)``.
        column: Its name, for messages.
        extra: Tokens that every row has besides.
        max_length: Longer rows are cut to it; ``None``: nothing is cut.
        limit: Longest row that fits a batch.
        rule: Name of the rule, for messages.

    Raises:
        ConfigError: The column holds no lengths, or a row does not fit a batch.
    """
    values = whole_numbers(lengths, column=column, rule=rule)
    values = np.maximum(values + extra, 1)  # an empty row still takes a place
    num_truncated = 0
    if max_length is not None:
        num_truncated = int(np.count_nonzero(values > max_length))
        values = np.minimum(values, max_length)
    longest = int(values.max(initial=0))
    if longest > limit:
        too_long = int(np.count_nonzero(values > limit))
        raise ConfigError(
            f"{rule}: {too_long} of {len(values)} samples do not fit a batch: column {column!r} plans up to {longest} "
            f"tokens for one, and {limit} fit; pass max_length={limit} to cut them, or a larger budget",
            kind="too_long",
        )
    return Sizes(values=values.astype(np.int32), num_truncated=num_truncated)


def whole_numbers(values: NDArray[Any], *, column: str, rule: str) -> NDArray[np.int64]:
    """A column of counts, as int64.

    Raises:
        ConfigError: It is not one of integers from 0 up.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or (len(values) and int(values.min()) < 0):
        found = values.dtype if values.dtype.kind not in "iu" else int(values.min())
        raise ConfigError(f"{rule}: column {column!r} should hold integers from 0 up, found {found}", kind="bad_column")
    return values.astype(np.int64)


def read_column(columns: Mapping[str, NDArray[Any]], name: str, *, rule: str) -> NDArray[Any]:
    """One column out of those that were read.

    Raises:
        ConfigError: It is not among them.
    """
    if name not in columns:
        raise ConfigError(
            f"{rule}: there is no column {name!r}, only {sorted(columns)}; pack with --columns, or add it with "
            "`index --add-column`",
            kind="bad_column",
        )
    return columns[name]


def fit_length(found: int, *, planned: int, truncate: bool) -> int:
    """Tokens to keep of a row that was planned with another length.

    Raises:
        SampleError: It is longer than planned and may not be cut.
    """
    if found <= planned:
        return found
    if truncate:
        return planned
    raise SampleError(
        f"{found} tokens, planned with {planned}: the column was made with another tokenizer or text; "
        "make it again, or pass max_length to cut",
        kind="longer_than_planned",
    )


def describe_rule(rule: "DataclassInstance", sizes: NDArray[np.int32]) -> dict[str, str | int | None]:
    """What fixes the plans of a rule, by name: plain values for the state, compared one by one at resume."""
    name = type(rule).__name__
    out: dict[str, str | int | None] = {"batching": name, "batching.version": PLAN_VERSION}
    for field in fields(rule):
        out[f"batching.{field.name}"] = _plain(getattr(rule, field.name))
    out["batching.sizes"] = hashlib.sha256(np.ascontiguousarray(sizes, "<i4").data).hexdigest()[:32]
    return out


def check(rule: str, name: str, value: object, holds: bool, expected: str) -> None:
    """Refuse an option of a rule by name.

    Raises:
        ConfigError: ``holds`` is false.
    """
    if not holds:
        raise ConfigError(f"{rule}({name}={value!r}): expected {expected}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether an option is an integer from ``least`` up, small enough for 32 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _plain(value: object) -> str | int | None:
    if value is None or isinstance(value, int):
        return value
    text = value if isinstance(value, str) else repr(value).replace(" ", "")
    return text if len(text) <= _MAX_TEXT else hashlib.sha256(text.encode()).hexdigest()[:32]
