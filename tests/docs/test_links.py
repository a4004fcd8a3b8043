import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def local_links(document: Path) -> list[tuple[str, str]]:
    """Path and anchor of each link of ``document`` that leads into the repository."""
    targets = LINK.findall(FENCE.sub("", document.read_text("utf-8")))
    split = (target.partition("#") for target in targets if "://" not in target and not target.startswith("mailto:"))
    return [(path, anchor) for path, _, anchor in split]


def anchors(document: Path) -> set[str]:
    """Anchors of the headings of ``document``, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_local_links_resolve(document: Path) -> None:
    """Every link into the repository leads to a file that exists, and to a heading of it where one is named."""
    for path, anchor in local_links(document):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {path}, which does not exist"
        assert not anchor or anchor in anchors(target), (
            f"{document.name} links to {path}#{anchor}, which has no such heading"
        )


def test_readme_has_one_line_for_each_folder() -> None:
    """The README's table names every package of the library and every other folder, and none that does not exist."""
    named = re.findall(r"^\| `([\w/]+)/` \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    packages = [path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("janus_shards/*/__init__.py")]
    assert sorted(named) == sorted([*packages, "docs", "examples", "tests", "tools"])
