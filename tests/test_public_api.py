"""The documented examples of the public faces, run as they are written, against an S3 server."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import janus_shards as js
from tests.conftest import S3Server

NUM_SAMPLES = 1000


def encoded(number: int) -> bytes:
    """A small JPEG."""
    target = io.BytesIO()
    Image.fromarray(np.full((24, 32, 3), number % 256, np.uint8)).save(target, "JPEG")
    return target.getvalue()


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """URL of a data set of 1,000 samples, written as in the documentation."""
    url = s3_server.create_bucket("public-api") + "/train"
    options = {
        "endpoint_url": s3_server.endpoint,
        "region": "us-east-1",
        "aws_access_key_id": s3_server.access_key_id,
        "aws_secret_access_key": s3_server.secret_access_key,
    }
    jpegs = [encoded(number) for number in range(4)]
    with js.ShardWriter(
        url, prefix="train", max_shard_bytes=256 * 2**20, max_samples=None, storage_options=options
    ) as writer:
        for number in range(NUM_SAMPLES):
            writer.write(
                {
                    "__key__": f"{number:06d}",
                    "jpg": jpegs[number % 4],
                    "txt": "a cat",
                    "json": {"license": "cc0"},
                },
                columns={"tokens": 17, "width": 500 + number % 30},
            )
    return url


def test_random_access(bucket: str, s3_env: S3Server) -> None:
    """Opening, lazy fields, keys, views and merged reads."""
    ds = js.open_dataset(bucket)
    assert (len(ds), ds.fields, ds.columns) == (
        NUM_SAMPLES,
        ("jpg", "json", "txt"),
        {"tokens": "int64", "width": "int64"},
    )
    assert len(ds.fingerprint) == 64
    sample = ds[123]
    assert sample.key == "000123"
    assert sample.raw("jpg").startswith(b"\xff\xd8")
    assert sample["jpg"].shape == (24, 32, 3)
    assert sample["txt"] == "a cat"
    assert ds.by_key("000001")["json"] == {"license": "cc0"}
    wide = ds.where(ds.column("width") >= 512)
    train, val = ds.split(0.99, seed=0)
    assert len(train) + len(val) == NUM_SAMPLES
    assert len(wide.take(10, seed=0)) == 10
    rows = ds.read([5, 900, 7], fields=("txt",))
    assert [row.key for row in rows] == ["000005", "000900", "000007"]


def test_streaming(bucket: str, s3_env: S3Server) -> None:
    """One pass is one epoch, of tensors and lists, with a state that another loader goes on from."""
    loader = js.open_loader(
        bucket,
        batch_size=32,
        fields=("jpg", "txt"),
        transform={"jpg": js.ImageTransform(size=384, fit="pad", engine="exact")},
        shuffle=True,
        seed=7,
        world=js.World(rank=0, world_size=1),
        device=None,
        options=js.LoaderOptions(threads=2),
    )
    assert len(loader) == loader.steps_left == 31
    for batch in loader:
        assert batch["jpg"].dtype == torch.uint8
        assert tuple(batch["jpg"].shape) == (32, 3, 384, 384)
        assert batch["txt"] == ["a cat"] * 32
        assert (len(batch.keys), batch.sample_ids.dtype, batch.valid.dtype) == (32, torch.int64, torch.bool)
        break
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert loader.steps_left == 30
    assert next(iter(loader)).keys != batch.keys
    assert {"samples", "store", "ledger"} <= set(loader.stats())
    loader.close()


@pytest.mark.slow
def test_inside_torchs_own_loader(bucket: str, s3_env: S3Server) -> None:
    """The iterable gives the loader's stream to ``DataLoader`` workers, which open the store themselves."""
    dataset = js.TorchIterable(bucket, batch_size=32, fields=("txt",))
    workers = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    found = [batch.keys for batch in workers]
    assert found == [batch.keys for batch in js.open_loader(bucket, batch_size=32, fields=("txt",))]


def test_local_folder(tmp_path: Path) -> None:
    """Pictures from arrays and from PIL, and every other value, come back from a local folder."""
    picture = np.zeros((8, 8, 3), np.uint8)
    with js.ShardWriter(str(tmp_path / "out"), prefix="train") as writer:
        writer.write(
            {
                "__key__": "000001",
                "png": picture,
                "jpg": Image.fromarray(picture),
                "cls": 3,
                "npy": np.arange(4),
                "msgpack": {"a": [1]},
            }
        )
    sample = js.open_dataset(str(tmp_path / "out"))[0]
    assert (sample["png"] == picture).all()
    assert sample["jpg"].shape == (8, 8, 3)
    assert (sample["cls"], sample["npy"].tolist(), sample["msgpack"]) == (3, [0, 1, 2, 3], {"a": [1]})
