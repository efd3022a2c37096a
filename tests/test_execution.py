"""The executor: isolation, limits, resume, and the same bits whatever happens on the way."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from fake_packages import WAITING, install
from faults import cache_damage
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from running import HANG_S, changed, fingerprint, invoke, records, start, suite, unprotected, wait_for

from fedbench.core.cli.clean import command as clean
from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.cache import cache_path, load
from fedbench.core.store.files import TEMPORARY_PREFIX, read_npz
from fedbench.core.store.reading import read_record
from fedbench.core.store.results import Results

DEFENSES = '''
    import os, time
    import torch
    from fedbench.core import Component, Defense, hookimpl

    class Raises(Defense):
        def protect(self, update, ctx):
            raise ValueError("out of ideas")

    class Hangs(Defense):
        def protect(self, update, ctx):
            open("hangs", "w").close()
            while True:
                time.sleep(1)

    class Exits(Defense):
        def protect(self, update, ctx):
            os._exit(7)

    class Nan(Defense):
        def protect(self, update, ctx):
            return update * torch.nan

    @hookimpl
    def fedbench_defenses():
        for c in (Raises, Hangs, Exits, Nan):
            yield Component(f"toy-{c.__name__.lower()}", f"toys:{c.__name__}", "a toy")
'''

ATTACKS = '''
    import numpy as np
    from fedbench.core import ActiveAttack, Attack, Component, hookimpl

    class Raises(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            raise RuntimeError("no clue")

    class Nan(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return np.full(len(audit.ids), np.nan)

    class Short(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return np.zeros(3)

    class Peeks(Attack):
        view = "client"
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return observations.of_others("loss").mean((0, 1))

    class Wishes(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return observations["mind-reading"]

    class Flip(ActiveAttack):
        needs = frozenset({"loss"})
        def craft(self, round, knowledge):
            return -knowledge.own
        def score(self, observations, audit):
            return -observations.of_target("loss").mean(0)

    @hookimpl
    def fedbench_attacks():
        for c in (Raises, Nan, Short, Peeks, Wishes, Flip):
            yield Component(f"toy-{c.__name__.lower()}", f"toy_attacks:{c.__name__}", "a toy")
'''


@pytest.fixture
def toys(site):
    install(site, "toys", DEFENSES)
    install(site, "waiting", WAITING)
    return install(site, "toy_attacks", ATTACKS)


def test_each_misbehaving_defense_costs_only_its_own_cells(tmp_path, toys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them writes a file where it runs
    names = ["none", "toy-raises", "toy-exits", "toy-nan"]
    path = suite(tmp_path, defenses=[*names, "toy-hangs"])
    only = ",".join(f"defense={name}" for name in names)
    invoke(path, "--results", tmp_path / "r", "--workers", 2, "--only", only, status=1)
    path = suite(tmp_path, defenses=[*names, "toy-hangs"], limits={"idle_seconds": 3})  # of no other run: machines are slow
    output = invoke(path, "--results", tmp_path / "r", status=1)
    found = {d: (r["outcome"], r["reason"]) for (d, _, _), r in records(tmp_path / "r").items()}
    assert found["none"] == ("ok", "")
    assert found["toy-raises"][0] == "failed"
    assert "Raises.protect (client 0, round 1): ValueError: out of ideas (toys.py:" in found["toy-raises"][1]
    assert found["toy-hangs"] == ("timeout", "stopped: nothing moved for 3 s (limits.idle_seconds)")
    assert found["toy-exits"][0] == "failed" and "status 7" in found["toy-exits"][1]
    assert found["toy-nan"][0] == "diverged" and "protect made the upload of client 0, 1 not finite" in found["toy-nan"][1]
    assert "out of ideas" in output and "4 cells failed" in output


def test_a_misbehaving_attack_costs_only_its_cell(tmp_path, toys):
    names = ["loss-series", "toy-raises", "toy-nan", "toy-short", "toy-peeks", "toy-wishes", "toy-flip"]
    invoke(suite(tmp_path, attacks=names), "--results", tmp_path / "r", status=1)
    found = {a: (r["outcome"], r["reason"]) for (_, a, _), r in records(tmp_path / "r").items()}
    assert found["loss-series"][0] == found["toy-flip"][0] == "ok"
    assert "RuntimeError: no clue" in found["toy-raises"][1]
    assert "scores of client 0 are not finite" in found["toy-nan"][1]
    assert "score returned shape [3] for client 0" in found["toy-short"][1]
    assert found["toy-peeks"] == ("skipped", "the view 'client' shows no other client to compare with")
    assert found["toy-wishes"][0] == "skipped" and "no signal 'mind-reading'" in found["toy-wishes"][1]


def test_an_active_attack_has_a_run_of_its_own(tmp_path, toys):
    invoke(suite(tmp_path, attacks=["loss-series", "toy-flip"]), "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    passive, active = found["none", "loss-series", 0], found["none", "toy-flip", 0]
    assert passive["run_key"] != active["run_key"]
    assert passive["history"] != active["history"]  # another training
    assert passive["described"]["adversary"] is None and active["described"]["adversary"] == "toy-flip"


def test_one_or_two_workers_and_any_company_give_the_same_bits(tmp_path):
    path = suite(tmp_path, seeds=[0, 1], attacks=["loss-series", "fedmia-i"])
    invoke(path, "--results", tmp_path / "a", "--workers", 1)
    invoke(path, "--results", tmp_path / "b", "--workers", 2)
    one, two = fingerprint(tmp_path / "a"), fingerprint(tmp_path / "b")
    assert one == two and len(one) == 8
    invoke(path, "--results", tmp_path / "c", "--only", "attack=fedmia-i,seed=1")
    alone = fingerprint(tmp_path / "c")
    assert len(alone) == 2 and all(one[name] == alone[name] for name in alone)


def test_kill_minus_nine_then_the_same_command_gives_the_same_records(tmp_path, toys):
    path, marker = suite(tmp_path, defenses=["none", "waits"], seeds=[0, 1]), tmp_path / "cut" / "records"
    invoke(path, "--results", tmp_path / "whole")
    (tmp_path / "wait").touch()  # the second of four runs gets no further than its first round
    process = start(path, tmp_path / "cut", toys)
    wait_for(lambda: len(list(marker.glob("*.json"))) == 1, process)
    process.kill()
    process.communicate()
    (tmp_path / "wait").unlink()
    assert {defense for defense, _, _ in records(tmp_path / "cut")} == {"none"}
    (marker / f"{TEMPORARY_PREFIX}stray").write_text("half a record")
    assert "3 runs with 3 cells to compute" in invoke(path, "--results", tmp_path / "cut")
    assert fingerprint(tmp_path / "cut") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("which", [
    signal.SIGINT, *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGHUP, signal.SIGQUIT))
])
def test_a_signal_to_end_stops_cleanly_and_keeps_what_is_finished(tmp_path, toys, which):
    path = suite(tmp_path, defenses=["none", "toy-hangs"])
    # tests started in the background of a shell inherit an ignored SIGINT, and so would the command
    listens = {"preexec_fn": lambda: signal.signal(which, signal.SIG_DFL)}
    process = start(path, tmp_path / "r", toys, **listens)
    wait_for((tmp_path / "hangs").exists, process)
    process.send_signal(which)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "1 of 2 cells are done and kept; the same command goes on from here" in output
    assert list(records(tmp_path / "r")) == [("none", "loss-series", 0)]


def test_running_again_redoes_nothing_and_rerun_says_what_to_redo(tmp_path, toys):
    path = suite(tmp_path, defenses=["none", "toy-raises"])
    invoke(path, "--results", tmp_path / "r", status=1)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r" / "records").iterdir()}
    assert "0 runs with 0 cells" in invoke(path, "--results", tmp_path / "r", status=1)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r" / "records").iterdir()} == before
    assert "1 runs with 1 cells" in invoke(path, "--results", tmp_path / "r", "--rerun", "failed", status=1)
    assert "2 runs with 2 cells" in invoke(path, "--results", tmp_path / "r", "--rerun", "always", status=1)
    assert "0 runs with 0 cells" in invoke(path, "--results", tmp_path / "r", "--rerun", "never", status=1)


def test_a_new_attack_needs_no_new_training_and_gives_the_same_bits(tmp_path):
    folder = tmp_path / "r"
    invoke(suite(tmp_path, attacks=["loss-series", "fedmia-i"]), "--results", folder)
    for p in (folder / "records").glob("*fedmia-i*"):
        p.unlink()
    (cached,) = (folder / "cache").glob("*.npz")
    stamp = cached.stat().st_mtime_ns
    invoke(suite(tmp_path, attacks=["loss-series", "fedmia-i"]), "--results", folder)
    assert cached.stat().st_mtime_ns == stamp
    invoke(suite(tmp_path, attacks=["loss-series", "fedmia-i"]), "--results", tmp_path / "fresh")
    assert fingerprint(folder) == fingerprint(tmp_path / "fresh")


def test_a_signal_whose_code_changed_is_measured_again(tmp_path):
    path = suite(tmp_path)
    invoke(path, "--results", tmp_path / "r")
    (job,) = build_plan(path, (), tmp_path / "r", "cpu").jobs
    assert load(job) is not None
    changed = replace(job, signals={**job.signals, "loss": job.signals["loss"].model_copy(update={"digest": "other"})})
    assert load(changed) is None
    untouched = replace(job, signals={**job.signals, "margin": job.signals["margin"].model_copy(update={"digest": "other"})})
    assert load(untouched) is not None


@settings(max_examples=25)
@given(data=st.data())
def test_a_cache_with_any_damage_is_no_cache(cached_job, data):
    job, whole = cached_job
    path = cache_path(job)
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    damaged = cache_damage(whole, data.draw(st.sampled_from(("flip", "cut", "swap"))), at, bit)
    path.write_bytes(damaged)
    kept = load(job)
    if kept is not None:  # a flip in what zip archives say twice, or do not use
        meta, arrays = unharmed(job, whole)
        assert kept[0] == meta and all(np.array_equal(kept[1][n], a, equal_nan=True) for n, a in arrays.items())


@pytest.fixture(scope="module")
def cached_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cached")
    path = suite(folder)
    invoke(path, "--results", folder / "r")
    (job,) = build_plan(path, (), folder / "r", "cpu").jobs
    return job, cache_path(job).read_bytes()


def unharmed(job, whole):
    cache_path(job).write_bytes(whole)
    return load(job)


def test_a_damaged_cache_only_costs_the_training_again(tmp_path):
    path, folder = suite(tmp_path, attacks=["loss-series", "fedmia-i"]), tmp_path / "r"
    invoke(path, "--results", folder)
    whole = fingerprint(folder)
    (cached,) = (folder / "cache").glob("*.npz")
    cached.write_bytes(cached.read_bytes()[:100])
    for p in (folder / "records").glob("*fedmia-i*"):
        p.unlink()
    invoke(path, "--results", folder)
    assert fingerprint(folder) == whole


def test_clean_deletes_caches_and_never_results(tmp_path):
    folder = tmp_path / "r"
    invoke(suite(tmp_path), "--results", folder)
    whole = fingerprint(folder)
    for words in (["--dry-run"], []):
        assert CliRunner().invoke(clean, [str(folder), *words]).exit_code == 0
    assert not list((folder / "cache").iterdir()) and fingerprint(folder) == whole


def test_dry_run_counts_runs_and_cells_and_writes_nothing(tmp_path):
    path = suite(tmp_path, seeds=[0, 1, 2], coalitions=["pair", "half"], attacks=["loss-series", "fedmia-i"])
    output = invoke(path, "--results", tmp_path / "r", "--dry-run")
    assert "3 runs, 6 cells, 0 of them recorded" in output and not (tmp_path / "r").exists()


def test_scores_are_kept_with_the_record(tmp_path):
    folder = tmp_path / "r"
    invoke(suite(tmp_path), "--results", folder)
    (npz,) = (folder / "records").glob("*.npz")
    arrays, (record,) = read_npz(npz), records(folder).values()
    assert [t["target"] for t in record["targets"]] == [0, 1, 2, 3]
    for t in record["targets"]:
        kind = arrays[f"t{t['target']}_kind"]
        assert (kind == 0).sum() == t["groups"]["mix"]["n_members"]
        assert (kind == 1).sum() == 20 and (kind == 2).sum() == 60
    assert arrays["test_correct"].mean() == pytest.approx(record["utility"]["accuracy"])


# -- folders that are not ours, or broken ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda d: (d / "thesis.tex").write_text("x"), "not empty and not a fedbench results folder"),
        (lambda d: (d / "fedbench.json").write_text('{"schema_version": 1, "suite": "other", "cells": []}'), "suite 'other'"),
        (lambda d: (d / "fedbench.json").write_text('{"schema_version": 99, "suite": "tiny"}'), "schema 99 is newer"),
        (lambda d: (d / "fedbench.json").write_text("{half"), "unreadable"),
    ],
)
def test_a_foreign_or_unreadable_folder_is_refused_untouched(tmp_path, prepare, message):
    folder = tmp_path / "r"
    folder.mkdir()
    prepare(folder)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match=message):
        invoke(suite(tmp_path), "--results", folder)
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"schema_version": 99}', "newer fedbench"), ("{half", "unreadable"), ("{}", "not a fedbench record")],
)
def test_a_record_that_cannot_be_read_is_never_replaced(tmp_path, content, message):
    folder = tmp_path / "r"
    invoke(suite(tmp_path), "--results", folder)
    (record,) = (folder / "records").glob("*.json")
    record.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        invoke(suite(tmp_path), "--results", folder)
    assert str(record) in str(caught.value) and record.read_text() == content


def test_two_runs_cannot_write_one_folder(tmp_path):
    folder = tmp_path / "r"
    with Results.create(folder, "tiny").lock(), pytest.raises(UserError, match="another `fedbench run` is writing here"):
        invoke(suite(tmp_path), "--results", folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"federation": {"clients": 2000, "rounds": 2, "batch_size": 1, "optimizer": {"lr": 1.0}}}, "training samples for 2000"),
        ({"partition": {"name": "dirichlet", "beta": 0.01, "min_samples": 450}}, "leaves client"),
        ({"dataset": {"name": "digits", "params": {"test": 1000, "holdout": 900}}}, "leave none to train on"),
        ({"audit": {"nonmembers": 2}}, "no outside non-members"),
        ({"dataset": {"name": "digits"}, "model": {"name": "cnn-small", "params": {"channels": 6}}}, "multiple of 4"),
    ],
)
def test_data_that_cannot_carry_the_setting_is_found_before_training(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        invoke(changed(tmp_path, change), "--results", tmp_path / "r")
    assert "tiny.yaml:" in str(caught.value) and not (tmp_path / "r").exists()


# -- other settings, other machines ---------------------------------------------------------------------------------

ELSEWHERE = '''
    from pathlib import Path
    from pydantic import Field
    from fedbench.core import Component, UserError, hookimpl
    from fedbench.plugins.datasets.digits import Digits

    class Elsewhere(Digits):
        """Digits, as long as there is a certain file."""
        class Params(Digits.Params):
            key: str = Field(description="path of the file")

        def load(self, seed):
            if not Path(self.params.key).exists():
                raise UserError("its data is not here")
            return super().load(seed)

    @hookimpl
    def fedbench_datasets():
        yield Component("elsewhere", "elsewhere:Elsewhere", "digits under a key")
'''


@pytest.fixture
def two_settings(site, tmp_path):
    """(suite of the settings digits and away, the file that away's data needs)."""
    install(site, "elsewhere", ELSEWHERE)
    key, yaml = tmp_path / "key", YAML(typ="safe")
    path = suite(tmp_path)
    spec = yaml.load(path)
    (here,) = spec["settings"]
    data = {"name": "elsewhere", "params": {**here["dataset"]["params"], "key": str(key)}}
    spec["settings"] = [here, {**here, "name": "away", "dataset": data}]
    yaml.dump(spec, path)
    return path, key


def manifest(folder):
    return sorted(Results.open(folder).marker()["cells"])


def test_one_setting_runs_without_the_data_of_the_others(tmp_path, two_settings):
    path, _ = two_settings
    with pytest.raises(UserError, match="its data is not here"):
        invoke(path, "--results", tmp_path / "r")
    invoke(path, "--results", tmp_path / "r", "--only", "setting=digits")
    (record,) = records(tmp_path / "r").values()
    assert (record["setting"], record["outcome"]) == ("digits", "ok")
    assert build_plan(str(path), (), tmp_path / "r", "cpu", {"setting": {"digits"}}).left_out == ("away",)
    for only in ("setting=away", "defense=none"):  # which defense it is does not say whose data is asked for
        with pytest.raises(UserError, match="its data is not here"):
            invoke(path, "--results", tmp_path / "r", "--only", only)


def test_what_was_left_out_stays_on_the_board(tmp_path, two_settings):
    path, key = two_settings
    key.touch()
    invoke(path, "--results", tmp_path / "r")
    both = manifest(tmp_path / "r")
    assert [stem.partition("--")[0] for stem in both] == ["away", "digits"]
    key.unlink()
    invoke(path, "--results", tmp_path / "r", "--only", "setting=digits")
    assert manifest(tmp_path / "r") == both
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "## Setting away" in board and "## Setting digits" in board


def test_what_a_suite_no_longer_asks_for_leaves_the_manifest(tmp_path, two_settings):
    path, key = two_settings
    key.touch()
    invoke(path, "--results", tmp_path / "r")
    path.write_text(path.read_text().replace("name: away", "name: far"))
    invoke(path, "--results", tmp_path / "r", "--only", "setting=digits")
    assert [stem.partition("--")[0] for stem in manifest(tmp_path / "r")] == ["digits"]
    invoke(path, "--results", tmp_path / "r")
    assert [stem.partition("--")[0] for stem in manifest(tmp_path / "r")] == ["digits", "far"]


def rewritten(folder, **provenance):
    """Every record as if it had been made elsewhere."""
    for path in (folder / "records").glob("*.json"):
        record = unprotected(path)
        record["provenance"] |= provenance
        path.write_text(json.dumps(record))


@pytest.mark.slow
def test_records_of_another_type_of_cpu_are_reported(tmp_path):
    one, two = suite(tmp_path), tmp_path / "two"
    two.mkdir()
    more = suite(two, attacks=["loss-series", "fedmia-i"])
    folder = tmp_path / "r"
    assert "another type of CPU" not in invoke(one, "--results", folder) + invoke(one, "--results", folder)
    rewritten(folder, cpu="Abacus", cpu_capability="BEADS")
    output = " ".join(invoke(one, "--results", folder).split())
    assert "some of these records were made on another type of CPU (Abacus (BEADS)): nothing is computed anew" in output
    output = " ".join(invoke(more, "--results", folder).split())
    assert "(Abacus (BEADS)): what is computed now may differ from them in the last digits" in output
    assert len({r["provenance"]["cpu"] for r in records(folder).values()}) == 2
    invoke(more, "--results", folder, "--rerun", "always")
    assert "another type of CPU" not in invoke(more, "--results", folder)


def test_the_instructions_count_and_the_cpu_beside_a_gpu_does_not(tmp_path):
    path, folder = suite(tmp_path), tmp_path / "r"
    invoke(path, "--results", folder)
    rewritten(folder, cpu_capability="BEADS")
    assert "(BEADS)): nothing is computed anew" in " ".join(invoke(path, "--results", folder).split())
    rewritten(folder, device="cuda")
    assert "another type of CPU" not in invoke(path, "--results", folder)


def test_a_training_cached_on_another_type_of_cpu_is_made_again(tmp_path, monkeypatch):
    audit = {"every": 2, "nonmembers": 40, "shadow": {"samples": 40, "models": 2, "epochs": 1}}
    path, folder = changed(tmp_path, {"audit": audit}, attacks=["loss-series", "rmia"]), tmp_path / "r"
    invoke(path, "--results", folder)
    (job,) = build_plan(str(path), (), folder, "cpu").jobs
    assert load(job) is not None
    abacus = job.provenance.model_copy(update={"cpu": "Abacus"})
    assert load(replace(job, provenance=abacus)) is None

    def stamps(which):
        return {p.name: p.stat().st_mtime_ns for p in (folder / "cache").glob("*.npz") if p.name.startswith("shadow") == which}

    before, shadows = stamps(False), stamps(True)
    assert len(before) == len(shadows) == 1
    invoke(path, "--results", folder, "--rerun", "always")
    assert (stamps(False), stamps(True)) == (before, shadows)
    monkeypatch.setattr("fedbench.core.execution.provenance._cpu", lambda: "Abacus")
    invoke(path, "--results", folder, "--rerun", "always")
    assert stamps(False).keys() == before.keys() and stamps(False) != before
    assert shadows.items() < stamps(True).items() and len(stamps(True)) == 2  # shadow models have bits of their own
    assert {r["provenance"]["cpu"] for r in records(folder).values()} == {"Abacus"}


def test_a_record_says_how_long_its_training_took_by_the_clock(tmp_path):
    path, folder = suite(tmp_path, attacks=["loss-series", "fedmia-i"]), tmp_path / "r"
    invoke(path, "--results", folder)
    (took,) = {r["measured"]["train_wall_s"] for r in records(folder).values()}
    assert took > 0 and {r["schema_version"] for r in records(folder).values()} == {6}
    invoke(path, "--results", folder, "--rerun", "always")  # the training comes from the cache, and so does its time
    assert {r["measured"]["train_wall_s"] for r in records(folder).values()} == {took}


def test_a_record_of_schema_2_is_read_as_it_is(tmp_path):
    path, folder = suite(tmp_path), tmp_path / "r"
    invoke(path, "--results", folder)
    (file,) = (folder / "records").glob("*.json")
    now = read_record(file).record
    record = unprotected(file, schema=2)
    del record["measured"]["train_wall_s"], record["provenance"]["cpu_capability"]
    file.write_text(json.dumps(record))
    then = read_record(file).record
    assert (then.schema_version, then.measured.train_wall_s, then.provenance.cpu_type) == (3, None, now.provenance.cpu)
    assert then.targets == now.targets and then.pooled == now.pooled and then.history == now.history
    assert "0 runs with 0 cells" in invoke(path, "--results", folder)
