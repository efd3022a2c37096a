"""On upgrade `fedbench run` says what made a cell stale: one identity against another, and how often."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from running import changed, invoke, suite, unprotected

from fedbench.core.cli.run import build_plan
from fedbench.core.execution.stale import differences, why_stale
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.results import Results


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A cell of a real plan, with an analysis."""
    folder = tmp_path_factory.mktemp("plan")
    path = changed(folder, {"thresholds": [0.5, 0.8]}, analyses=["violations"], defenses=["grad-noise"])
    (job,) = build_plan(str(path), (), folder / "r", "cpu").jobs
    return job.cells[0]


CHANGES: dict[str, tuple[Callable[[dict], None], list[str]]] = {
    "engine": (lambda i: i["run"]["digests"].update(engine="x"), ["the engine's code changed"]),
    "data": (lambda i: i["run"]["digests"].update(data="x", split="y"), ["the data of 'digits' changed"]),
    "split": (lambda i: i["run"]["digests"].update(split="y"), ["who holds which samples, or who is asked about"]),
    "torch": (lambda i: i["run"]["provenance"].update(torch="9.9"), ["torch 9.9 -> {torch}"]),
    "rounds": (lambda i: i["run"]["setting"]["federation"].update(rounds=60), ["federation.rounds 60 -> 4"]),
    "rate": (lambda i: i["run"]["setting"]["federation"]["optimizer"].update(lr=0.5), ["federation.optimizer.lr 0.5 -> 0.2"]),
    "device": (lambda i: i["run"].update(device="cuda"), ["device cuda -> cpu"]),
    "members": (lambda i: i["run"].update(members=[0, 1, 2], targets=[0, 1, 2]), ["members [0,1,2] -> [0,1]"]),
    "targets": (lambda i: i["run"].update(targets=[0]), ["targets [0] -> [0,1]"]),
    "contract": (lambda i: i["run"].update(contract=0), ["contract 0 -> {contract}"]),
    "code": (
        lambda i: i["run"]["defense"].update(digest="x", distribution="fedbench 0.0.9"),
        ["the code of defense 'grad-noise' changed (fedbench 0.0.9 -> 0.1.0)"],
    ),
    "code of one version": (
        lambda i: i["attack"].update(digest="x"), ["the code of attack 'loss-series' changed (fedbench 0.1.0)"],
    ),
    "version": (
        lambda i: i["attack"].update(distribution="other 3"), ["the package of attack 'loss-series': other 3 -> fedbench 0.1.0"],
    ),
    "parameter": (lambda i: i["run"]["defense"]["params"].update(sigma=0.5), ["defense 'grad-noise': sigma 0.5 -> 0.01"]),
    "another": (lambda i: i["run"]["model"].update(name="cnn"), ["model 'cnn' -> 'mlp'"]),
    "followed": (
        lambda i: i["run"]["defense"].update(then=[{**i["attack"], "name": "hamp"}]),
        ["after defense 'grad-noise', defense 'hamp' -> none"],
    ),
    "signal": (lambda i: i["signals"]["loss"].update(digest="x"), ["the code of signal 'loss' changed (fedbench 0.1.0)"]),
    "a signal more": (lambda i: i["signals"].pop("loss"), ["signal 'loss' none -> 'loss'"]),
    "analysis": (lambda i: i["analyses"].clear(), ["analysis 'violations' none -> 'violations'"]),
    "an attack inside": (lambda i: i["run"].update(attacker=i["attack"]), ["adversary's attack 'loss-series' -> none"]),
    "two things": (
        lambda i: (i["run"]["digests"].update(engine="x"), i["attack"]["params"].update(k=1)),
        ["the engine's code changed", "attack 'loss-series': k 1 -> null"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_differs_is_named_with_its_values(cell, change, expected):
    old = copy.deepcopy(cell.identity)
    change(old)
    run = cell.identity["run"]
    known = {"torch": run["provenance"]["torch"], "contract": run["contract"]}
    assert differences(old, cell.identity) == [words.format(**known) if "{" in words else words for words in expected]


def test_equal_identities_differ_in_nothing(cell):
    assert differences(copy.deepcopy(cell.identity), cell.identity) == []


def test_every_field_of_a_component_that_counts_is_named(cell):
    """Whatever makes another key has words."""
    for name in ComponentUse.model_fields.keys() - {"label", "then"}:
        old = copy.deepcopy(cell.identity)
        value = old["attack"][name]
        old["attack"][name] = {**value, "more": 1} if isinstance(value, dict) else f"{value}x"
        assert len(differences(old, cell.identity)) == 1, name


# -- as a run says it --------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path) -> tuple[Path, Path]:
    """(suite, results folder) of a run with four cells."""
    path, folder = suite(tmp_path, defenses=["none", "mixup"], attacks=["loss-series", "blackbox-loss"]), tmp_path / "r"
    invoke(path, "--results", folder)
    return path, folder


NOTE = "cells are computed anew, though the folder holds an earlier record of the same names:"


def test_a_run_and_a_dry_run_say_what_made_cells_stale(made):
    path, folder = made
    words = ["--results", folder, "--set", "settings.0.federation.rounds=6", "--set", "defenses=[none, hamp]"]
    for more in (["--dry-run"], []):
        output = invoke(path, *words, *more)
        assert f"note: 2 {NOTE}\n  2 cells: federation.rounds 4 -> 6\n" in output  # hamp's cells are new
    assert NOTE not in invoke(path, *words)
    again = {"name": "mixup", "params": {"alpha": 0.7}}
    output = invoke(path, "--results", folder, "--dry-run", "--set", f"defenses=[none, {json.dumps(again)}]")
    assert "note: 2 cells" in output and "  2 cells: defense 'mixup': alpha 0.01 -> 0.7\n" in output


def test_a_changed_engine_is_named_once_for_all_cells(made, monkeypatch):
    path, folder = made
    monkeypatch.setattr("fedbench.core.execution.plan.engine_digest", lambda: "another")
    output = invoke(path, "--results", folder, "--dry-run", "--set", "settings.0.federation.optimizer.lr=0.1")
    assert f"note: 4 {NOTE}\n  4 cells: the engine's code changed\n  4 cells: federation.optimizer.lr 0.2 -> 0.1\n" in output


def test_records_that_do_not_say_what_they_were_made_of_say_so(made):
    path, folder = made
    for record in (folder / "records").glob("*.json"):
        record.write_text(json.dumps(unprotected(record)))
    output = invoke(path, "--results", folder, "--dry-run", "--set", "settings.0.federation.rounds=6")
    assert "  4 cells: made by an earlier fedbench (record schema 3), which did not store why\n" in output


def test_an_earlier_record_that_is_damaged_stops_nothing(made):
    path, folder = made
    for record in (folder / "records").glob("*.json"):
        record.write_text("{half")
    output = invoke(path, "--results", folder, "--dry-run", "--set", "settings.0.federation.rounds=6")
    assert "  4 cells: its earlier record cannot be used\n" in output


def test_the_record_written_last_is_compared_and_many_differences_are_counted(made, tmp_path):
    path, folder = made
    invoke(path, "--results", folder, "--set", "settings.0.federation.rounds=6")
    plan = build_plan(str(path), ("settings.0.federation.rounds=8",), folder, "cpu")
    cells = [cell for job in plan.jobs for cell in job.cells]
    lines = why_stale(cells, Results(folder))
    assert lines == [f"4 {NOTE}", "4 cells: federation.rounds 6 -> 8"]
    for i, cell in enumerate(cells):
        cell.identity["attack"]["params"] |= {f"p{i}{j}": "x\x1b[31m" * 50 for j in range(4)}
    lines = why_stale(cells, Results(folder))
    assert len(lines) == 14 and lines[-1] == "and 5 other differences"
    assert all(line.isprintable() and len(line) < 200 for line in lines)
