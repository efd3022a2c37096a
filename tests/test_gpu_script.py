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
    words = ["--output", str(tmp_path), "--device", "cpu", "--tiny", "--budget", "3000"]
    ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {(section["device"], section["tiny"]) for section in found.values()} == {("cpu", True)}
    assert all(one["ratios"]["ours / bare"] for one in found["steps"]["configurations"].values())
    (one,) = found["toys"]["suites"].values()
    assert one == {"ended": [0, 0, 0], "cells": 1, "bit_equal": True, "auc_apart": 0.0}
