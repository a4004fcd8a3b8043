from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--size", "0", "expected pixels"),
        ("--size", "384x", "expected pixels"),
        ("--size", "1x2x3", "expected pixels"),
        ("--fields", "jpg,,txt", "expected names"),
        ("--world", "2", "expected a rank"),
        ("--world", "2/2", "0 <= rank < 2"),
        ("--world", "-1/2", "expected a rank"),
        ("--batch-size", "0", "--batch-size"),
        ("--epochs", "many", "--epochs"),
        ("--shuffle", "yes", "--shuffle"),
        ("--seed", "x", "--seed"),
    ],
)
def test_stream_refuses_values(error_line: Callable[..., str], option: str, value: str, expected: str) -> None:
    """A value that cannot work is refused with what was expected, before anything is read."""
    assert expected in error_line("stream", "nowhere", option, value, code=2)


@pytest.mark.parametrize("value", ["12XB", "-1", "0", "", "1.5.5MB"])
def test_sizes_are_checked(error_line: Callable[..., str], value: str) -> None:
    """A size that is none is refused, naming the option."""
    assert "--shard-size" in error_line("pack", "nowhere", "nowhere", f"--shard-size={value}", code=2)


def test_storage_options_are_checked(error_line: Callable[..., str]) -> None:
    """Storage options that contradict each other are a mistake of the user, not of the store."""
    assert "anonymous" in error_line("info", "s3://bucket/x", "--anonymous", "--profile", "me", code=2)
    assert "endpoint_url" in error_line("info", "s3://bucket/x", "--endpoint-url", "localhost:9000", code=2)
