#!/usr/bin/env bash
# Installs what is missing, then lints, checks types and imports, and runs the tests: scripts/test.sh [pytest arguments].
# With arguments only pytest runs.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
if [ $# -eq 0 ]; then
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
  .venv/bin/mypy
  .venv/bin/lint-imports --no-cache --no-logo
fi
exec .venv/bin/python -m pytest "$@"
