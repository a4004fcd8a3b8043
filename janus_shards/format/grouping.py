"""Members of a shard grouped into samples by the sample rule; the judge of members that contradict each other.

A sample is a run of members with one key; what belongs to no sample may stand between them. Nothing is decoded here.
"""

from collections.abc import Iterable
from typing import Self

from janus_shards.errors import TarFormatError
from janus_shards.format.index import FieldSpan
from janus_shards.format.naming import split_member
from janus_shards.format.tar import TarMember


def group_samples(members: Iterable[TarMember], *, shard: str) -> "SampleGroups":
    """Key and fields of each sample, in stored order.

    Args:
        members: Members of one shard in order, such as a ``TarScanner``.
        shard: Name or URL of the shard, for messages.
    """
    return SampleGroups(members, shard=shard)


class SampleGroups:
    """Iterator over ``(key, spans)``: the fields of one sample in member order, lower case, at least one.

    Memory: the fields of one sample, and the keys seen so far. After an error of its own it goes on with the next
    sample, so that the caller may skip the bad one; after an error of ``members`` it ends, without the sample that was
    cut.

    Raises:
        TarFormatError: ``duplicate_field``: two members of one sample have the same field, by case or by name.
            ``interleaved_key``: a key comes back after another one, so its sample does not lie in one piece; the part
            in front was delivered before.

    Attributes:
        num_samples: Samples delivered.
        num_links: Links ignored.
        num_ignored: Files ignored because the sample rule gives them no key.
    """

    def __init__(self, members: Iterable[TarMember], *, shard: str) -> None:
        self._members = iter(members)
        self._shard = shard
        self._seen: set[str] = set()
        self._key: str | None = None
        self._spans: dict[str, FieldSpan] = {}
        # Key of the sample that was refused last: what is left of it is passed over.
        self._refused: str | None = None
        # What is wrong with the member behind the sample that was just delivered.
        self._error: TarFormatError | None = None
        self.num_samples = 0
        self.num_links = 0
        self.num_ignored = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, list[FieldSpan]]:
        while self._error is None and (member := self._next_member()) is not None:
            names = self._names(member)
            if names is None or (self._key is None and names[0] == self._refused):
                continue
            finished = self._finish() if names[0] != self._key else None
            self._add(*names, member)
            if finished is not None:
                return finished
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        finished = self._finish()
        if finished is None:
            raise StopIteration
        return finished

    def _next_member(self) -> TarMember | None:
        try:
            return next(self._members, None)
        except BaseException:
            self._key = None
            raise

    def _names(self, member: TarMember) -> tuple[str, str] | None:
        if member.kind != "file":
            self.num_links += member.kind == "link"
            return None
        names = split_member(member.name)
        self.num_ignored += names is None
        return names

    def _finish(self) -> tuple[str, list[FieldSpan]] | None:
        """The sample that is complete now, if there is one."""
        if self._key is None:
            return None
        finished = self._key, list(self._spans.values())
        self._key, self._spans = None, {}
        self.num_samples += 1
        return finished

    def _add(self, key: str, field: str, member: TarMember) -> None:
        if self._key is None:
            if key in self._seen:
                self._refuse(
                    "interleaved_key",
                    key,
                    field,
                    "its members do not lie in one piece; write each sample's side by side",
                )
                return
            self._seen.add(key)
            self._key = key
        if field in self._spans:
            self._refuse("duplicate_field", key, field, "the sample has this field twice; rename or remove one of them")
            return
        self._spans[field] = FieldSpan(field, member.offset, member.size, member.xxh3, member.data)

    def _refuse(self, kind: str, key: str, field: str, problem: str) -> None:
        self._key, self._spans, self._refused = None, {}, key
        message = f"shard {self._shard}, key {key!r}, field {field!r}: {problem}"
        self._error = TarFormatError(message, kind=kind, shard=self._shard, key=key, field=field)
