"""A results folder keeps the suites that it was asked for: as given, as resolved, with what was installed, and they run again."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from running import fingerprint, invoke, suite

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.shipped import shipped_suites
from fedbench.core.spec.written import written_out
from fedbench.core.store import plans
from fedbench.core.store.plans import keep_plan, only_of, plan_files, read_plan, stored_plans
from fedbench.core.store.results import Results

USED = ("defenses", "attacks", "analyses", "floors", "signals")


@pytest.mark.parametrize("name", shipped_suites())
def test_a_suite_written_out_asks_for_the_very_same(name, registry: Registry, tmp_path: Path):
    loaded, resolved = load_and_check(name, registry)
    path = tmp_path / "written.yaml"
    path.write_text(written_out(loaded, resolved))
    again, found = load_and_check(path, registry)
    assert [getattr(found, part) for part in USED] == [getattr(resolved, part) for part in USED]
    for one, other in zip(found.settings, resolved.settings, strict=True):
        assert (one.dataset, one.model, one.coalitions) == (other.dataset, other.model, other.coalitions)
        resolved_here = {"dataset", "model"}
        assert one.spec.model_dump(exclude=resolved_here) == other.spec.model_dump(exclude=resolved_here)
    left_out = {"settings", *USED}
    assert again.spec.model_dump(exclude=left_out) == loaded.spec.model_dump(exclude=left_out)
    assert written_out(again, found) == path.read_text()


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """(suite, results folder) of a run with a change on the command line."""
    noisy = {"name": "grad-noise", "grid": {"sigma": [0.01, 0.1]}}
    path = suite(tmp_path, defenses=["none", noisy], attacks=["loss-series", "blackbox-loss"])
    invoke(path, "--results", tmp_path / "r", "--set", "seeds=[3]", "--only", "attack=loss-series")
    return path, tmp_path / "r"


def test_a_folder_keeps_the_suite_as_given_and_as_resolved_and_what_was_installed(made):
    path, folder = made
    (plan,) = Results(folder).marker()["plans"]
    asked = read_plan(folder, plan)
    assert asked.given == path.read_text() and asked.file == "tiny.yaml" and asked.suite == "tiny"
    assert asked.overrides == ("seeds=[3]",) and asked.only == ("attack=loss-series",) and asked.device == "cpu"
    assert "seeds:\n- 3\n" in asked.resolved and "weight_decay" in asked.resolved and "weight_decay" not in asked.given
    names = list(asked.packages)
    assert names == sorted(names) and asked.packages["torch"] == importlib.metadata.version("torch")
    assert {d.metadata["Name"] for d in importlib.metadata.distributions()} == set(names)


def test_the_stored_suite_runs_again_elsewhere_with_the_same_keys_and_the_same_bits(made, tmp_path):
    _, folder = made
    (plan,) = stored_plans(folder)
    invoke(folder / "suites" / f"{plan}.yaml", "--results", tmp_path / "again")
    assert fingerprint(tmp_path / "again") == fingerprint(folder) and len(fingerprint(folder)) == 6


def test_the_part_that_was_run_is_run_again_unless_another_is_asked_for(made, tmp_path):
    _, folder = made
    (plan,) = Results(folder).marker()["plans"]
    stored = folder / "suites" / f"{plan}.yaml"

    def attacks(path, *more):
        said = invoke(path, "--dry-run", "--results", tmp_path / "none", *more)
        return re.search("^attacks: (.*)$", said, re.MULTILINE)[1], "note: the part that was run" in said

    assert attacks(stored) == ("loss-series", True)
    assert attacks(stored, "--only", "attack=blackbox-loss") == ("blackbox-loss", False)
    copied = tmp_path / "suites" / stored.name
    copied.parent.mkdir()
    copied.write_text(stored.read_text())
    assert attacks(copied) == ("loss-series, blackbox-loss", False)
    assert only_of(folder / "suites" / f"{plan}.given.yaml") == only_of("partial_defense") == only_of("/") == ()


def test_a_stored_suite_that_was_changed_is_not_run_as_the_part_that_it_was(made):
    _, folder = made
    (plan,) = Results(folder).marker()["plans"]
    stored = folder / "suites" / f"{plan}.yaml"
    stored.write_text(stored.read_text().replace("- 3\n", "- 4\n", 1))
    with pytest.raises(UserError, match="a suite beside it was changed; run the suite again to store it anew"):
        invoke(stored, "--dry-run", "--results", folder)


def test_another_plan_never_replaces_one_and_the_same_again_is_one(made):
    path, folder = made
    first = Results(folder).marker()["plans"]
    invoke(path, "--results", folder, "--set", "seeds=[4]", "--only", "attack=loss-series,defense=none")
    both = Results(folder).marker()["plans"]
    assert both[:1] == first and len(both) == 2
    assert [read_plan(folder, plan).overrides for plan in both] == [("seeds=[3]",), ("seeds=[4]",)]
    invoke(path, "--results", folder, "--set", "seeds=[3]", "--only", "attack=loss-series")
    assert Results(folder).marker()["plans"] == both[::-1]  # the last one is what the folder shows now
    assert stored_plans(folder) == sorted(both)


def test_whenever_it_is_killed_the_marker_names_plans_that_are_there(made, monkeypatch):
    _, folder = made
    store = Results(folder)
    asked = replace(read_plan(folder, store.marker()["plans"][0]), overrides=("seeds=[9]",))
    for n in range(4):  # the three files, then the marker
        calls = []

        def write(path, content, cache, n=n, calls=calls, real=plans.write_making_room):
            calls.append(path)
            if len(calls) > n:
                raise KeyboardInterrupt
            real(path, content, cache)

        for module in ("plans", "marker"):
            monkeypatch.setattr(f"fedbench.core.store.{module}.write_making_room", write)
        with pytest.raises(KeyboardInterrupt):
            store.set_manifest(store.marker()["cells"], asked=asked)
        monkeypatch.undo()
        for plan in Results(folder).marker()["plans"]:
            read_plan(folder, plan)
        assert asked.id not in Results(folder).marker()["plans"]
        for path in plan_files(folder, asked.id):
            path.unlink(missing_ok=True)
    store.set_manifest(store.marker()["cells"], asked=asked)
    assert read_plan(folder, Results(folder).marker()["plans"][-1]) == asked


@pytest.mark.parametrize("suffix", [".yaml", ".given.yaml", ".json"])
def test_a_changed_file_of_a_plan_is_refused(made, suffix):
    _, folder = made
    (plan,) = stored_plans(folder)
    path = folder / "suites" / f"{plan}{suffix}"
    path.write_text(path.read_text().replace("tiny", "tinz"))
    with pytest.raises(UserError, match=r"suites/.*run the suite again to store it anew"):
        read_plan(folder, plan)


def test_a_marker_that_is_gone_is_made_again_with_its_plans(made):
    _, folder = made
    (folder / "fedbench.json").unlink()
    assert Results.open(folder).marker()["plans"] == stored_plans(folder)


def test_a_folder_of_an_earlier_schema_has_no_plans(tmp_path):
    (tmp_path / "fedbench.json").write_text(json.dumps({"schema_version": 3, "suite": "tiny", "cells": []}))
    assert Results.open(tmp_path).marker()["plans"] == [] and stored_plans(tmp_path) == []


def test_a_plan_is_stored_once(made):
    _, folder = made
    (plan,) = stored_plans(folder)
    before = {path: path.stat().st_mtime_ns for path in plan_files(folder, plan)}
    assert keep_plan(folder, read_plan(folder, plan)) == plan
    assert {path: path.stat().st_mtime_ns for path in plan_files(folder, plan)} == before
