"""The state of a loader: a position, never a buffer; and whether a state fits what it is loaded into.

::

    {"version": 1, "fingerprint": "9f2c...", "num_shards": 40, "order_hash": "51ab...", "seed": 7,
     "order": {"order_version": 1, "shuffle": true, "lanes": 192, ...}, "epoch": 2, "position": 51200}

Plain JSON values, below 1 KB. ``position`` counts samples of batches *returned* by all ranks together, so rank 0 may
save it for everybody. World size, batch size, tail, fields, transform, threads, cache and device are not part of it and
may change freely. ``order`` holds what the hash covers, so that each difference can be named.

Source: docs/design/0001-epoch-order.md.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from janus_shards.errors import ConfigError, ResumeError
from janus_shards.order.epoch import Description, SampleOrder, hash_description

STATE_VERSION = 1

#: A JSON-able state.
State: TypeAlias = dict[str, "str | int | dict[str, str | int | None] | None"]

# What `allow` may name besides the names of differences.
_APPEND = "append"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A place in the endless run of epochs of one order of one data set.

    Attributes:
        fingerprint: Of the data set (and view).
        num_shards: Shards of its generation: a later generation begins with the same ones.
        order: From ``Order.describe``.
        epoch: From 0 up.
        position: Samples of this epoch that were returned by all ranks together.
    """

    fingerprint: str
    num_shards: int
    order: Description
    epoch: int = 0
    position: int = 0

    @classmethod
    def at_start(cls, order: SampleOrder, *, fingerprint: str, num_shards: int) -> Self:
        """The first position of the first epoch."""
        return cls(fingerprint=fingerprint, num_shards=num_shards, order=order.describe())

    @property
    def order_hash(self) -> str:
        """Of the order, as ``Order.order_hash``."""
        return hash_description(self.order)

    @property
    def seed(self) -> int:
        """Of the order."""
        return int(self.order["seed"] or 0)

    def to_dict(self) -> State:
        """The state as JSON values, below 1 KB."""
        return {
            "version": STATE_VERSION,
            "fingerprint": self.fingerprint,
            "num_shards": self.num_shards,
            "order_hash": self.order_hash,
            "seed": self.seed,
            "order": {name: value for name, value in self.order.items() if name != "seed"},
            "epoch": self.epoch,
            "position": self.position,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, object]) -> Self:
        """The opposite of ``to_dict``.

        Raises:
            ResumeError: It is no such state, was written by another version, or was changed by hand.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise ResumeError(f"loader state: expected the mapping that state_dict() returned, found {_shorten(state)}")
        if state["version"] != STATE_VERSION:
            raise ResumeError(
                f"loader state: expected version {STATE_VERSION}, found {_shorten(state['version'])}; "
                "load it with the version of janus-shards that saved it"
            )
        order = _mapping(state, "order")
        cursor = cls(
            fingerprint=_text(state, "fingerprint"),
            num_shards=_count(state, "num_shards"),
            order={**order, "seed": _count(state, "seed")},
            epoch=_count(state, "epoch"),
            position=_count(state, "position"),
        )
        if cursor.order_hash != state.get("order_hash"):
            raise ResumeError("loader state: its order_hash does not belong to its order and seed; it was changed")
        return cursor


def choose_generation(
    saved: Cursor, current: Cursor, *, prefix: Cursor | None = None, allow: Collection[str] = ()
) -> Literal["current", "prefix"]:
    """Which generation of the data set a saved state goes on with.

    Args:
        saved: The state.
        current: Any cursor of the data set and order it is loaded into.
        prefix: The same for the first ``saved.num_shards`` shards of that data set, opened with the same options;
            needed for ``allow=("append",)``.
        allow: Differences to accept. ``"append"``: the data set has grown since; the epoch of the state is finished on
            the shards it began with, and the next one begins with all. Any other name as it stands in the error: the
            new value holds from the saved position on.

    Returns:
        ``"current"``: go on with the order given as ``current``. ``"prefix"``: finish ``saved.epoch`` with the order of
        ``prefix``, then go on with ``current``.

    Raises:
        ResumeError: Something differs that is not allowed; every difference is named, old -> new.
        ConfigError: ``allow`` holds a name that no difference has.
    """
    _check_allow(allow, current)
    if _APPEND in allow and prefix is not None and prefix.fingerprint == saved.fingerprint:
        found = _differences(saved, prefix, allow)
        if found:
            raise ResumeError(_message(found, saved, prefix, allow))
        _check_position(saved, prefix)
        # At the start of an epoch there is nothing to finish.
        return "prefix" if saved.position else "current"
    found = _differences(saved, current, allow)
    if found:
        raise ResumeError(_message(found, saved, current, allow))
    _check_position(saved, current)
    return "current"


def _differences(saved: Cursor, current: Cursor, allow: Collection[str]) -> dict[str, tuple[object, object]]:
    """Name -> (old, new) of all that differs and is not allowed to."""
    old, new = _named(saved), _named(current)
    names = [*old, *(name for name in new if name not in old)]
    pairs = {name: (old.get(name), new.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in allow}


def _named(cursor: Cursor) -> dict[str, object]:
    return {"fingerprint": cursor.fingerprint, "num_shards": cursor.num_shards, **cursor.order}


def _message(found: Mapping[str, tuple[object, object]], saved: Cursor, current: Cursor, allow: Collection[str]) -> str:
    listed = "; ".join(f"{name}: {_shorten(old)} -> {_shorten(new)}" for name, (old, new) in found.items())
    advice = "open the loader with the data set and options it was saved with"
    if "fingerprint" in found and saved.num_shards < current.num_shards:
        if _APPEND in allow:
            advice = f"the first {saved.num_shards} shards are not those it was saved with, so it has not only grown"
        else:
            advice += ', or, if shards were only appended, pass allow=("append",)'
    return f"load_state_dict: the state does not fit this loader ({listed}); {advice}"


def _check_allow(allow: Collection[str], current: Cursor) -> None:
    known = {_APPEND, *_named(current)}
    # One string would be read as its letters.
    unknown = [allow] if isinstance(allow, str) else sorted(set(allow) - known)
    if unknown:
        raise ConfigError(f"allow={allow!r}: expected a tuple of names out of {', '.join(sorted(known))}")


def _check_position(saved: Cursor, current: Cursor) -> None:
    samples = current.order["samples"]
    if isinstance(samples, int) and saved.position > samples:
        raise ResumeError(f"load_state_dict: position {saved.position} lies past the {samples} samples of an epoch")


def _mapping(state: Mapping[str, object], name: str) -> dict[str, str | int | None]:
    value = state.get(name)
    if isinstance(value, Mapping) and all(isinstance(v, str | int | None) for v in value.values()):
        return {str(key): item for key, item in value.items()}
    raise ResumeError(f"loader state: expected names and plain values as {name}, found {_shorten(value)}")


def _text(state: Mapping[str, object], name: str) -> str:
    value = state.get(name)
    if isinstance(value, str):
        return value
    raise ResumeError(f"loader state: expected text as {name}, found {_shorten(value)}")


def _count(state: Mapping[str, object], name: str) -> int:
    value = state.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ResumeError(f"loader state: expected a number from 0 up as {name}, found {_shorten(value)}")


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
