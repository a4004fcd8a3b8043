#!/usr/bin/env bash
# Install PyTorch into a virtual environment: the CPU build where there is no CUDA driver.
#
#     tools/install_torch.sh .venv/bin/python
#
# On Linux the default torch of PyPI is a CUDA build of several gigabytes, wasted without a driver. So, in this order:
#   1. a torch that is there already stays;
#   2. with a driver, or on macOS (one build), the default one;
#   3. a CPU build from a source that pip is configured with (PyPI has no "+cpu" file: pip says so at once);
#   4. PyTorch's public index of CPU wheels;
#   5. the default one, when that index cannot be reached.
set -euo pipefail

python=${1:?usage: install_torch.sh PYTHON}
version=2.13.0

pip_install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
has_torch() { "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; }
has_driver() { command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; }

if has_torch; then
    exit 0
elif [ "$(uname -s)" != Linux ] || has_driver; then
    pip_install "torch>=2.6"
elif pip_install "torch==$version+cpu" 2>/dev/null; then
    echo "torch $version: CPU build from the configured package source"
elif pip_install --index-url https://download.pytorch.org/whl/cpu "torch==$version" 2>/dev/null; then
    echo "torch $version: CPU build from PyTorch's index of CPU wheels"
else
    echo "torch $version: no CPU build was found, taking the default one (several GB on Linux)" >&2
    pip_install "torch==$version"
fi
