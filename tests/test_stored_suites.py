"""The suites that a results folder keeps, which run again; and why a cell is computed anew."""

from __future__ import annotations

import copy
import importlib.metadata
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from edits import put
from fake_packages import ANNOUNCE, DEFENSE, described, install
from running import changed, fingerprint, invoke, suite

from fedbench.core import UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.run.job import identity_of_cell
from fedbench.core.run.resume import differences
from fedbench.core.store import stored_suites
from fedbench.core.store.results import Results
from fedbench.core.store.stored_suites import keep_suite, read_suite, suite_files


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> tuple[Path, Path]:
    """(suite, results folder) of a run with a change on the command line, of a part of the
    suite.
    """
    root = tmp_path_factory.mktemp("stored")
    noisy = {"name": "grad-noise", "grid": {"sigma": [0.01, 0.1]}}
    path = suite(root, defenses=["none", noisy], attacks=["loss-series", "blackbox-loss"])
    part = ("--set", "seeds=[3]", "--only", "attack=loss-series")
    invoke(path, "--results", root / "r", *part, "--workers", 1)
    return path, root / "r"


@pytest.fixture
def made(original, tmp_path) -> tuple[Path, Path, str]:
    """(suite, a copy of the results folder, id of its plan)."""
    folder = Path(shutil.copytree(original[1], tmp_path / "r"))
    return original[0], folder, Results(folder).marker()["plans"][0]


def test_a_folder_keeps_the_suite_as_given_and_as_resolved_and_what_was_installed(made):
    path, folder, plan = made
    asked = read_suite(folder, plan)
    assert asked.id == plan
    assert asked.given == path.read_text()
    assert (asked.file, asked.suite, asked.device) == ("tiny.yaml", "tiny", "cpu")
    assert asked.overrides == ("seeds=[3]",) and asked.only == ("attack=loss-series",)
    assert "seeds:\n- 3\n" in asked.resolved and "weight_decay" in asked.resolved
    assert "weight_decay" not in asked.given
    names = list(asked.packages)
    assert names == sorted(names) and asked.packages["torch"] == importlib.metadata.version("torch")
    assert {d.metadata["Name"] for d in importlib.metadata.distributions()} == set(names)
    before = {file: file.stat().st_mtime_ns for file in suite_files(folder, plan)}
    assert keep_suite(folder, asked) == plan
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_the_stored_suite_runs_again_elsewhere_with_the_same_keys_and_the_same_bits(made, tmp_path):
    _, folder, plan = made
    stored = folder / "suites" / f"{plan}.yaml"
    invoke(stored, "--results", tmp_path / "again", "--workers", "1")
    assert fingerprint(tmp_path / "again") == fingerprint(folder) and len(fingerprint(folder)) == 6

    def attacks(path, *more):
        said = invoke(path, "--dry-run", "--results", tmp_path / "none", *more)
        (names,) = re.findall("^attacks: (.*)$", said, re.MULTILINE)
        return names, "note: the part that was run" in said

    copied = tmp_path / "suites" / stored.name
    copied.parent.mkdir()
    copied.write_text(stored.read_text())
    assert attacks(stored) == ("loss-series", True)
    assert attacks(stored, "--only", "attack=blackbox-loss") == ("blackbox-loss", False)
    assert attacks(copied) == ("loss-series, blackbox-loss", False)


@pytest.mark.parametrize("suffix", [".yaml", ".given.yaml", ".json"])
def test_a_changed_file_of_a_plan_is_refused(made, suffix):
    _, folder, plan = made
    path = folder / "suites" / f"{plan}{suffix}"
    path.write_text(path.read_text().replace("tiny", "tinz"))
    with pytest.raises(UserError, match=r"suites/.*run the suite again to store it anew"):
        read_suite(folder, plan)
    if suffix == ".yaml":  # nor is it run as the part that it was
        with pytest.raises(UserError, match="a suite beside it was changed"):
            invoke(path, "--dry-run", "--results", folder)


def test_another_plan_is_kept_beside_the_first(made):
    _, folder, first = made
    store = Results(folder)
    asked = replace(read_suite(folder, first), overrides=("seeds=[9]",))
    store.set_manifest(store.marker()["cells"], stored=asked)
    assert store.marker()["plans"] == [first, asked.id] and read_suite(folder, asked.id) == asked
    store.set_manifest(store.marker()["cells"], stored=read_suite(folder, first))
    assert store.marker()["plans"] == [asked.id, first]  # the last one is what the folder shows now


