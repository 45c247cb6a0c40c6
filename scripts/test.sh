#!/usr/bin/env bash
# Installs what is missing, lints, checks types and imports, and runs the tests: scripts/test.sh [pytest arguments].
# With arguments, only pytest runs. scripts/test.sh --fast [pytest arguments] lints with ruff and runs the tests in FAST
# that are not marked slow or long. A test is long if it starts a daemon or takes more than a second.
set -euo pipefail
cd "$(dirname "$0")/.."
FAST=(
  tests/{house,aggregate,compress,feedback,methods,schedule,plan,state,sinks,report}
  tests/core/test_{compatibility,golden_trajectories,left_out,loop,replica_average,round_scheduler,shared_state}.py
  tests/swarm/{access,accountability,gather,gossip,membership,p2p,state_transfer,transfer}
)
scripts/setup.sh
lint() {
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
}
if [ "${1:-}" = --fast ]; then
  shift
  lint
  exec .venv/bin/python -m pytest -m "not slow and not long" "${FAST[@]}" "$@"
fi
if [ $# -gt 0 ]; then
  exec .venv/bin/python -m pytest "$@"
fi
lint
.venv/bin/lint-imports --no-cache --no-logo
types=$(mktemp)
.venv/bin/mypy > "$types" 2>&1 & # takes a minute on one core without a cache, so the tests run meanwhile
mypy=$!
trap 'kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
tested=0 typed=0
.venv/bin/python -m pytest || tested=$?
wait "$mypy" || typed=$?
cat "$types"
exit $((tested ? tested : typed))
