"""Folders become samples by the sample rule, in an order that no file system decides."""

import random

import pytest

from janus_shards.errors import ConfigError, FormatError, MissingFieldError
from janus_shards.operations.folders import SourceFile
from janus_shards.operations.sources import DotRule, SourcePlan, natural_order, plan_folder


def plan(*names: str, allow_missing: bool = False, dots: DotRule = "field") -> SourcePlan:
    """Plan a folder of files with these names."""
    files = [SourceFile(name, 10 + len(name)) for name in names]
    random.Random(0).shuffle(files)
    return plan_folder(files, folder="photos", allow_missing=allow_missing, dots=dots)


def fields(plan: SourcePlan) -> dict[str, list[str]]:
    """Field names by key."""
    return {sample.key: [part.field for part in sample.parts] for sample in plan.samples}


def test_files_of_one_stem_are_one_sample() -> None:
    """Key and fields follow the sample rule, folders included; fields are lower case."""
    found = plan("a/1.jpg", "a/1.txt", "b/1.JPG", "b/1.txt")
    assert fields(found) == {"a/1": ["jpg", "txt"], "b/1": ["jpg", "txt"]}
    assert [part.path for part in found.samples[1].parts] == ["b/1.JPG", "b/1.txt"]


def test_samples_are_in_natural_order_whatever_order_files_come_in() -> None:
    """``img2`` comes before ``img10``."""
    found = plan("img10.jpg", "img2.jpg", "img1.jpg", "img02.jpg", "a/img3.jpg")
    assert list(fields(found)) == ["a/img3", "img1", "img02", "img2", "img10"]


def test_natural_order_has_no_ties() -> None:
    """Names that read as the same numbers still have one order."""
    assert natural_order("a01") < natural_order("a1") != natural_order("a01")


def test_pictures_of_any_format_agree() -> None:
    """A folder may mix JPEG and PNG; each keeps its own field."""
    assert fields(plan("a.jpg", "a.txt", "b.png", "b.txt")) == {"a": ["jpg", "txt"], "b": ["png", "txt"]}


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["a.jpg", "a.txt", "b.jpg", "b.txt", "c.txt"], "'c.txt' has no image beside it"),
        (["a.jpg", "a.txt", "b.jpg", "b.txt", "c.png"], "'c.png' has no txt beside it"),
        (["a.jpg", "a.txt", "b.jpg", "b.txt", "README.md"], "'README.md' has no image and no txt"),
        (["a.jpg", "b.jpg", "c.jpg", "c.json"], "'c.jpg' of key 'c' has also json"),
        (["a.txt", "b.jpg", "b.txt"], "'a.txt' has no image"),
    ],
)
def test_sample_that_lacks_a_field_is_named(names: list[str], named: str) -> None:
    """A caption without image or an image without caption ends the run, naming the file; it can be allowed."""
    with pytest.raises(MissingFieldError, match=named):
        plan(*names)
    assert len(plan(*names, allow_missing=True).samples) == len({name.split(".")[0] for name in names})


def test_only_the_first_ten_of_many_are_named() -> None:
    """A message stays readable when thousands of captions are missing."""
    captioned = [f"a{n}.{field}" for n in range(40) for field in ("jpg", "txt")]
    with pytest.raises(MissingFieldError, match=r"b9\.jpg.* and 15 more") as caught:
        plan(*captioned, *(f"b{n}.jpg" for n in range(25)))
    assert "b10.jpg" not in str(caught.value)


def test_names_that_only_look_the_same_are_told() -> None:
    """Names that differ in the Unicode form of an accent make no pair, and the error says so."""
    with pytest.raises(MissingFieldError, match=r"'cafe\\u0301' and 'caf\\xe9' differ in nothing but the Unicode form"):
        plan("a.jpg", "a.txt", "b.jpg", "b.txt", "caf\u00e9.jpg", "cafe\u0301.txt")


def test_fields_that_differ_in_case_only_are_refused() -> None:
    """``a.jpg`` beside ``a.JPG`` would be one field twice."""
    with pytest.raises(FormatError, match=r"'a.JPG' and 'a.jpg'") as caught:
        plan("a.jpg", "a.JPG")
    assert caught.value.kind == "duplicate_field"


def test_dot_in_a_stem_is_said_with_the_key_and_field_it_gave() -> None:
    """The sample rule cuts at the first dot, as webdataset does; the user is told and offered the other way."""
    found = plan("a.v2.jpg", "b.v2.jpg")
    assert fields(found) == {"a": ["v2.jpg"], "b": ["v2.jpg"]}
    assert "'a.v2.jpg', which became field 'v2.jpg' of key 'a'" in found.warnings[0]
    assert "--dots replace" in found.warnings[0]


def test_dots_of_a_stem_can_be_replaced() -> None:
    """With ``replace`` only the extension is the field; dots of folders stay; two names that then meet are refused."""
    found = plan("v1.0/a.v2.jpg", "v1.0/b.jpg", dots="replace")
    assert fields(found) == {"v1.0/a_v2": ["jpg"], "v1.0/b": ["jpg"]}
    assert "'v1.0/a_v2'" in found.warnings[0]
    with pytest.raises(FormatError, match=r"a\.b\.jpg"):
        plan("a.b.jpg", "a_b.jpg", dots="replace")


def test_files_of_no_sample_are_ignored_and_counted() -> None:
    """Names without a dot and what Windows leaves in folders are no samples."""
    found = plan("a.jpg", "LICENSE", "Thumbs.db", "x/desktop.ini", "__MACOSX/a.jpg")
    assert list(fields(found)) == ["a"]
    assert "4 files ignored" in found.warnings[0]


@pytest.mark.parametrize("name", ["a..jpg", "\udcff.jpg", "a.jpg__"])
def test_name_that_cannot_be_stored_is_refused(name: str) -> None:
    """A file whose name would not come back from the tar is named."""
    with pytest.raises(ConfigError, match="cannot be packed under its name"):
        plan(name)


def test_folder_without_samples_is_refused() -> None:
    """An empty folder is a mistake."""
    with pytest.raises(ConfigError, match="found no files") as caught:
        plan("LICENSE")
    assert caught.value.kind == "empty_dataset"
