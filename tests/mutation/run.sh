#!/usr/bin/env bash
# How many random mutants of what makes the numbers the quick tests kill: tests/mutation/run.sh [N] [SEED], an hour for 200.
# Needs a checkout without changes, its environment in .venv, and there: pip install cosmic-ray coverage
set -euo pipefail
cd "$(dirname "$0")/../.."
git diff --quiet || { echo "commit first: a mutation is found as the one change of the tree" >&2 && exit 2; }
python=.venv/bin/python work=$PWD/build/mutation
rm -rf "$work" && mkdir -p "$work/lines"

echo "== which quick test runs which line"
REPOSITORY=$PWD COVERAGE_FOLDER=$work/lines COVERAGE_PROCESS_START=$PWD/tests/mutation/coverage.rc PYTHONPATH=tests/mutation \
  $python -m pytest -q -p contexts
$python -m coverage combine -q --data-file="$work/lines/lines" "$work/lines"
export COVERAGE_LINES=$work/lines/lines

echo "== planted bugs"
$python tests/mutation/planted.py

echo "== random mutants"
$python -m cosmic_ray.cli init tests/mutation/cosmic-ray.toml "$work/session.sqlite"
$python tests/mutation/sample.py "$work/session.sqlite" "${1:-200}" "${2:-0}"
$python -m cosmic_ray.cli exec tests/mutation/cosmic-ray.toml "$work/session.sqlite"
$python tests/mutation/sample.py "$work/session.sqlite" # what survived
