"""The public surface: what ``import janus_shards as js`` offers, and what it costs."""

import subprocess
import sys

import pytest

import janus_shards as js

# The faces of the main job; later ones join __all__ without being listed here.
MAIN_FACES = {
    "ConfigError", "FormatError", "ImageTransform", "JanusShardsError", "LoaderOptions", "ResumeError", "SampleError",
    "ShardWriter", "StorageError", "TorchIterable", "World", "open_dataset", "open_loader",
}  # fmt: skip


def test_main_faces_are_exported() -> None:
    """Each name of the documented main job is public."""
    assert set(js.__all__) >= MAIN_FACES


def test_exported_names_are_sorted_and_unique() -> None:
    """``__all__`` is a sorted list without repetitions, so that a change of the surface is one line of a diff."""
    assert list(js.__all__) == sorted(set(js.__all__))


@pytest.mark.parametrize("name", js.__all__)
def test_exported_name_exists_and_is_documented(name: str) -> None:
    """Every public name resolves, and every public class, function and module has a docstring."""
    member = getattr(js, name)
    assert isinstance(member, str) or (member.__doc__ or "").strip()


def test_nothing_else_is_public() -> None:
    """What the package defines and does not export is a submodule or starts with an underscore."""
    ours = {name for name, member in vars(js).items() if getattr(member, "__module__", "").startswith("janus_shards")}
    assert {name for name in ours if not name.startswith("_")} <= set(js.__all__)


def test_importing_is_light() -> None:
    """``import janus_shards`` loads neither torch nor obstore nor any extra."""
    script = (
        "import sys, janus_shards; print(*sorted({'torch', 'obstore', 'fsspec', 'boto3', 'ray'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == []


def test_version_is_the_packages() -> None:
    """``janus_shards.__version__`` is the version in pyproject.toml."""
    assert js.__version__ == "0.1.0"
