"""The script of the GPU measures: every section runs on a machine without a GPU, at toy size, and
says what it should.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SCRIPT = Path(__file__).parent / "benchmarks" / "gpu.py"


def test_every_section_is_measured_at_toy_size(tmp_path):
    output = tmp_path / "gpu.json"
    words = [str(output), "--device", "cpu", "--tiny", "--budget", "3000"]
    ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(output.read_text())
    assert document["tiny"] and document["machine"]["device"] == "cpu"
    for name, measured in document["steps"].items():
        if "tf32" in name:
            assert measured.startswith("not available")
        else:
            assert measured["equal_bits"]
            assert measured["ratios"]["ours / bare, our settings"]["n"] == 1
            assert measured["profiles"]["ours"]["operations"] > 0
    for workload in document["peers"].values():
        assert workload["ratios"]["ours / bare"]["wall"]["n"] == 1
        assert workload["steps_per_s"].keys() | workload["skipped"].keys() == {
            *("ours", "bare", "pfl", "flower", "blazefl")
        }
    for audit in document["audit"].values():
        assert audit["largest relative difference"] < 1e-3
    assert [*document["side_by_side"]] == ["1", "2"]
    (toy,) = document["toys"]["suites"].values()
    assert toy == {"ended": [0, 0, 0], "cells": 1, "bit_equal": True, "auc_apart": 0.0}
