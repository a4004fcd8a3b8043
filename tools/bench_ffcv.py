"""FFCV's raw mode on decoded 384×384 pictures: prints a line of JSON. Run by ``bench_cache.py`` in FFCV's own
environment.

FFCV reads pictures from a file in its own format, which is written first and not timed.
"""

import argparse
import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

SIZE, BATCH, WORKERS = 384, 32, 2


def pad_resize(data: bytes) -> Any:
    """Longest side to 384, padded with 127, by Pillow: HWC uint8."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    longest = max(image.size)
    width, height = (max(int(side / longest * SIZE), 14) for side in image.size)
    out = np.full((SIZE, SIZE, 3), 127, np.uint8)
    top, left = (SIZE - height) // 2, (SIZE - width) // 2
    out[top : top + height, left : left + width] = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    return out


class Pictures:
    """The first pictures of a data set, for FFCV's writer."""

    def __init__(self, root: str, count: int) -> None:
        self.members: list[tuple[str, int, int]] = []
        for path in sorted(Path(root).glob("*.tar")):
            with tarfile.open(path) as tar:
                self.members += [(str(path), m.offset_data, m.size) for m in tar if m.name.endswith(".jpg")]
        self.members = self.members[:count]

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path, start, size = self.members[number]
        with open(path, "rb") as file:
            file.seek(start)
            return pad_resize(file.read(size)), number


def main() -> None:
    """Write if needed, then time epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("beton")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor
    from ffcv.writer import DatasetWriter

    if not os.path.exists(options.beton):
        fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
        DatasetWriter(options.beton + ".part", fields, num_workers=2).from_indexed_dataset(
            Pictures(options.root, options.count)
        )
        os.rename(options.beton + ".part", options.beton)
    loader = Loader(
        options.beton,
        batch_size=BATCH,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [SimpleRGBImageDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )
    rates = []
    for _ in range(options.epochs):
        began, samples = time.perf_counter(), 0
        for images, _labels in loader:
            samples += images.shape[0]
        rates.append(samples / (time.perf_counter() - began))
    print(json.dumps({"samples_per_s": max(rates[1:])}))


if __name__ == "__main__":
    main()
