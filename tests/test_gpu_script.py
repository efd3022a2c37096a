"""The script of the GPU measures: every section runs on a machine without a GPU, at toy size, and says what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"


def ran(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    ended = ran("--output", out, "--device", "cpu", "--tiny", "--repeats", 1, "--budget", 3000)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


def read(folder, section):
    found = json.loads((folder / f"{section}.json").read_text())
    assert found["device"] == "cpu" and found["tiny"] is True
    return found


def test_steps_are_timed_of_all_four_loops_in_every_configuration(folder):
    found = read(folder, "steps")["configurations"]
    assert set(found) == {f"{p} {m}" for p in ("fp32", "bf16") for m in ("contiguous", "channels_last")}
    for one in found.values():
        assert set(one["steps_per_s"]) == {"ours", "ours captured", "bare", "bare captured"}
        assert all(s["n"] == 1 and s["median"] > 0 for s in [*one["steps_per_s"].values(), *one["ratios"].values()])
        assert one["captured_bits_equal"] is True and one["replays"] > 0 and one["note"] == "" and one["peak_memory_gib"] > 0


def test_processes_side_by_side_and_the_audit_are_measured(folder):
    found = read(folder, "side_by_side")["processes"]
    assert set(found) == {"1", "2"} and all(n["steps_per_s"] > 0 for n in found.values())
    found = read(folder, "audit")
    assert found["round_s"] > 0 and found["audit_over_training"] == found["audit_s"] / (10 * found["round_s"])


def test_a_toy_suite_gives_the_same_bits_twice_and_is_compared_with_the_cpu(folder):
    found = read(folder, "toys")
    assert found["not_reached"] == []
    (one,) = found["suites"].values()
    assert one == {"ended": [0, 0, 0], "cells": 1, "bit_equal": True, "auc_apart": 0.0, "notes": []}


def test_without_a_cuda_device_it_says_so_in_one_line(tmp_path):
    ended = ran("--output", tmp_path / "out", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 2 and ended.stdout == "" and not (tmp_path / "out").exists()
    assert ended.stderr.startswith("no CUDA device on this machine: nothing was measured") and ended.stderr.count("\n") == 1
