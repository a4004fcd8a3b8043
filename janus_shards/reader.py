"""Random access to the samples of a data set, and views of it.

Opening reads the manifest only; an index is read when a row of its shard is asked for, and bytes when a field is.
"""

import glob
import hashlib
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from janus_shards.catalog import Catalog, open_catalog
from janus_shards.decode.lazy import Sample
from janus_shards.errors import ConfigError, DecodeError, MissingFieldError
from janus_shards.format.columns import Strings
from janus_shards.format.index import FieldSpan
from janus_shards.order.seeds import Tag, derive, derive_each
from janus_shards.sample import RawBytes
from janus_shards.storage.base import StorageOptions
from janus_shards.storage.ranges import plan_ranges

# Reading a gap of this size costs less than another request on every store that was measured.
_MAX_GAP_BYTES = 256 << 10
# Tar headers, padding and a caption between two wanted fields.
_FREE_GAP_BYTES = 4 << 10


class Dataset:
    """Samples by position: a whole data set, or a view of one.

    A view is a set of sample ids in ascending order. Its fingerprint covers the base and the ids.

    Attributes:
        catalog: Shards and indexes behind it.
        ids: Sample ids of the view, int64, ascending; ``None`` for the whole data set.
    """

    def __init__(self, catalog: Catalog, *, ids: NDArray[np.int64] | None = None) -> None:
        self.catalog = catalog
        self.ids = ids
        self._by_key: _KeyTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The key table is as large as the data set, and quickly made again.
        return {**self.__dict__, "_by_key": None}

    def __len__(self) -> int:
        return self.catalog.num_samples if self.ids is None else len(self.ids)

    def __repr__(self) -> str:
        return f"Dataset({self.url!r}, {len(self)} samples in {len(self.catalog.manifest.shards)} shards)"

    def __getitem__(self, position: int) -> Sample:
        """The sample at a position, lazily: nothing is read but its index.

        Raises:
            IndexError: The position is outside ``-len .. len - 1``.
        """
        at = operator.index(position)
        if not -len(self) <= at < len(self):
            raise IndexError(f"{self.url}: there is no position {at} in {len(self)} samples")
        at %= len(self)
        return self._sample(at if self.ids is None else int(self.ids[at]))

    def __iter__(self) -> Iterator[Sample]:
        return (self[position] for position in range(len(self)))

    @property
    def url(self) -> str:
        """Root of the shards, without credentials."""
        return self.catalog.storage.url

    @property
    def fields(self) -> tuple[str, ...]:
        """All field names that occur."""
        return tuple(self.catalog.manifest.fields)

    @property
    def columns(self) -> dict[str, str]:
        """Dtype by metadata column: ``bool``, ``int64``, ``float64`` or ``str``."""
        return dict(self.catalog.manifest.columns)

    @property
    def fingerprint(self) -> str:
        """Identity of the contents, 64 hex digits; a copy elsewhere has the same."""
        return self.prefix_fingerprint(len(self.catalog.manifest.shards))

    def prefix_fingerprint(self, num_shards: int) -> str:
        """What ``fingerprint`` was when the data set had only its first ``num_shards`` shards."""
        base = self.catalog.manifest.fingerprint(num_shards)
        if self.ids is None:
            return base
        known = self.ids[self.ids < self.catalog.row_starts[num_shards]]
        ids = np.ascontiguousarray(known, dtype="<i8").tobytes()
        return hashlib.sha256(b"janus-shards view 1\n" + bytes.fromhex(base) + ids).hexdigest()

    def by_key(self, key: str) -> Sample:
        """The sample with this key.

        The first call reads every index and keeps 12 bytes a row.

        Raises:
            KeyError: No sample of the data set, or of the view, has this key.
        """
        if self._by_key is None:
            self._by_key = _KeyTable.of(self)
        for sample_id in self._by_key.candidates(key):
            sample = self._sample(sample_id)
            if sample.key == key:
                return sample
        raise MissingFieldError(f"{self.url}: no sample has the key {key!r}", kind="missing_key", key=key)

    def keys(self) -> Iterator[str]:
        """All keys, in order, an index at a time."""
        for shard, rows in self._rows_by_shard():
            yield from self.catalog.index(shard).keys.texts(rows)

    def column(self, name: str) -> NDArray[Any]:
        """One metadata column over all samples.

        Returns:
            Shape ``(len(self),)``; bool, int64, float64, or ``object`` holding ``str``.

        Raises:
            ConfigError: There is no such column.
        """
        if name not in self.columns:
            raise ConfigError(
                f"{self.url}: expected one of the columns {sorted(self.columns)}, found {name!r}", kind="bad_column"
            )
        parts = [self._column_part(shard, rows, name) for shard, rows in self._rows_by_shard()]
        empty = np.empty(0, dtype=object if self.columns[name] == "str" else self.columns[name])
        return np.concatenate(parts) if parts else empty

    def _column_part(self, shard: int, rows: NDArray[np.int64], name: str) -> NDArray[Any]:
        column = self.catalog.index(shard).columns[name]
        return np.array(column.texts(rows), dtype=object) if isinstance(column, Strings) else column[rows]

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int]) -> "Dataset":
        """A view of some samples; no bytes are read.

        Args:
            chosen: Boolean mask over this data set, shape ``(len(self),)``, or sample ids of the base in any order.

        Raises:
            ConfigError: The mask has another length, an id is not in this data set, or they are neither mask nor ids.
        """
        chosen = np.asarray(chosen)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise ConfigError(f"{self.url}: where: expected a mask of shape ({len(self)},), found {chosen.shape}")
            positions = np.flatnonzero(chosen)
            return Dataset(self.catalog, ids=positions if self.ids is None else self.ids[positions])
        ids = np.unique(self._checked_ids("where", chosen))
        known = (ids >= 0) & (ids < self.catalog.num_samples) if self.ids is None else np.isin(ids, self.ids)
        if not known.all():
            raise ConfigError(f"{self.url}: where: sample id {int(ids[~known][0])} is not in this data set")
        return Dataset(self.catalog, ids=ids)

    def exclude(self, report: str | Path) -> "Dataset":
        """A view without the bad samples that a loader reported (``BadSamples(report=...)``).

        Args:
            report: The report, or a pattern such as ``bad*.jsonl`` for those of several ranks.

        Raises:
            ConfigError: There is no such file, a line is no record of a report, or a key is not in the data set.
        """
        paths = sorted(glob.glob(str(report)))
        if not paths:
            raise ConfigError(f"exclude: there is no file {report}")
        bad = {self._reported(sample_id, key) for path in paths for sample_id, key in _read_report(path)}
        ids = np.arange(len(self)) if self.ids is None else self.ids
        return Dataset(self.catalog, ids=ids[~np.isin(ids, sorted(bad))])

    def _reported(self, sample_id: int, key: str) -> int:
        """Id of a reported sample; ids move when shards are written anew, keys do not."""
        if 0 <= sample_id < self.catalog.num_samples and self._sample(sample_id).key == key:
            return sample_id
        try:
            return self.by_key(key).sample_id
        except KeyError as exc:
            raise ConfigError(f"exclude: {self.url} has no key {key!r}; the report is of another data set") from exc

    def take(self, n: int, *, seed: int = 0) -> "Dataset":
        """A view of ``n`` samples chosen at random, the same ones for the same seed.

        Raises:
            ConfigError: ``n`` is negative or there are fewer samples.
        """
        if not 0 <= n <= len(self):
            raise ConfigError(f"{self.url}: take({n}): expected 0 to {len(self)} samples")
        ids = np.arange(len(self)) if self.ids is None else self.ids
        ranks = np.argsort(derive_each(derive(seed, Tag.TAKE), ids), kind="stable")
        return Dataset(self.catalog, ids=np.sort(ids[ranks[:n]]))

    def split(self, fraction: float, *, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two views by the hash of each key: a sample stays on its side when the data set grows.

        Args:
            fraction: Expected share of the first view, 0 to 1.
            seed: Another seed deals the keys anew.
        """
        if not 0 <= fraction <= 1:
            raise ConfigError(f"{self.url}: split({fraction}): expected a fraction from 0 to 1")
        salt = derive(seed, Tag.SPLIT)
        hashes = [xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"), seed=salt) for key in self.keys()]
        first = np.array(hashes, dtype=np.uint64).astype(np.float64) < fraction * 2.0**64
        return self.where(first), self.where(~first)

    def read(
        self, sample_ids: Sequence[int] | NDArray[np.int64], *, fields: Sequence[str] | None = None
    ) -> list[Sample]:
        """Many samples with their bytes, in the order asked; neighbouring ranges are read together.

        Args:
            sample_ids: Ids of the base data set.
            fields: Fields to read now; all when not given. Others of the same samples are read at first use.

        Raises:
            ConfigError: An id is outside of the data set, or no sample has such a field.
        """
        ids = self._checked_ids("read", sample_ids)
        self.check_fields(fields)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.catalog.num_samples):
            raise ConfigError(f"{self.url}: read: expected sample ids from 0 to {self.catalog.num_samples - 1}")
        samples: dict[int, Sample] = {}
        shards, rows = self.catalog.locate(ids)
        for shard in np.unique(shards).tolist():
            for row, fetched in self._fetch_rows(shard, np.unique(rows[shards == shard]), fields).items():
                sample_id = int(self.catalog.row_starts[shard]) + row
                samples[sample_id] = self._sample(sample_id, fetched)
        return [samples[sample_id] for sample_id in ids.tolist()]

    def check_fields(self, fields: Sequence[str] | None) -> None:
        """Refuse a request for fields that no sample has.

        Raises:
            ConfigError: Kind ``missing_field``, naming the fields there are; or ``fields`` is a single text.
        """
        if isinstance(fields, str):
            raise ConfigError(f"fields={fields!r}: expected several names, such as fields=({fields!r},)")
        unknown = sorted(set(fields or ()) - set(self.fields))
        if unknown:
            raise ConfigError(
                f"fields: {self.url} has no field {unknown[0]!r}; it has {', '.join(self.fields)}",
                kind="missing_field",
            )

    def _checked_ids(self, method: str, values: object) -> NDArray[np.int64]:
        ids = np.asarray(values)
        # An empty list makes an array of floats.
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ConfigError(
                f"{self.url}: {method}: expected sample ids as integers in one dimension, found {ids.dtype} of shape "
                f"{ids.shape}"
            )
        return ids.astype(np.int64)

    def _fetch_rows(
        self, shard: int, rows: NDArray[np.int64], fields: Sequence[str] | None
    ) -> dict[int, dict[str, RawBytes]]:
        """Bytes by row and field, for the fields that are not inline, over merged ranges of one shard."""
        index = self.catalog.index(shard)
        fetched: dict[int, dict[str, RawBytes]] = {row: {} for row in rows.tolist()}
        wanted = [(row, s) for row in fetched for s in index.fields_of(row) if s.data is None and _is_wanted(s, fields)]
        starts = np.array([span.offset for _, span in wanted], dtype=np.int64)
        stops = starts + np.array([span.size for _, span in wanted], dtype=np.int64)
        plan = plan_ranges(starts, stops, max_gap=_MAX_GAP_BYTES, max_waste=1.0, free_gap=_FREE_GAP_BYTES)
        bodies = [
            memoryview(self.catalog.read(shard, start, stop))
            for start, stop in zip(plan.starts.tolist(), plan.stops.tolist(), strict=True)
        ]
        for (row, span), merged in zip(wanted, plan.range_of.tolist(), strict=True):
            begin = span.offset - int(plan.starts[merged])
            fetched[row][span.field] = bodies[merged][begin : begin + span.size]
        return fetched

    def _sample(self, sample_id: int, fetched: Mapping[str, RawBytes] | None = None) -> Sample:
        shards, rows = self.catalog.locate(np.array([sample_id]))
        shard, row = int(shards[0]), int(rows[0])
        index = self.catalog.index(shard)
        spans = {span.field: span for span in index.fields_of(row)}
        return Sample(
            key=index.key(row),
            sample_id=sample_id,
            fields=tuple(spans),
            raw=_FieldReader(self.catalog, shard, spans, fetched or {}, index.key(row)),
            shard=self.catalog.shard(shard).name,
        )

    def _rows_by_shard(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Shard numbers and the rows of this view in them, in order."""
        starts = self.catalog.row_starts
        for shard in range(len(starts) - 1):
            if self.ids is None:
                rows = np.arange(int(starts[shard + 1] - starts[shard]))
            else:
                first, last = np.searchsorted(self.ids, starts[shard : shard + 2])
                rows = self.ids[first:last] - starts[shard]
            if len(rows):
                yield shard, rows


def _is_wanted(span: FieldSpan, fields: Sequence[str] | None) -> bool:
    return fields is None or span.field in fields


class _FieldReader:
    """Reads the bytes of one field of one sample, and checks them against the index."""

    __slots__ = ("_catalog", "_fetched", "_key", "_shard", "_spans")

    def __init__(
        self, catalog: Catalog, shard: int, spans: Mapping[str, FieldSpan], fetched: Mapping[str, RawBytes], key: str
    ) -> None:
        self._catalog = catalog
        self._shard = shard
        self._spans = spans
        self._fetched = fetched
        self._key = key

    def __call__(self, field: str) -> RawBytes:
        span = self._spans[field]
        if span.data is not None:
            return span.data
        data = self._fetched.get(field)
        if data is None:
            data = self._catalog.read(self._shard, span.offset, span.offset + span.size)
        if xxhash.xxh3_64_intdigest(data) != span.xxh3:
            raise checksum_error(self._catalog, self._shard, self._key, field)
        return data


def _read_report(path: str) -> Iterator[tuple[int, str]]:
    """Sample ids and keys of the records of a report."""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                yield int(record["sample_id"]), str(record["key"])
            except (ValueError, TypeError, KeyError) as exc:
                raise ConfigError(
                    f"{path}, line {number}: expected a JSON record with sample_id and key, as in a loader's report"
                ) from exc


def checksum_error(catalog: Catalog, shard: int, key: str, field: str) -> DecodeError:
    """The error for bytes that are not those that were indexed."""
    return DecodeError(
        f"shard {catalog.shard_url(shard)}, key {key!r}, field {field!r}: the bytes are not those that were indexed "
        "(XXH3-64 differs); the shard was changed or is damaged: run `janus-shards verify --full`",
        kind="index_mismatch",
        shard=catalog.shard(shard).name,
        key=key,
        field=field,
    )


class _KeyTable:
    """Sample ids by the hash of their key."""

    def __init__(self, hashes: NDArray[np.uint64], ids: NDArray[np.int64]) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._ids = ids[order]

    @classmethod
    def of(cls, dataset: Dataset) -> "_KeyTable":
        hashes = np.fromiter(map(_key_hash, dataset.keys()), dtype=np.uint64, count=len(dataset))
        return cls(hashes, np.arange(len(dataset)) if dataset.ids is None else dataset.ids)

    def candidates(self, key: str) -> list[int]:
        """Ids whose key has the same hash; nearly always at most one."""
        wanted = np.uint64(_key_hash(key))
        first, last = (
            np.searchsorted(self._hashes, [wanted], "left")[0],
            np.searchsorted(self._hashes, [wanted], "right")[0],
        )
        return [int(sample_id) for sample_id in self._ids[first:last]]


def _key_hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


def open_dataset(
    url: str,
    *,
    storage_options: Mapping[str, Any] | StorageOptions | None = None,
    index_url: str | None = None,
    generation: int | None = None,
    fingerprint: str | None = None,
) -> Dataset:
    """Open a data set for random access; reads the manifest and nothing else.

    Args:
        url: Root: a local folder or an object-store URL such as ``s3://bucket/train``.
        storage_options: Endpoint, region, credentials and the like; see ``StorageOptions``.
        index_url: Root of manifest and indexes when they are kept elsewhere.
        generation: Pin a generation of the manifest instead of the newest.
        fingerprint: Refuse other contents than these.

    Raises:
        ObjectNotFoundError: There is no data set here.
        ManifestError: The manifest is damaged.
        AccessDeniedError: The store refused access.
    """
    return Dataset(
        open_catalog(
            url, storage_options=storage_options, index_url=index_url, generation=generation, fingerprint=fingerprint
        )
    )
