import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "install_torch.sh"
CPU_BUILD, CPU_INDEX, PLAIN = "torch==2.13.0+cpu", "https://download.pytorch.org/whl/cpu torch==2.13.0", "torch==2.13.0"


def asked_for(
    tmp_path: Path, *, present: bool = False, driver: bool = False, refuse: tuple[str, ...] = ()
) -> list[str]:
    """What the script asks pip for, on a Linux machine where pip refuses requests that end in ``refuse``."""
    refusals = "".join(f'*"{request}") exit 1 ;;\n' for request in refuse)
    has_torch = f'case "$*" in -c*) exit {0 if present else 1} ;; esac'
    commands = {
        "python": f'{has_torch}\necho "$*" >> "{tmp_path}/log"\ncase "$*" in\n{refusals}esac',
        "nvidia-smi": f"exit {0 if driver else 1}",
        "uname": "echo Linux",
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "python")], env=env, check=True, capture_output=True, timeout=30
    )
    log = tmp_path / "log"
    asked = log.read_text().splitlines() if log.exists() else []
    return [line.partition("--disable-pip-version-check ")[2].removeprefix("--index-url ") for line in asked]


def test_installed_torch_stays(tmp_path: Path) -> None:
    """A torch that is there already is neither replaced nor downloaded again."""
    assert asked_for(tmp_path, present=True) == []


def test_driver_gets_the_default_build(tmp_path: Path) -> None:
    """With a CUDA driver the build that can use it is installed."""
    assert asked_for(tmp_path, driver=True) == ["torch>=2.6"]


@pytest.mark.parametrize(
    ("refuse", "asked"),
    [
        ((), [CPU_BUILD]),
        ((CPU_BUILD,), [CPU_BUILD, CPU_INDEX]),
        ((CPU_BUILD, CPU_INDEX), [CPU_BUILD, CPU_INDEX, PLAIN]),
    ],
    ids=["configured-source", "plain-pypi", "index-unreachable"],
)
def test_without_driver_the_cpu_build_is_tried_first(tmp_path: Path, refuse: tuple[str, ...], asked: list[str]) -> None:
    """Without a driver: a CPU build of a configured source, else of PyTorch's index, else the default one."""
    assert asked_for(tmp_path, refuse=refuse) == asked
