"""Sizes as people write them. Numbers of bytes in, numbers of bytes out; no options of anything in particular."""

import re

from janus_shards.errors import ConfigError

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, letter in enumerate("kmgt", start=1)
}


def parse_bytes(value: int | str, *, name: str, minimum: int = 1) -> int:
    """Bytes from a number or from text such as ``256MB`` (powers of 1000) or ``1GiB`` (powers of 1024).

    Args:
        value: What the user wrote.
        name: The option, for messages.
        minimum: The smallest size that makes sense.

    Raises:
        ConfigError: The text is no size, or the size is below ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{name}={value!r}: expected bytes, as a number or as text such as '256MB' or '1GiB'")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ConfigError(f"{name}={value!r}: expected a size such as '256MB' (10^6) or '1GiB' (2^30)")
        value = int(float(match[1]) * unit)
    if value < minimum:
        raise ConfigError(f"{name}={value!r}: expected at least {minimum} byte{'' if minimum == 1 else 's'}")
    return value
