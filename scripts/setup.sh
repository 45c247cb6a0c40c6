#!/usr/bin/env bash
# Creates .venv in this checkout and installs outerloop into it, at the versions of constraints.txt.
# torch is installed first and separately, so that nothing later replaces its build: without an NVIDIA GPU the pinned
# version, from pip's default index or from TORCH_INDEX_URL (set that to the index of CPU builds if pip would install the
# CUDA build). PYTHON, if set, is the interpreter. Takes less than 3 s if everything is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.outerloop-setup

want=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x "$venv/bin/outerloop" ]; then
  exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup.sh: $("$python" --version) is too old, Python 3.11 or newer is needed: run PYTHON=python3.11 scripts/setup.sh" >&2
  exit 2
}
started=$SECONDS
echo "setup: installing into $venv, two to four minutes the first time"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

torch=(torch)
if ! command -v nvidia-smi >/dev/null 2>&1; then
  torch=("torch==$torch_version")
fi
[ -n "${TORCH_INDEX_URL:-}" ] && torch+=(--index-url "$TORCH_INDEX_URL")
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  pip install "${torch[@]}"
fi
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
# A CUDA build of torch requires and installs one version of triton: keep that one.
if "$venv/bin/python" -c 'import triton' 2>/dev/null; then
  grep -v '^triton==' constraints.txt > "$constraints"
else
  cp constraints.txt "$constraints"
fi
# Some packages are sources without a pyproject.toml; pip 23.0 would warn about the legacy build of each.
pip install --use-pep517 --constraint "$constraints" --editable '.[docs,test]'
"$venv/bin/python" -m outerloop.kernels.warm
echo "$want" > "$stamp"
echo "setup: done in $((SECONDS - started)) s"
