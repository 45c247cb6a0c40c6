#!/usr/bin/env bash
# Installs the wheel with its dependencies into an empty environment in a temporary folder, and trains one round there:
# scripts/test_wheel.sh [extra ...]. The default extra is train. Takes two to five minutes if pip has the packages in
# its cache or on a local index, so it is not part of scripts/test.sh; tests/house/test_wheel.py checks the rest.
# TORCH_INDEX_URL, if set, is the package index for torch, as in scripts/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
extras=$(IFS=,; echo "${*:-train}")
started=$SECONDS
.venv/bin/python -m hatchling build --target wheel --directory "$folder"
"${PYTHON:-.venv/bin/python}" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
if [ -n "${TORCH_INDEX_URL:-}" ]; then
  pip install torch --index-url "$TORCH_INDEX_URL"
fi
wheel=$(echo "$folder"/*.whl)
pip install --use-pep517 --constraint constraints.txt "$wheel[$extras]"
echo "installed $(basename "$wheel") with [$extras] in $((SECONDS - started)) s"
cd "$folder"
env -u PYTHONPATH venv/bin/outerloop train model=nano exchange=inprocess workers=2 rounds=1 schedule.sync_every=2 \
  eval.sequences=8 inner.batch=2 run_dir=run
env -u PYTHONPATH venv/bin/python -c 'import outerloop; print(outerloop.__version__, outerloop.from_recipe)'
