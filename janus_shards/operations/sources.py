"""What is to be packed: samples with the places and sizes of their fields, in a fixed order. No I/O here.

A folder is read by the sample rule of ``format.naming``, so that packing it gives the samples that ``tar`` and
webdataset would give.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from janus_shards.errors import ConfigError, FormatError, MissingFieldError
from janus_shards.format.naming import check_field, check_key, split_member
from janus_shards.format.tar import member_bytes
from janus_shards.operations.folders import SourceFile

#: What to do with ``a.b.jpg``: field ``b.jpg`` of key ``a`` by the sample rule, or field ``jpg`` of key ``a_b``.
DotRule = Literal["field", "replace"]

#: Last parts of field names that hold a picture; its content is checked and its size recorded.
IMAGE_FIELDS = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "ppm"))

# Written into folders by Windows, without being asked.
_LITTER = frozenset(("thumbs.db", "desktop.ini"))
_DIGITS = re.compile(r"([0-9]+)")
_MAX_NAMED = 10


class Part(NamedTuple):
    """One field of a sample to be packed: in a file of the source (``path``), or already at hand (``data``)."""

    field: str
    size: int
    path: str = ""
    data: bytes | None = None
    mtime_ns: int = 0


class SourceSample(NamedTuple):
    """One sample to be packed: its parts in member order, and where it was found (``rows.csv line 3``)."""

    key: str
    parts: tuple[Part, ...]
    origin: str = ""

    def tar_bytes(self) -> int:
        """Length of all members in the shard."""
        return sum(member_bytes(f"{self.key}.{part.field}", part.size) for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """All samples of a source, in the order in which they are packed.

    Attributes:
        samples: Never empty; keys differ.
        warnings: What the user should know, in sentences.
        skipped: Rows left out because the user asked to skip bad ones: where each stands, and why.
    """

    samples: Sequence[SourceSample]
    warnings: Sequence[str] = ()
    skipped: Sequence[str] = ()


def is_image(field: str) -> bool:
    """Whether a field holds a picture by its name."""
    return field.rpartition(".")[2] in IMAGE_FIELDS


def natural_order(text: str) -> tuple[list[str | int], str]:
    """Sort key that puts ``img2`` before ``img10``; the same on every machine and locale."""
    pieces: list[str | int] = list(_DIGITS.split(text))
    pieces[1::2] = [int(digits) for digits in pieces[1::2]]
    return pieces, text


def name_some(problems: Sequence[str]) -> str:
    """The first few of many problems, and how many more there are."""
    more = len(problems) - _MAX_NAMED
    return "; ".join(problems[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def plan_folder(
    files: Iterable[SourceFile], *, folder: str, allow_missing: bool = False, dots: DotRule = "field"
) -> SourcePlan:
    """Group the files of a folder into samples.

    Args:
        files: Files with paths relative to the folder, in any order.
        folder: The folder, for messages.
        allow_missing: Whether samples may have different fields.
        dots: What a dot before the extension means.

    Raises:
        ConfigError: No file belongs to a sample, or a name cannot be stored.
        FormatError: Two files are the same field of one sample (kind ``duplicate_field``).
        MissingFieldError: A sample has other fields than most; all formats of pictures count as one field.
    """
    samples: dict[str, dict[str, SourceFile]] = {}
    ignored, dotted = [], []
    for file in files:
        split = _split(file.name, dots)
        if split is None:
            ignored.append(file.name)
            continue
        key, field = split
        if "." in field or "." in file.name.rpartition("/")[2].rpartition(".")[0]:
            dotted.append((file.name, key, field))
        _add(samples.setdefault(key, {}), key, field, file, folder)
    if not samples:
        raise ConfigError(f"{folder}: found no files to pack, such as photo.jpg and photo.txt", kind="empty_dataset")
    if not allow_missing:
        _check_agreement(samples, folder)
    planned = [_sample(key, samples[key]) for key in sorted(samples, key=natural_order)]
    return SourcePlan(
        samples=planned, warnings=[*_dot_warning(sorted(dotted), dots), *_ignored_warning(sorted(ignored))]
    )


def _split(name: str, dots: DotRule) -> tuple[str, str] | None:
    split = split_member(name)
    if split is None or name.rpartition("/")[2].lower() in _LITTER:
        return None
    if dots == "replace":
        folder, slash, base = name.rpartition("/")
        stem, _, extension = base.rpartition(".")
        split = f"{folder}{slash}{stem.replace('.', '_')}", extension.lower()
    try:
        check_key(split[0])
        check_field(split[1])
    except ConfigError as exc:
        raise ConfigError(f"file {name!r} cannot be packed under its name: {exc.message}", kind="bad_path") from exc
    return split


def _add(fields: dict[str, SourceFile], key: str, field: str, file: SourceFile, folder: str) -> None:
    other = fields.setdefault(field, file)
    if other is not file:
        first, second = sorted((other.name, file.name))
        raise FormatError(
            f"{folder}: files {first!r} and {second!r} are both field {field!r} of sample {key!r}; rename or remove "
            f"one",
            kind="duplicate_field",
            shard=folder,
            key=key,
            field=field,
        )


def _sample(key: str, fields: Mapping[str, SourceFile]) -> SourceSample:
    names = sorted(fields, key=natural_order)
    parts = tuple(
        Part(field, fields[field].size, fields[field].name, mtime_ns=fields[field].mtime_ns) for field in names
    )
    return SourceSample(key, parts, fields[names[0]].name)


def _kinds(fields: Iterable[str]) -> frozenset[str]:
    """Field names with every format of picture as one."""
    return frozenset(f"{field.rpartition('.')[0]}.image".lstrip(".") if is_image(field) else field for field in fields)


def _check_agreement(samples: Mapping[str, Mapping[str, SourceFile]], folder: str) -> None:
    counts = Counter(_kinds(fields) for fields in samples.values())
    # The usual fields; of several equally frequent sets the largest, then the first by name, so that the message is
    # always the same.
    usual = max(counts, key=lambda kinds: (counts[kinds], len(kinds), sorted(kinds)))
    odd = sorted((key for key, fields in samples.items() if _kinds(fields) != usual), key=natural_order)
    if not odd:
        return
    problems = [_disagreement(key, samples[key], usual) for key in odd]
    raise MissingFieldError(
        f"{folder}: expected the fields {', '.join(sorted(usual))} in every sample, as {counts[usual]} of "
        f"{len(samples)} have: {name_some(problems)}{_look_alikes(odd)}. Complete or remove these files, or allow it "
        "with allow_missing=True (--allow-missing)",
        shard=folder,
        key=odd[0],
    )


def _disagreement(key: str, fields: Mapping[str, SourceFile], usual: frozenset[str]) -> str:
    name = min(file.name for file in fields.values())
    missing, surplus = sorted(usual - _kinds(fields)), sorted(_kinds(fields) - usual)
    problems = [f"no {' and no '.join(missing)}"] if missing else []
    problems += [f"also {' and '.join(surplus)}"] if surplus else []
    return (
        f"{name!r} has {', but '.join(problems)} beside it" if missing else f"{name!r} of key {key!r} has {problems[0]}"
    )


def _look_alikes(keys: Iterable[str]) -> str:
    """A word on keys that look the same and are not: Macs store accents apart from their letters, others together."""
    twins: dict[str, list[str]] = {}
    for key in keys:
        twins.setdefault(unicodedata.normalize("NFC", key), []).append(key)
    pairs = [f"{found[0]!a} and {found[1]!a}" for found in twins.values() if len(found) > 1]
    return f"; {pairs[0]} differ in nothing but the Unicode form of an accent" if pairs else ""


def _dot_warning(dotted: Sequence[tuple[str, str, str]], dots: DotRule) -> list[str]:
    if not dotted:
        return []
    name, key, field = dotted[0]
    taken = f"{counted(len(dotted), 'file name')} with a dot before the extension, such as {name!r}, "
    taken += f"which became field {field!r} of key {key!r}"
    if dots == "replace":
        return [taken]
    return [f"{taken}; to make that dot a part of the key, use dots='replace' (--dots replace)"]


def _ignored_warning(ignored: Sequence[str]) -> list[str]:
    return [f"{counted(len(ignored), 'file')} ignored as part of no sample, such as {ignored[0]!r}"] if ignored else []
