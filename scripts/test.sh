#!/usr/bin/env bash
# scripts/test.sh installs what is missing, lints, checks imports, and runs the tests, one of which checks types.
# scripts/test.sh ARGUMENTS installs what is missing, and runs pytest with these arguments, nothing else.
# scripts/test.sh --fast [ARGUMENTS] lints with ruff, and runs the tests in FAST that are not marked slow or long.
# A test is long if it starts a daemon or takes more than a second.
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
if [ $# -eq 0 ]; then
  lint
  .venv/bin/lint-imports --no-cache --no-logo
fi
exec .venv/bin/python -m pytest "$@"
