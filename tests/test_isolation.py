"""Ill-behaved plugins and machines: what they cost, what they leave behind, what the user reads."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_packages import install
from running import HANG_S, changed, fingerprint, invoke, outcomes, records, start, suite, wait_for

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, read_npz

PLUGIN = '''
    import ctypes, os, random, subprocess, sys, time
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Data, Dataset, Defense, Model, hookimpl

    def remember(name):
        with open("pids", "a") as f:  # where the command was called
            f.write(f"{name}\\n")

    class Exits(Defense):
        def protect(self, update, ctx):
            sys.exit(5)

    class Talks(Defense):
        def protect(self, update, ctx):
            os.write(1, b"\\xff raw bytes ")
            print("chatter")
            print("more chatter", file=sys.stderr)
            return update

    class Rants(Defense):
        def protect(self, update, ctx):
            raise ValueError("two\\nlines, \\x1b[31m red, \\ud800 and " + "long " * 10**5)

    class Hoards(Defense):
        def protect(self, update, ctx):
            heap = []
            while True:
                heap.append(bytes(10**7))

    class Spawns(Defense):
        def protect(self, update, ctx):
            remember(subprocess.Popen(["sleep", "3600"]).pid)
            remember(os.getpid())
            time.sleep(3600)

    class Holds(Defense):
        """Keeps the interpreter's lock, so that no thread of its process can act."""
        def protect(self, update, ctx):
            remember(os.getpid())
            ctypes.PyDLL(None).sleep(3600)

    class InitFails(Defense):
        def __init__(self, **values):
            raise ValueError("not today")

    class InitExits(Defense):
        def __init__(self, **values):
            sys.exit(3)

    class NoModels(Defense):
        n_models = -1

    class Last(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return -observations.of_target("loss")[-1]

    class Wrecks(Last):
        """Changes whatever it can reach."""
        def score(self, observations, audit):
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(2)
            torch.set_grad_enabled(False)
            for generator in (np.random.seed, torch.manual_seed, random.seed):
                generator(0)
            scores = super().score(observations, audit)
            observations["loss"][...] = 7.0
            return scores

    class Draws(Last):
        """From the global generators, which it should not."""
        def score(self, observations, audit):
            n = len(audit.ids)
            x = torch.rand(n, requires_grad=True)
            return np.random.rand(n) + (2 * x).detach().numpy() + random.random() * (x.dtype == torch.float32)

    class Leaves(Last):
        def score(self, observations, audit):
            sys.exit(4)

    class Vanishes(Last):
        def score(self, observations, audit):
            os._exit(4)

    class Sleeps(Last):
        def score(self, observations, audit):
            remember("asleep")
            time.sleep(3600)

    class God(Last):
        view = "god"

    class Letters(Last):
        needs = "loss"

    def blobs(rng, bad=None):
        x, y = rng.normal(size=(900, 8)).astype(np.float32), rng.integers(0, 2, 900)
        if bad is not None:
            x[3, 3] = bad
        return Data(
            train_x=x[:600], train_y=y[:600], test_x=x[600:700], test_y=y[600:700], holdout_x=x[700:], holdout_y=y[700:],
            n_classes=2,
        )

    class Fails(Dataset):
        def load(self, seed):
            raise ValueError("disk on fire")

    class Nothing(Dataset):
        def load(self, seed):
            pass

    class Nans(Dataset):
        def load(self, seed):
            return blobs(np.random.default_rng(seed), np.nan)

    class Unseeded(Dataset):
        def load(self, seed):
            return blobs(np.random.default_rng())

    class Narrow(Model):
        def build(self, shape, n_classes):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, n_classes))

    class Wide(Model):
        def build(self, shape, n_classes):
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, n_classes + 1))

    def announce(*classes):
        for c in classes:
            yield Component(f"ill-{c.__name__.lower()}", f"ill:{c.__name__}", "ill-behaved")

    @hookimpl
    def fedbench_defenses():
        return announce(Exits, Talks, Rants, Hoards, Spawns, Holds, InitFails, InitExits, NoModels)

    @hookimpl
    def fedbench_attacks():
        return announce(Last, Wrecks, Draws, Leaves, Vanishes, Sleeps, God, Letters)

    @hookimpl
    def fedbench_datasets():
        return announce(Fails, Nothing, Nans, Unseeded)

    @hookimpl
    def fedbench_models():
        return announce(Narrow, Wide)
