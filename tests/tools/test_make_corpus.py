import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tools.make_corpus import Picture, Source, load_sources, main, make_corpus, make_picture


@pytest.fixture(scope="module")
def sources() -> tuple[Source, ...]:
    """The photographs of the repository, decoded once."""
    return load_sources()


@pytest.fixture(scope="module")
def pictures(sources: tuple[Source, ...]) -> list[Picture]:
    """The first pictures of seed 0."""
    return [make_picture(sources, seed=0, number=number) for number in range(24)]


def names_and_bytes(folder: Path) -> dict[str, bytes]:
    """What lies in ``folder``."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_each_number_gives_one_picture_whatever_else_is_made(tmp_path: Path, sources: tuple[Source, ...]) -> None:
    """A picture depends on seed and number alone, not on how many are made or by how many processes."""
    make_corpus(tmp_path / "one", count=2, seed=3, workers=1)
    make_corpus(tmp_path / "two", count=4, seed=3, workers=2)
    one, two = names_and_bytes(tmp_path / "one"), names_and_bytes(tmp_path / "two")
    assert one == {name: two[name] for name in one}
    assert list(two) == [f"{number:08d}.{field}" for number in range(4) for field in ("jpg", "txt")]
    assert one["00000001.jpg"] == make_picture(sources, seed=3, number=1).jpeg


def test_another_seed_gives_other_pictures(sources: tuple[Source, ...]) -> None:
    """Corpora of two seeds share no picture."""
    assert make_picture(sources, seed=0, number=0).jpeg != make_picture(sources, seed=1, number=0).jpeg


def test_pictures_have_the_sizes_and_weights_of_coco(pictures: list[Picture]) -> None:
    """Long sides are those of COCO in both orientations, JPEGs weigh about 75 KB in the mean, some are progressive."""
    images = [Image.open(io.BytesIO(picture.jpeg)) for picture in pictures]
    assert {max(image.size) for image in images} <= {640, 612, 500}
    assert {np.sign(image.width - image.height) for image in images} >= {-1, 1}
    assert 60_000 < np.mean([len(picture.jpeg) for picture in pictures]) < 90_000
    assert 1 < sum("progressive" in image.info for image in images) < 20


def test_captions_have_a_long_tail(sources: tuple[Source, ...], pictures: list[Picture]) -> None:
    """Every caption opens with that of its photograph, and the longest is several times the median one."""
    openings = tuple(source.caption.rstrip(".") for source in sources)
    lengths = [len(picture.caption) for picture in pictures]
    assert all(picture.caption.startswith(openings) for picture in pictures)
    assert max(lengths) > 2 * np.median(lengths)


def test_existing_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with files in it is never written to, and the message says so."""
    (tmp_path / "mine.txt").write_text("keep")
    assert main([str(tmp_path), "--count", "1", "--workers", "1"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert names_and_bytes(tmp_path) == {"mine.txt": b"keep"}


def test_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """A run that fails on the way leaves neither a folder of its name nor scraps beside it."""
    with pytest.raises(FileNotFoundError):
        make_corpus(tmp_path / "out", count=1, seed=0, workers=1, photos=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_command_is_quiet_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a successful run prints nothing."""
    assert main([str(tmp_path / "out"), "--count", "1", "--workers", "1"]) == 0
    assert capsys.readouterr() == ("", "")