@pytest.mark.parametrize("written", range(4))
def test_killed_at_any_moment_the_marker_names_plans_that_are_there(made, monkeypatch, written):
    """After so many of the plan's three files and the marker."""
    _, folder, first = made
    store, calls = Results(folder), []
    asked = replace(read_suite(folder, first), overrides=("seeds=[9]",))

    def write(path, content, real=stored_suites.write_atomically):
        calls.append(path)
        if len(calls) > written:
            raise KeyboardInterrupt
        real(path, content)

    for module in ("stored_suites", "results"):
        monkeypatch.setattr(f"fedbench.core.store.{module}.write_atomically", write)
    with pytest.raises(KeyboardInterrupt):
        store.set_manifest(store.marker()["cells"], stored=asked)
    assert Results(folder).marker()["plans"] == [first] and read_suite(folder, first)


# -- why cells are computed anew -------------------------------------------------------------------


def planned_cell(path):
    """The identity of the first cell of a suite."""
    (job,) = build_plan(str(path), (), path.parent / "r", "cpu").jobs
    return identity_of_cell(job, job.cells[0])


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    """The identity of a cell of a real plan, with an analysis."""
    folder = tmp_path_factory.mktemp("plan")
    more = {"analyses": ["violations"], "defenses": ["grad-noise"]}
    return planned_cell(changed(folder, {"thresholds": [0.5, 0.8]}, **more))


# what an earlier identity said at a path, and what is said of the difference
CHANGES = [
    ("run/digests/engine", "x", "the engine's code changed"),
    ("run/digests/data", "x", "the digest of the data changed"),
    ("run/targets", [0], "targets [0] -> [0,1]"),
    ("run/provenance/dtype", "float16", "dtype float16 -> float32"),
    ("run/setting/federation/optimizer/lr", 0.5, "federation.optimizer.lr 0.5 -> 0.2"),
    ("run/model/name", "cnn", "model cnn -> mlp"),
    ("attack/digest", "x", "the code of attack changed"),
    ("attack/params/k", 1, "attack.params.k 1 -> null"),
    ("run/defense/params/sigma", 0.5, "defense.params.sigma 0.5 -> 0.01"),
    ("signals/loss", ..., "signals.loss null -> loss"),
    ("analyses", {}, "analyses.violations null -> violations"),
    ("run/attacker", {"name": "x"}, "attacker x -> null"),
]


@pytest.mark.parametrize(("path", "value", "said"), CHANGES)
def test_what_differs_between_two_identities_is_named_with_its_values(now, path, value, said):
    old = copy.deepcopy(now)
    put(old, path, value)
    assert differences(old, now) == [said]
    assert differences(now, now) == []


NOTE = "cells are computed anew, though the folder holds an earlier record of the same names:"


def test_a_new_version_of_a_required_package_gives_new_keys(tmp_path, site):
    install(site, "leans", ANNOUNCE.format(name="leans", target="leans:Shield") + DEFENSE)
    with (site / "leans-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: helper>=1\nRequires-Dist: other; extra == 'more'\n")
    found = []
    for version in ("1.0", "2.0"):
        described(site, "helper", "helper", version)
        found.append(planned_cell(suite(tmp_path, defenses=["leans"])))
        shutil.rmtree(site / f"helper-{version}.dist-info")
    assert differences(*found) == ["defense.requires.helper 1.0 -> 2.0"]


def test_a_dry_run_says_what_made_cells_stale(finished, tmp_path, monkeypatch):
    path, folder = finished.parent / "tiny.yaml", Path(shutil.copytree(finished, tmp_path / "r"))
    # of two records the one written last counts
    for record in list((folder / "records").glob("*.json")):
        earlier = record.with_name(f"{record.stem[:-12]}{'0' * 12}.json")
        earlier.write_text("{half")
        os.utime(earlier, (0, 0))
    words = [path, "--results", folder, "--dry-run", "--set"]
    rounds = "settings.0.federation.rounds=6"
    output = invoke(*words, rounds, "--set", "defenses=[none, hamp]")
    # hamp's cells are new
    assert f"note: 2 {NOTE}\n  2 cells: federation.rounds 4 -> 6\n" in output
    with monkeypatch.context() as patch:
        patch.setattr("fedbench.core.run.expand.engine_digest", lambda: "another")
        output = invoke(*words, "settings.0.federation.optimizer.lr=0.1")
    assert (
        f"note: 4 {NOTE}\n  4 cells: the engine's code changed\n  4 cells: federation.optimizer.lr "
        "0.2 -> 0.1\n" in output
    )
    for record in (folder / "records").glob("*.json"):
        record.write_text("{half")
    assert NOTE not in invoke(*words, rounds)
