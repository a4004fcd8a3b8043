"""The contract of a storage. A backend's test class inherits ``StorageContract`` and says how to make an empty one."""

import pickle
from pathlib import Path

import pytest

from janus_shards.errors import IntegrityError, ObjectNotFoundError, StorageError
from janus_shards.sample import RawBytes
from janus_shards.storage.base import Storage

BYTES = bytes(range(256)) * 4
NAMES = ["Z.tar", "a.tar", "a/b.tar", "a/c d/e+f.tar", "b%25#?;&='.tar", "naïve/图-01.tar", "{x}.tar"]


class StorageContract:
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        """An empty storage."""
        raise NotImplementedError

    def test_object_comes_back_as_written(self, storage: Storage) -> None:
        """What was put is read back, and its size and ETag are told."""
        meta = storage.put("sub/x.tar", BYTES)
        assert bytes(storage.read("sub/x.tar")) == BYTES
        assert meta == storage.head("sub/x.tar")
        assert (meta.name, meta.size, bool(meta.etag)) == ("sub/x.tar", 1024, True)

    @pytest.mark.parametrize(("start", "stop"), [(0, 1024), (0, 1), (1023, 1024), (7, 300), (5, 5), (1000, None)])
    def test_ranges_are_exact(self, storage: Storage, start: int, stop: int | None) -> None:
        """A read returns exactly the bytes asked for."""
        storage.put("x.tar", BYTES)
        assert bytes(storage.read("x.tar", start, stop)) == BYTES[start:stop]

    @pytest.mark.parametrize(("start", "stop"), [(1000, 1025), (1024, 1030), (2000, 2001)])
    def test_short_reads_are_errors(self, storage: Storage, start: int, stop: int) -> None:
        """A range behind the end of the object never returns fewer bytes; the error names the object."""
        storage.put("x.tar", BYTES)
        with pytest.raises(IntegrityError, match=r"x\.tar") as caught:
            storage.read("x.tar", start, stop)
        assert caught.value.kind == "truncated_shard"

    def test_missing_objects_are_named(self, storage: Storage) -> None:
        """Every way of reading an object that is not there says so."""
        storage.put("x.tar", BYTES)
        for read in (storage.head, storage.read, lambda name: next(storage.stream(name))):
            with pytest.raises(ObjectNotFoundError, match=r"no/y\.tar"):
                read("no/y.tar")

    def test_stream_returns_everything_in_pieces(self, storage: Storage) -> None:
        """A stream is the whole object in order, in pieces of bounded size; an empty object has none."""
        storage.put("x.tar", BYTES)
        storage.put("empty.tar", b"")
        pieces: list[RawBytes] = list(storage.stream("x.tar", chunk_bytes=300))
        assert b"".join(pieces) == BYTES
        assert max(map(len, pieces)) <= 300
        assert b"".join(storage.stream("empty.tar")) == bytes(storage.read("empty.tar")) == b""

    def test_changed_object_is_noticed(self, storage: Storage) -> None:
        """Bytes of another version than the one opened are never returned."""
        old = storage.put("x.tar", BYTES)
        assert bytes(storage.read("x.tar", 0, 4, etag=old.etag)) == BYTES[:4]
        new = storage.put("x.tar", BYTES[::-1])
        with pytest.raises(IntegrityError, match=r"x\.tar") as caught:
            storage.read("x.tar", 0, 4, etag=old.etag)
        assert caught.value.kind == "shard_changed"
        assert bytes(storage.read("x.tar", 0, 4, etag=new.etag)) == BYTES[::-1][:4]

    def test_put_if_absent_lets_one_win(self, storage: Storage) -> None:
        """A name that is taken stays as it is."""
        storage.put("x.tar", b"first", if_absent=True)
        with pytest.raises(StorageError, match=r"x\.tar") as caught:
            storage.put("x.tar", b"second", if_absent=True)
        assert caught.value.kind == "conflict"
        assert bytes(storage.read("x.tar")) == b"first"

    def test_put_if_match_lets_one_win(self, storage: Storage) -> None:
        """Of two writers that saw one version the second is refused, as is one whose object is gone."""
        seen = storage.put("x.tar", b"zero")
        storage.put("x.tar", b"first", if_match=seen.etag)
        for name in ("x.tar", "gone.tar"):
            with pytest.raises(StorageError) as caught:
                storage.put(name, b"second", if_match=seen.etag)
            assert caught.value.kind in ("conflict", "not_found")
        assert bytes(storage.read("x.tar")) == b"first"
        assert [meta.name for meta in storage.list()] == ["x.tar"]

    @pytest.mark.parametrize("name", NAMES)
    def test_names_are_bytes_not_urls(self, storage: Storage, name: str) -> None:
        """Spaces, signs and letters of any script are part of a name and mean nothing else."""
        storage.put(name, name.encode())
        assert bytes(storage.read(name, 0, len(name.encode()))) == name.encode()
        assert [meta.name for meta in storage.list()] == [name]

    def test_listing_is_in_name_order(self, storage: Storage) -> None:
        """Objects come in the order of their UTF-8 names, those of a prefix only."""
        for name in NAMES:
            storage.put(name, b"x")
        assert [meta.name for meta in storage.list()] == sorted(NAMES, key=str.encode)
        assert [meta.name for meta in storage.list("a")] == ["a.tar", "a/b.tar", "a/c d/e+f.tar"]
        assert [meta.name for meta in storage.list("a/")] == ["a/b.tar", "a/c d/e+f.tar"]
        assert [meta.name for meta in storage.list("a/b")] == ["a/b.tar"]
        assert list(storage.list("no/")) == list(storage.list("no")) == []

    def test_deleted_objects_are_gone(self, storage: Storage) -> None:
        """Deleting takes the object away, and taking away what is not there is fine."""
        storage.put("x.tar", BYTES)
        storage.delete("x.tar")
        storage.delete("x.tar")
        assert list(storage.list()) == []

    def test_upload_appears_when_finished(self, storage: Storage) -> None:
        """Until it is finished an upload is not to be seen; then it is whole, several parts or none."""
        for pieces in ([b"a" * 2**20] * 12, [b"small", memoryview(b"er")], []):
            with storage.open_upload("sub/up.tar") as upload:
                for piece in pieces:
                    upload.write(piece)
                assert list(storage.list()) == []
                meta = upload.finish()
            assert meta == storage.head("sub/up.tar")
            assert b"".join(storage.stream("sub/up.tar")) == b"".join(pieces)
            storage.delete("sub/up.tar")

    def test_upload_replaces_whole_or_not_at_all(self, storage: Storage) -> None:
        """An aborted upload leaves the object it was to replace as it was, and nothing else."""
        storage.put("up.tar", b"old")
        upload = storage.open_upload("up.tar")
        upload.write(b"a" * (9 * 2**20))
        upload.abort()
        upload.abort()
        assert bytes(storage.read("up.tar")) == b"old"
        assert [meta.name for meta in storage.list()] == ["up.tar"]

    def test_exception_aborts_an_upload(self, storage: Storage) -> None:
        """Leaving the block by an exception drops what was written; the upload is closed then."""
        with pytest.raises(KeyError), storage.open_upload("up.tar") as upload:  # noqa: PT012 - the block is what is tested
            upload.write(b"half")
            raise KeyError
        assert list(storage.list()) == []
        with pytest.raises(StorageError):
            upload.write(b"more")

    def test_storage_pickles_without_secrets(self, storage: Storage) -> None:
        """A storage travels to other processes after use, small and without keys."""
        storage.put("x.tar", BYTES)
        data = pickle.dumps(storage)
        assert b"test-secret" not in data
        assert "test-secret" not in repr(storage)
        assert len(data) < 4096
        copy: Storage = pickle.loads(data)
        assert copy.url == storage.url
