#!/usr/bin/env bash
# A sweep on SLURM with one job per run: three recipes, three seeds, the same number of inner steps; then one report.
# Run: `examples/sweep_slurm.sh hydra.launcher.partition=gpu` on a login node. Further options can be added; FOLDER=...
# sets the output folder. See: nine job ids, then a table of all recipes. FOLDER/report/report.html shows the curves.
set -uo pipefail
folder=${FOLDER:-runs/sweep}
outerloop train -m \
  hydra/launcher=submitit_slurm \
  hydra.launcher.timeout_min=120 \
  hydra.launcher.cpus_per_task=8 \
  hydra.launcher.gpus_per_node=1 \
  hydra.sweep.dir="$folder" \
  recipe=diloco,sparseloco,outerloop \
  seed=0,1,2 \
  exchange=inprocess \
  workers=8 \
  steps=900 \
  "$@"
code=$? # 1 if one of the jobs failed: the report then shows the others
outerloop report "$folder" && exit "$code"
