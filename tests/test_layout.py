"""The rules of the layout that import-linter cannot express, read from the source with ``ast``."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "janus_shards"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))

PURE_FOLDERS = ("janus_shards/format/", "janus_shards/order/", "janus_shards/batching/")
# What a pure module has no use for: files, processes, network, clock, chance.
IMPURE = {
    "os",
    "io",
    "pathlib",
    "tempfile",
    "shutil",
    "socket",
    "subprocess",
    "threading",
    "multiprocessing",
    "asyncio",
}
IMPURE |= {"concurrent", "time", "datetime", "random", "secrets", "uuid", "urllib", "http", "fcntl", "mmap"}
LATE = {"torch", "ray", "transformers", "datasets", "pyarrow", "fsspec", "boto3", "botocore", "lmdb", "jinja2"}
STARTS_THREADS = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "ThreadPool"}
# The launcher's world; the user's terminal; credentials and endpoints, as every client of an object store reads them.
ENVIRONMENT_READERS = ("janus_shards/world.py", "janus_shards/cli/", "janus_shards/storage/cloud.py")
VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc"}


@functools.cache
def parse(module: str) -> ast.Module:
    """The syntax tree of a file named from the repository's root."""
    return ast.parse((ROOT / module).read_text("utf-8"))


def imports(nodes: list[ast.stmt]) -> Iterator[str]:
    """Modules that ``nodes`` import where they stand, outside functions and ``if TYPE_CHECKING``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def names_used(module: str) -> set[str]:
    """Every name and attribute that a module mentions."""
    nodes = list(ast.walk(parse(module)))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    return plain | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def imported_names(module: str) -> set[str]:
    """Names that ``from … import …`` brings into a module."""
    froms = [node for node in ast.walk(parse(module)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in froms for alias in node.names}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(PURE_FOLDERS)])
def test_pure_rows_import_nothing_that_acts(module: str) -> None:
    """Formats, orders and batch plans are pure: no files, threads, clock, environment or chance."""
    assert not {name.partition(".")[0] for name in imports(parse(module).body)} & IMPURE


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_late(module: str) -> None:
    """Torch and the packages of extras are imported inside the functions that need them."""
    allowed = {"torch"} if module.startswith(("janus_shards/torch/", "janus_shards/janus/")) else set()
    assert not {name.partition(".")[0] for name in imports(parse(module).body)} & (LATE - allowed)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "janus_shards/pipeline/prefetch.py"])
def test_only_prefetch_starts_threads(module: str) -> None:
    """Threads start in one module, so that there is one place that ends them."""
    assert not (names_used(module) | imported_names(module)) & STARTS_THREADS


def reads_environment(module: str) -> bool:
    """Whether a module mentions ``os.environ`` or ``os.getenv``."""
    return bool((names_used(module) | imported_names(module)) & {"environ", "environb", "getenv"})


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith(ENVIRONMENT_READERS)])
def test_the_environment_is_read_in_few_places(module: str) -> None:
    """A library call means the same in every environment, but for the launcher's world and the store's credentials."""
    assert not reads_environment(module)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "janus_shards/__init__.py"])
def test_modules_do_not_import_the_facade(module: str) -> None:
    """Library modules import each other by their own names, never through ``import janus_shards``."""
    assert "janus_shards" not in set(imports(parse(module).body))


def test_no_module_has_a_vague_name() -> None:
    """A function without a home shows a missing concept; there is no drawer for it."""
    assert not [module for module in MODULES if set(module.removesuffix(".py").split("/")) & VAGUE_NAMES]


def test_tests_mirror_the_package() -> None:
    """Each folder of tests/ is named after a package of the library, after tools, or after contracts."""
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    }
    packages = {path.parent.name for path in PACKAGE.rglob("*.py")} | {path.stem for path in PACKAGE.glob("*.py")}
    assert folders <= packages | {"cases", "contracts", "data", "docs", "tools"}
