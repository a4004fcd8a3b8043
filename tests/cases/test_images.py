"""Pictures that broke other decoders: each gives the pixels of its case, or the error that says which sample it is."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import janus_shards as js
from janus_shards.decode.image import ImageTransform, decode_image, decode_image16, image_size
from janus_shards.operations.pack import PackOptions, pack
from tests.cases import expectations
from tests.cases.expectations import Found, Input

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    """One picture of a case."""

    given: Input
    entry: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Key of its sample."""
        return str(self.entry["key"])

    @property
    def field(self) -> str:
        """Field that holds it."""
        return str(self.entry["field"])

    def sample(self, opened: Mapping[str, Found]) -> js.Sample:
        """The sample that holds it."""
        return opened[self.given.case.id].dataset.by_key(self.key)

    def drawn(self) -> Pixels:
        """The pixels as they were drawn."""
        pixels: Pixels = np.load(self.given.case.folder / self.entry["ref"])
        return pixels

    def check(self, pixels: Pixels) -> None:
        """Pixels of ``[H, W, 3]`` are those that were drawn, within the tolerance of the case."""
        assert (pixels.dtype, list(pixels.shape)) == (np.dtype(np.uint8), self.entry["shape_hwc"])
        difference = np.abs(pixels.astype(int) - self.drawn().astype(int))
        assert difference.max() <= self.entry["tol_max"]
        assert difference.mean() <= self.entry["tol_mean"]


def pictures(*, having: str = "key", error: bool = False) -> list[Any]:
    """Parameters for pytest: the pictures whose entry has a word, and that decode or fail."""
    inputs = [each.values[0] for each in expectations.inputs("", "images", having="images")]
    found = [Picture(given, entry) for given in inputs for entry in given.entry["images"]]
    return [
        pytest.param(each, id=f"{each.given.case.id}-{each.key}")
        for each in found
        if having in each.entry and ("error" in each.entry) == error
    ]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Found]]:
    """The indexed shard of each case of pictures."""
    scratch = tmp_path_factory.mktemp("images")
    inputs = [each.values[0] for each in expectations.inputs("", "images", having="images")]
    found = {}
    for given in inputs:
        folder = scratch / given.case.id
        folder.mkdir()
        found[given.case.id] = expectations.index(given.file(folder), folder)
    return found


@pytest.mark.parametrize("picture", pictures(having="ref"))
def test_pixels_are_as_drawn(picture: Picture, opened: Mapping[str, Found]) -> None:
    """A picture comes as uint8 ``[H, W, 3]``, upright, with its real colours; or as the error that is right as well."""
    sample = picture.sample(opened)
    error = expectations.field_error(sample, picture.field)
    if error is None:
        picture.check(sample[picture.field])
    else:
        assert error.kind == picture.entry.get("or_error"), error


@pytest.mark.parametrize("engine", ["exact", "pillow"])
@pytest.mark.parametrize("picture", pictures(having="ref"))
def test_rows_of_a_batch_are_chw(picture: Picture, engine: Any, opened: Mapping[str, Found]) -> None:
    """Through a transform of the picture's own size the same pixels come as ``[3, H, W]``, whatever the sides are."""
    height, width, _ = picture.entry["shape_hwc"]
    transform = ImageTransform(size=(height, width), fit="stretch", engine=engine)
    row = np.empty(transform.shape, np.uint8)
    transform.apply(picture.sample(opened).raw(picture.field), row)
    assert row.shape == (3, height, width)
    picture.check(row.transpose(1, 2, 0))