'''


@pytest.fixture
def ill(site):
    return install(site, "ill", PLUGIN)


def test_an_attack_that_wrecks_the_process_costs_its_cell_and_changes_no_other(tmp_path, ill):
    company = ["ill-wrecks", "ill-leaves", "ill-vanishes", "ill-draws", "ill-last"]
    invoke(suite(tmp_path, attacks=company), "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r")
    assert found["ill-leaves"][0] == "failed" and found["ill-leaves"][1].startswith("it called sys.exit(4) [ill.py:")
    assert found["ill-vanishes"][0] == "failed" and "exit status 4" in found["ill-vanishes"][1]
    assert [found[f"ill-{a}"][0] for a in ("wrecks", "draws", "last")] == ["ok"] * 3
    alone = ["ill-draws", "ill-last"]
    invoke(suite(tmp_path, attacks=alone), "--results", tmp_path / "alone")
    together, apart = fingerprint(tmp_path / "r"), fingerprint(tmp_path / "alone")
    assert len(apart) == 4 and all(together[name] == apart[name] for name in apart)


def test_an_attack_that_hangs_costs_its_cell(tmp_path, ill, monkeypatch):
    from fedbench.core.execution import local_processes

    def now():
        """The time; once the attack is asleep, so much later that its run is beyond the limit."""
        return time.monotonic() + (HANG_S if (tmp_path / "pids").exists() else 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_processes, "time", SimpleNamespace(monotonic=now))
    invoke(suite(tmp_path, attacks=["loss-series", "ill-sleeps", "ill-last"]), "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r")
    assert found["ill-sleeps"] == ("timeout", f"stopped at the limit of {HANG_S} s (limits.run_seconds)")
    assert found["loss-series"][0] == found["ill-last"][0] == "ok"


def test_what_a_plugin_prints_goes_to_a_log_and_what_it_raises_into_one_line(tmp_path, ill, capfd):
    path = suite(tmp_path, defenses=["ill-talks", "ill-rants", "ill-exits"])
    invoke(path, "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r", part=0)
    assert found["ill-talks"][0] == "ok" and found["ill-exits"][1].startswith("it called sys.exit(5) [ill.py:")
    reason = found["ill-rants"][1]
    assert reason.startswith("Rants.protect (client 0, round 1): ValueError: two lines, [31m red, and long long")
    assert len(reason) < 700 and reason.isprintable()
    (log,) = (tmp_path / "r" / "logs").iterdir()
    assert b"\xff raw bytes" in log.read_bytes() and b"chatter\n" in log.read_bytes()
    assert "chatter" not in "".join(capfd.readouterr())


def test_memory_beyond_the_limit_ends_one_run(tmp_path, ill):
    path = suite(tmp_path, defenses=["none", "ill-hoards"], limits={"run_seconds": HANG_S, "memory_gb": 3})
    invoke(path, "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r", part=0)
    assert found["none"] == ("ok", "")
    assert found["ill-hoards"][0] == "failed" and found["ill-hoards"][1].startswith("out of memory: ")
    assert "limits.memory_gb" in found["ill-hoards"][1]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_minus_nine_of_the_parent_leaves_no_process_behind(tmp_path, ill):
    pids = tmp_path / "pids"
    process = start(suite(tmp_path, defenses=["ill-spawns", "ill-holds"]), tmp_path / "r", ill, workers=2)
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 3, process)
    process.kill()
    process.communicate()
    left = [int(p) for p in pids.read_text().split()]
    wait_for(lambda: not any(map(_alive, left)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_minus_nine_of_a_worker_costs_its_run(tmp_path, ill):
    pids = tmp_path / "pids"
    process = start(suite(tmp_path, defenses=["ill-spawns", "none"]), tmp_path / "r", ill)
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, process)
    child, worker = map(int, pids.read_text().split())
    os.kill(worker, signal.SIGKILL)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1 and not _alive(child)
    found = outcomes(tmp_path / "r", part=0)
    assert found["none"] == ("ok", "")
    assert found["ill-spawns"] == ("failed", "the worker was killed by SIGKILL - out of memory?") and "SIGKILL" in output


def test_a_results_folder_that_cannot_be_written_any_more_is_one_message(tmp_path, ill):
    def no_large_file():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    path = suite(tmp_path)
    process = start(path, tmp_path / "r", ill, preexec_fn=no_large_file)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 2, output
    assert "File too large; 0 of 1 cells are done and kept: make room, then the same command goes on from here" in output
    assert "Traceback" not in output and not list((tmp_path / "r" / "records").iterdir())
    invoke(path, "--results", tmp_path / "r")
    assert len(records(tmp_path / "r")) == 1


def test_a_dataset_that_differs_from_load_to_load_gives_no_score(tmp_path, ill):
    spec = {"dataset": "ill-unseeded", "model": {"name": "mlp", "params": {"hidden": [8]}}}
    invoke(changed(tmp_path, spec), "--results", tmp_path / "r", status=1)
    assert "load(seed) must depend on nothing but" in outcomes(tmp_path / "r")["loss-series"][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"defenses": ["ill-initfails"]}, r"defense 'ill-initfails' \(ill 1\.0\): ValueError: not today .*ill\.py:"),
        ({"defenses": ["ill-initexits"]}, r"it called sys\.exit\(3\)"),
        ({"defenses": ["ill-nomodels"]}, "n_models is -1, expected an integer >= 1, or 0"),
        ({"attacks": ["ill-god"]}, "view is 'god', expected one of server, client, coalition, external"),
        ({"attacks": ["ill-letters"]}, "needs is 'loss', expected a frozenset"),
        ({"dataset": "ill-fails"}, r"dataset 'ill-fails' \(ill 1\.0\): ValueError: disk on fire"),
        ({"dataset": "ill-nothing"}, "load returned NoneType, expected fedbench.core.Data"),
        ({"dataset": "ill-nans"}, "train_x holds values that are not finite"),
        ({"model": "ill-narrow"}, r"Narrow does not take samples of shape \[1, 8, 8\]"),
        ({"model": "ill-wide"}, r"Wide answers 2 samples with \[2, 11\], expected \[2, 10\]"),
    ],
)
def test_a_component_that_cannot_be_used_is_found_before_training(tmp_path, ill, change, message):
    inside = {k: v for k, v in change.items() if k in ("dataset", "model")}
    path = changed(tmp_path, inside, **{k: v for k, v in change.items() if k not in inside})
    with pytest.raises(UserError, match=message) as caught:
        invoke(path, "--results", tmp_path / "r")
    assert all(m.startswith(f"{path}:") for m in caught.value.messages) and not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"coalitions": ["pair", {"name": "mine", "clients": [1, 0]}]},
            r"coalitions 'pair' and 'mine' hold the same clients \[0, 1\]",
        ),
        ({"defenses": ["mixup", {"name": "mixup", "label": "again"}]}, "defenses 'mixup' and 'again' are the same"),
    ],
)
def test_rows_that_would_be_one_training_are_refused(tmp_path, change, message):
    path = suite(tmp_path, **{"defenses": ["mixup"], **change})
    with pytest.raises(UserError, match=message):
        invoke(path, "--results", tmp_path / "r")


def test_names_as_long_and_strange_as_allowed_make_file_names(tmp_path):
    strange = "../../" + "x" * 60 + ",|;<b>"
    path = suite(
        tmp_path, defenses=[{"name": "grad-noise", "label": strange, "grid": {"sigma": [0.1, 0.123456789012345]}}],
        attacks=[{"name": "loss-series", "label": strange}],
    )  # fmt: skip
    invoke(path, "--results", tmp_path / "r")
    files = [p.name for p in (tmp_path / "r" / "records").iterdir()]
    assert len(files) == 4 and max(map(len, files)) < 240
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "<b>" not in board and "&lt;b&gt;" in board
    assert "0 runs with 0 cells" in invoke(path, "--results", tmp_path / "r")


def test_a_label_that_changes_leaves_no_second_column(tmp_path):
    for label in ("old-name", "new-name"):
        path = suite(tmp_path, attacks=[{"name": "loss-series", "label": label}])
        invoke(path, "--results", tmp_path / "r")
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "new-name" in board and "old-name" not in board


def test_a_record_knows_its_view_even_if_the_training_failed(tmp_path, ill):
    install(ill, "eye", '''
        from fedbench.core import Attack, Component, hookimpl

        class Outside(Attack):
            view = "external"
            needs = frozenset({"loss"})

        @hookimpl
        def fedbench_attacks():
            yield Component("outside", "eye:Outside", "sees the final model")
    ''')
    invoke(suite(tmp_path, defenses=["ill-exits"], attacks=["outside"]), "--results", tmp_path / "r", status=1)
    assert [r["view"] for r in records(tmp_path / "r").values()] == ["external"]


def test_a_kill_before_the_folder_is_marked_leaves_it_usable(tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / f"{TEMPORARY_PREFIX}half").write_text("{")
    invoke(suite(tmp_path), "--results", folder)
    assert [p.suffix for p in sorted((folder / "records").iterdir())] == [".json", ".npz"]
    assert not list(folder.glob(f"{TEMPORARY_PREFIX}*"))


def test_scores_that_are_gone_are_found_before_anything_is_computed(tmp_path):
    folder = tmp_path / "r"
    invoke(suite(tmp_path), "--results", folder)
    (npz,) = (folder / "records").glob("*.npz")
    assert np.isfinite(read_npz(npz)["t0_scores"]).all()
    npz.unlink()
    more = suite(tmp_path, seeds=[0, 1])
    with pytest.raises(UserError, match=rf"{npz.name}: missing, though .*delete its record \({npz.stem}\.json\)"):
        invoke(more, "--results", folder)
    assert len(list((folder / "records").iterdir())) == 1
    npz.with_suffix(".json").unlink()
    invoke(more, "--results", folder)
    assert len(records(folder)) == 2
