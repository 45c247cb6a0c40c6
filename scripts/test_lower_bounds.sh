#!/usr/bin/env bash
# Installs the oldest dependencies that pyproject.toml allows into an empty environment, in a temporary folder, and runs
# tests there: scripts/test_lower_bounds.sh [pytest arguments]. By default, it runs the tests of numerics, options and
# state. Takes about ten minutes, so it is not part of scripts/test.sh. Triton is not tested at its lower bound, because
# torch requires a version of its own.
# TORCH_INDEX_URL, if set, is the package index for torch, as in scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" - > "$folder/oldest.txt" <<'PYTHON'
"""Print every dependency of the base and of the extras of the tests, pinned to its lower bound."""
import re
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
for text in [*project["dependencies"], *(text for texts in extras.values() for text in texts)]:
    name, bound = re.match(r"([\w-]+)(?:\[[\w,]+\])?(?:[>=]=([\d.]+))?", text).groups()
    if bound:
        print(f"{name}=={bound}.*" if bound.count(".") < 2 else f"{name}=={bound}")
PYTHON
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$(grep '^torch==' "$folder/oldest.txt")"
pip install --use-pep517 --constraint "$folder/oldest.txt" --editable '.[test]'
"$python" -m pip list --disable-pip-version-check | grep -E '^(torch|hivemind|hydra-core|omegaconf|numpy|numba|transformers|pydantic) '
if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi
"$python" -m pytest -m "not slow and not long" \
  tests/{aggregate,compress,config,core,feedback,inner,kernels,methods,schedule,state}