@pytest.mark.parametrize("engine", ["exact", "pillow"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_every_picture_fits_into_a_frame(fit: Any, engine: Any, opened: Mapping[str, Found]) -> None:
    """Strips and single pixels too become rows of one size, and nothing but ``DecodeError`` stops one."""
    transform = ImageTransform(size=(20, 28), fit=fit, engine=engine)
    row = np.empty(transform.shape, np.uint8)
    for picture in (each.values[0] for each in pictures(having="ref")):
        row[:] = 255
        transform.apply(picture.sample(opened).raw(picture.field), row)
        drawn = picture.drawn().reshape(-1, 3)
        # Padding is 127; a picture of one colour stays that colour.
        if len(np.unique(drawn, axis=0)) == 1:
            assert set(np.unique(row)) <= set(drawn[0].tolist()) | {127}


@pytest.mark.parametrize("picture", pictures(having="native"))
def test_deep_values_come_untouched_on_request(picture: Picture, opened: Mapping[str, Found]) -> None:
    """A 16-bit picture gives all its bits when it is asked for them."""
    native, values = picture.entry["native"], decode_image16(picture.sample(opened).raw(picture.field))
    assert (str(values.dtype), list(values.shape)) == (native["dtype"], native["shape"])
    assert hashlib.sha256(values.astype("<u2").tobytes()).hexdigest() == native["sha256_le"]


@pytest.mark.parametrize("picture", pictures(having="ref"))
def test_size_of_the_header_is_that_of_the_pixels(picture: Picture, opened: Mapping[str, Found]) -> None:
    """What is recorded as width and height is what is delivered, turned upright or not."""
    data = picture.sample(opened).raw(picture.field)
    for exif in (True, False):
        height, width, _ = decode_image(data, exif=exif).shape
        assert image_size(data, exif=exif) == (width, height)
    with Image.open(io.BytesIO(data)) as stored:
        assert image_size(data, exif=False) == stored.size


@pytest.mark.parametrize("case", expectations.cases("I"), ids=lambda case: case.id)
def test_packed_sizes_are_those_delivered(case: expectations.Case, tmp_path: Path, opened: Mapping[str, Found]) -> None:
    """``pack`` records for each picture the width and height that decoding delivers."""
    good = [each.values[0] for each in pictures(having="ref") if each.values[0].given.case == case]
    (tmp_path / "in").mkdir()
    for picture in good:
        (tmp_path / "in" / f"{picture.key}.{picture.field}").write_bytes(picture.sample(opened).raw(picture.field))
    pack(str(tmp_path / "in"), str(tmp_path / "out"), options=PackOptions(workers=1))
    dataset = js.open_dataset(str(tmp_path / "out"))
    delivered = [sample[next(iter(sample))].shape[:2] for sample in dataset]
    assert list(zip(dataset.column("height").tolist(), dataset.column("width").tolist(), strict=True)) == delivered


@pytest.mark.parametrize("picture", pictures(error=True))
def test_bad_picture_is_named(picture: Picture, opened: Mapping[str, Found]) -> None:
    """The error has the kind of the case and names shard and key; the sample's other fields stay readable."""
    sample = picture.sample(opened)
    error = expectations.field_error(sample, picture.field)
    outcome = {"kind": picture.entry["error"], "mentions": [picture.key, picture.field]}
    assert not expectations.error_problem(error, outcome, picture.given.name)
    assert all(isinstance(sample[name], str) for name in sample if name != picture.field)


@pytest.mark.parametrize("given", expectations.inputs("I", "images", having="on_skip_policy"))
def test_bad_pictures_are_skipped_and_counted(given: Input, opened: Mapping[str, Found]) -> None:
    """With a skip policy the run goes on: the good ones are delivered, and the others counted and reported."""
    dataset = opened[given.case.id].dataset
    options = js.LoaderOptions(on_bad="skip", on_missing="none", tail="uneven", threads=1)
    loader = js.open_loader(dataset, batch_size=1, shuffle=None, options=options)
    with pytest.warns(UserWarning, match="bad sample"):
        delivered = [batch.keys[0] for batch in loader if batch.valid[0]]
    assert delivered == given.entry["on_skip_policy"]
    assert loader.stats()["bad"]["skipped"] == given.entry["skipped"]
