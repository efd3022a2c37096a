"""`fedbench run` as a whole: what is computed, kept, resumed and refused, and the same bits
whatever happens on the way.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from fake_packages import WAITING, install
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import use
from running import (
    fingerprint,
    invoke,
    loaded,
    records,
    settings_of,
    start,
    suite,
    wait_for,
    without_attack,
)

from fedbench.core import Attack, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.run.trained_run import cache_path, load_training, save_training
from fedbench.core.run.worker import answers_of, trained
from fedbench.core.store.files import TEMPORARY_PREFIX
from fedbench.core.store.results import Results


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the finished results, to be changed."""
    return shutil.copytree(finished, tmp_path / "r")


@pytest.fixture(scope="module")
def jobs(finished):
    """The jobs of the finished run, without a defense and with one."""
    return build_plan(str(finished.parent / "tiny.yaml"), (), finished, "cpu").jobs


# --- the same bits, however they are computed -----------------------------------------------------


def test_a_missing_cell_is_judged_from_the_cached_training_and_a_damaged_cache_is_trained_again(
    finished, folder, jobs
):
    none, noise = (cache_path(replace(job, results=str(folder))) for job in jobs)
    noise.write_bytes(noise.read_bytes()[:100])
    stamp = none.stat().st_mtime_ns
    without_attack(folder, "fedmia-ii")
    path, whole = finished.parent / "tiny.yaml", fingerprint(finished)
    assert "1 runs with 1 cells to compute" in invoke(
        path, "--results", folder, "--only", "attack=fedmia-ii,defense=none"
    )
    assert len(part := fingerprint(folder)) == 6 and part.items() <= whole.items()
    output = invoke(path, "--results", folder)
    assert (
        "1 runs with 1 cells to compute" in output and "; 3 of 4 cells were done before\n" in output
    )
    assert "[1/1 cells; " in output and fingerprint(folder) == whole
    assert none.stat().st_mtime_ns == stamp and noise.stat().st_size > 100


