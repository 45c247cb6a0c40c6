#!/usr/bin/env bash
# Installs what is missing, then trains: scripts/train.sh [option=value ...], the options of `outerloop train`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/setup.sh"
exec "$root/.venv/bin/outerloop" train "$@"
