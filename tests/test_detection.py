"""The script behind the table of faults in docs/auditing.md, at a small size, and its record."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def detection():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("detection")


def test_a_fault_is_caught_and_a_correct_training_is_not(detection):
    cases = {case.name: case for case in detection.CASES}
    lines = [
        detection.measured(cases[name], 200, 10, (20, 60)) for name in ("DP-SGD", "clipping off")
    ]
    correct, fault = lines
    claim = detection.epsilon(1 / detection.MU, 1, detection.DELTA)
    assert correct["claim"] == fault["claim"] == pytest.approx(claim)
    assert correct["one run"]["1"]["above"] == correct["one run"]["10"]["above"] == 0
    assert fault["one run"]["1"]["above"] == fault["one run"]["1"]["audits"] == 10
    assert detection.caught(correct) == "not caught"
    assert detection.caught(fault).startswith("200 canaries")


def test_the_document_has_the_table_of_the_record(detection):
    document = detection.DOCUMENT.read_text()
    record = json.loads(detection.RECORD.read_text())
    assert detection.with_table(document, record) == document
    assert [line["case"] for line in record] == [case.name for case in detection.CASES]
