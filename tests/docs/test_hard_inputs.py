import re
from pathlib import Path

from tests.cases import expectations

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "hard-inputs.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in TEXT.splitlines() if line.startswith("| ")
]
SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "janus_shards").rglob("*.py"))


def told(cell: str) -> set[str]:
    """Words in backticks of a cell that look like a kind."""
    return set(re.findall(r"`([a-z_]+)`", cell))


def test_every_kind_is_one_of_the_library() -> None:
    """What the third column calls a kind or a warning is one that the source has."""
    for row in ROWS:
        for kind in told(row[2]) - {"index", "reshard"}:
            assert f'"{kind}"' in SOURCE or f'"{kind}: ' in SOURCE, f"{kind}: {row[0]}"


def test_every_kind_of_the_cases_is_described() -> None:
    """Each error that a case asks for has its row."""
    assert set(expectations.ERRORS) <= {kind for row in ROWS for kind in told(row[2])}


def test_rows_are_whole() -> None:
    """Every row has its four cells, and says what comes of the input."""
    assert len(ROWS) > 80
    for row in ROWS:
        assert len(row) == 4, row
        assert row[0], row
        assert row[1], row
