#!/bin/bash
# A suite as a SLURM array: eight jobs, each with a part of like cost, on one results folder that all nodes see.
#
#     sbatch examples/cluster/slurm_array.sh partial_defense /shared/results/partial_defense
#
# Submit it again to finish what is missing. The part that finishes last writes the board.
#SBATCH --job-name=fedbench
#SBATCH --array=1-8
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=fedbench-%A_%a.log
set -euo pipefail
suite=${1:?the suite: a file or a name of "fedbench list suites"}
results=${2:?the results folder, where every node sees it}

export FEDBENCH_DATA=${FEDBENCH_DATA:-$(dirname "$results")/data}
exec fedbench run "$suite" --results "$results" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
  --workers "$SLURM_CPUS_PER_TASK" "${@:3}"
