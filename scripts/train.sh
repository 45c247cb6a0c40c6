#!/usr/bin/env bash
# Sets up if need be, then trains: scripts/train.sh [option=value ...], the options of `outerloop train`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/outerloop" train "$@"