@pytest.mark.slow
def test_kill_minus_nine_then_the_same_command_gives_the_same_records(tmp_path, site, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of the defenses writes a file where it runs
    toys = install(site, "waiting", WAITING)
    path, cut = suite(tmp_path, defenses=["none", "waits"]), tmp_path / "cut"
    invoke(path, "--results", tmp_path / "whole")
    (tmp_path / "wait").touch()  # the second run gets no further than its first round
    process = start(path, cut, toys)
    wait_for(lambda: len(list((cut / "records").glob("*.json"))) == 1, process)
    process.kill()
    process.communicate()
    (tmp_path / "wait").unlink()
    assert {defense for defense, _, _ in records(cut)} == {"none"}
    (cut / "records" / f"{TEMPORARY_PREFIX}stray").write_text("half a record")
    assert "1 runs with 1 cells to compute" in invoke(path, "--results", cut)
    assert fingerprint(cut) == fingerprint(tmp_path / "whole") and not list(
        cut.glob(f"**/{TEMPORARY_PREFIX}*")
    )


@pytest.mark.slow
def test_the_same_command_redoes_nothing_and_rerun_says_what_to_redo(finished, folder):
    def run(*more):
        return invoke(
            finished.parent / "tiny.yaml",
            "--results",
            folder,
            "--only",
            "defense=grad-noise",
            *more,
        )

    assert "0 runs with 0 cells" in run() and "0 runs with 0 cells" in run("--rerun", "failed")
    assert "1 runs with 2 cells" in run("--rerun", "always")
    assert fingerprint(folder) == fingerprint(finished)


# --- attacks of one fork --------------------------------------------------------------------------


class Vanishes(Attack):
    """Ends its process."""

    needs = frozenset({"loss"})

    def score(self, observations, audit):
        os._exit(4)


def test_own_attacks_share_a_fork_answer_as_alone_and_a_crash_costs_one_cell(finished, jobs):
    job = replace(jobs[0], results=str(finished))
    reports = []
    run, _ = trained(job, lambda *report: None)
    first, last = job.cells
    crash = replace(first, attack=use(Vanishes), key="crash")
    found = answers_of([first, crash, last], run, lambda *report: reports.append(report))
    judging = [key for kind, key in reports if kind == "judging"]
    assert judging == [first.key, "crash", last.key]
    assert found["crash"].outcome == "failed"
    assert "attack 'Vanishes' (tests 0): it ended the process with status 4" in str(found["crash"])
    for cell in (first, last):
        alone = answers_of([cell], run, lambda *report: None)
        pairs = zip(found[cell.key].scores, alone[cell.key].scores, strict=True)
        assert all(np.array_equal(scores, scores_alone) for scores, scores_alone in pairs)


# --- cached trainings -----------------------------------------------------------------------------


def test_a_cache_serves_the_same_code_and_type_of_cpu_alone(jobs):
    def with_code(name):
        return replace(
            job,
            signals={**job.signals, name: job.signals[name].model_copy(update={"digest": "other"})},
        )

    job = jobs[0]
    # no attack reads the margin
    assert load_training(job) is not None and load_training(with_code("margin")) is not None
    assert load_training(with_code("loss")) is None
    assert (
        load_training(replace(job, provenance=job.provenance.model_copy(update={"cpu": "Abacus"})))
        is None
    )


def test_a_later_training_keeps_the_signals_that_an_earlier_one_measured_of_the_same_rows(tmp_path):
    attacks = ["loss-series", "threshold-entropy"]
    path, folder = suite(tmp_path, attacks=attacks), tmp_path / "r"
    for attack in attacks:
        invoke(path, "--results", folder, "--only", f"attack={attack}")
    (job,) = build_plan(str(path), (), folder, "cpu").jobs
    invoke(path, "--results", tmp_path / "whole")
    meta, arrays = load_training(job)
    at_once, expected = load_training(replace(job, results=str(tmp_path / "whole")))
    assert (meta["code"], arrays.keys()) == (at_once["code"], expected.keys())
    assert all(np.array_equal(arrays[name], a, equal_nan=True) for name, a in expected.items())
    # what a later training failed to measure is that of the earlier one
    failing = {name: a for name, a in arrays.items() if name != "signal:loss"}
    save_training(job, (meta | {"failed": {"loss": "out of memory"}}, failing))
    again, kept = load_training(job)
    assert again["failed"] == {} and "signal:loss" in kept
    # of a training with other bits nothing is kept
    other = failing | {"test_correct": ~failing["test_correct"]}
    save_training(job, (meta, other))
    assert load_training(job) is None


@settings(max_examples=25)
@given(
    kind=st.sampled_from(("flip", "cut", "swap")),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_damaged_cache_is_no_cache_or_says_the_same(tmp_path_factory, jobs, kind, where, bit):
    content = cache_path(jobs[0]).read_bytes()
    job = replace(jobs[0], results=str(tmp_path_factory.mktemp("damaged")))
    at = int(where * len(content))
    flipped = content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
    cache_path(job).parent.mkdir()
    cache_path(job).write_bytes(
        {"flip": flipped, "cut": content[:at], "swap": content[at:] + content[:at]}[kind]
    )
    # a flip in what zip archives say twice, or do not use
    if (found := load_training(job)) is not None:
        meta, arrays = load_training(jobs[0])
        assert found[0] == meta and all(
            np.array_equal(found[1][n], a, equal_nan=True) for n, a in arrays.items()
        )


# --- what a run leaves, and names -----------------------------------------------------------------


def test_scores_are_kept_with_the_record(finished):
    for r in loaded(finished):
        arrays, record = r.all_arrays(), r.record.model_dump(mode="json")
        assert [t["target"] for t in record["targets"]] == (
            [0, 1, 2, 3] if record["defense"]["label"] == "none" else [0, 1]
        )
        for t in record["targets"]:
            kind = arrays[f"t{t['target']}_kind"]
            assert (kind == 0).sum() == t["groups"]["mix"]["n_members"]
            assert (kind == 1).sum() == 20 and (kind == 2).sum() == 60
        assert arrays["test_correct"].mean() == pytest.approx(record["utility"]["accuracy"])
        assert record["measured"]["train_wall_s"] > 0


# --- records that cannot be read ------------------------------------------------------------------


def test_records_that_cannot_be_read_and_lost_scores_are_named_and_never_replaced(finished, folder):
    wrong = {
        '{"schema_version": 99}': "newer fedbench",
        "{half": "unreadable",
        "{}": "not a fedbench record",
    }
    for spoilt, wanted in wrong.items():
        one, two = sorted((folder / "records").glob("*.json"))
        one.write_text(spoilt)
        for arrays in (folder / "records").glob(f"{two.stem}--*.npz"):
            arrays.unlink()
        with pytest.raises(UserError) as told:
            invoke(finished.parent / "tiny.yaml", "--results", folder)
        said = {path: next(m for m in told.value.messages if path.stem in m) for path in (one, two)}
        assert wanted in said[one] and "delete its record" in said[two], said
        assert one.read_text() == spoilt and not list((folder / "records").glob("*.npz"))[1:]


# --- suites that cannot be run are refused before training ----------------------------------------

MISTAKEN = """
    import sys
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Data, Dataset, Defense, Model, UserError, hookimpl

    class InitFails(Defense):
        def __init__(self, **values):
            raise ValueError("not today")

    class InitExits(Defense):
        def __init__(self, **values):
            sys.exit(3)

    class NoModels(Defense):
        n_models = -1

    class God(Attack):
        needs = frozenset({"loss"})
        view = "god"

    class Letters(Attack):
        needs = "loss"

    class Fails(Dataset):
        def load(self, seed):
            raise ValueError("disk on fire")

    class Nothing(Dataset):
        def load(self, seed):
            pass

    class Nans(Dataset):
        def load(self, seed):
            x, y = np.full((900, 8), np.nan, np.float32), np.arange(900) % 2
            arrays = {"train_x": x, "test_x": x, "holdout_x": x}
            arrays |= {"train_y": y, "test_y": y, "holdout_y": y}
            return Data(**arrays, n_classes=2)

    class Waves(Dataset):
        def load(self, seed):
            x, y = np.ones((900, 8), np.complex64), np.arange(900) % 2
            arrays = {"train_x": x, "test_x": x, "holdout_x": x}
            arrays |= {"train_y": y, "test_y": y, "holdout_y": y}
            return Data(**arrays, n_classes=2)

    class Narrow(Model):
        def build(self, shape, n_classes):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, n_classes))

    class Wide(Model):
        def build(self, shape, n_classes):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, n_classes + 1))

    def announced(*classes):
        for c in classes:
            yield Component(c.__name__.lower(), f"mistaken:{c.__name__}", "cannot be used")

    @hookimpl
    def fedbench_defenses():
        return announced(InitFails, InitExits, NoModels)

    @hookimpl
    def fedbench_attacks():
        return announced(God, Letters)

    @hookimpl
    def fedbench_datasets():
        return announced(Fails, Nothing, Nans, Waves)

    @hookimpl
    def fedbench_models():
        return announced(Narrow, Wide)
"""
FEW = {"clients": 2000, "rounds": 2, "local_epochs": 1, "batch_size": 1, "optimizer": {"lr": 1.0}}
REFUSED = {
    "too many clients": ({"federation": FEW}, "training samples for 2000"),
    "partition": (
        {"partition": {"name": "dirichlet", "beta": 0.01, "min_samples": 450}},
        "leaves client",
    ),
    "no training data": (
        {"dataset": {"name": "digits", "params": {"test": 1000, "holdout": 900}}},
        "leave none to train on",
    ),
    "few outside": ({"audit": {"nonmembers": 2}}, "no outside non-members"),
    "data raises": (
        {"dataset": "fails", "model": "mlp"},
        "dataset 'fails' (mistaken 1.0): ValueError: disk on fire",
    ),
    "no data": (
        {"dataset": "nothing", "model": "mlp"},
        "load returned NoneType, expected fedbench.core.Data",
    ),
    "not finite": ({"dataset": "nans", "model": "mlp"}, "train_x holds values that are not finite"),
    "complex": ({"dataset": "waves", "model": "mlp"}, "train_x is complex64, expected float32"),
    "narrow model": ({"model": "narrow"}, "Narrow does not take samples of shape [1, 8, 8]"),
    "wide model": ({"model": "wide"}, "Wide answers 2 samples with [2, 11], expected [2, 10]"),
}
MISTAKES = {
    "initfails": "defense 'initfails' (mistaken 1.0): ValueError: not today",
    "initexits": "it called sys.exit(3)",
    "nomodels": "n_models is -1, expected an integer >= 1, or 0",
    "god": "view is 'god', expected one of server, client",
    "letters": "needs is 'loss', expected a frozenset",
    "again": "defenses 'mixup' and 'again' are the same",
}


def test_a_suite_that_cannot_be_run_is_refused_before_training_with_every_mistake(site, tmp_path):
    """With a setting for each mistake of ``REFUSED``, and with the components of ``MISTAKES``."""
    install(site, "mistaken", MISTAKEN)
    listed = settings_of(
        tmp_path,
        *({"name": name.replace(" ", "-"), **change} for name, (change, _) in REFUSED.items()),
    )
    defenses = [
        "none",
        "mixup",
        {"name": "mixup", "label": "again"},
        "initfails",
        "initexits",
        "nomodels",
    ]
    messages = []
    mistaken = {"defenses": defenses, "attacks": ["loss-series", "god", "letters"]}
    for more in ({"settings": listed}, mistaken):
        with pytest.raises(UserError) as told:
            invoke(suite(tmp_path, **more), "--results", tmp_path / "r")
        messages += told.value.messages
    assert not (tmp_path / "r").exists()
    assert all(m.startswith(f"{tmp_path / 'tiny.yaml'}:") for m in messages)
    wanted = {**{name: words for name, (_, words) in REFUSED.items()}, **MISTAKES}
    assert {
        name for name, words in wanted.items() if len([m for m in messages if words in m]) != 1
    } == set(), messages


# --- other settings -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly
def test_results_of_other_settings_stay_on_the_board_until_the_suite_drops_them(folder, tmp_path):
    def manifest():
        return sorted({stem.partition("--")[0] for stem in Results.open(folder).marker()["cells"]})

    path = suite(
        tmp_path, settings=settings_of(tmp_path, {}, {"name": "away"}), attacks=["loss-series"]
    )
    invoke(path, "--results", folder, "--only", "setting=away")
    board = (folder / "leaderboard" / "board.md").read_text()
    assert manifest() == ["away", "digits"]
    assert "**At a glance**: away," in board and "**At a glance**: digits," in board
    path.write_text(path.read_text().replace("name: away", "name: far"))
    invoke(path, "--results", folder, "--only", "setting=digits")
    assert manifest() == ["digits"]
