"""Ill-behaved plugins and machines: what they cost, what they leave behind, what the user reads."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_packages import install
from running import HANG_S, changed, fingerprint, invoke, outcomes, records, start, suite, wait_for

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.execution import worker
from fedbench.core.store.files import TEMPORARY_PREFIX, read_npz

PLUGIN = '''
    import ctypes, gc, os, random, subprocess, sys, threading, time, warnings
    import numpy as np
    import torch
    from fedbench.core import Attack, Audit, Component, Data, Dataset, Defense, Model, hookimpl

    def remember(name):
        with open("pids", "a") as f:  # where the command was called
            f.write(f"{name}\\n")

    class Exits(Defense):
        def protect(self, update, ctx):
            sys.exit(5)

    class Twins(Defense):
        """And forgets to end the copy."""
        def protect(self, update, ctx):
            os.fork()
            return update

    class Gone(Defense):
        def protect(self, update, ctx):
            os._exit(0)

    class Wordy(Defense):
        def report(self, ctx):
            return {"long " * 1000: 1.0}

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
            torch.set_float32_matmul_precision("medium")
            torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
            torch.inference_mode(True).__enter__()
            torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 0)
            np.argsort = np.sort = lambda a, *rest, **named: np.zeros(len(a), int)
            Audit.rng = property(lambda audit: np.random.default_rng(0))
            os.environ["FEDBENCH_DATA"] = "nowhere"
            warnings.simplefilter("error")
            threading.Thread(target=spoil, args=(observations["loss"],), daemon=True).start()
            gc.disable()
            return scores

    def spoil(a):
        while True:
            torch.set_default_dtype(torch.float64)

    class Writes(Last):
        """To what it is shown, in place."""
        def score(self, observations, audit):
            observations["loss"][...] = 7.0
            return super().score(observations, audit)

    class Draws(Last):
        """From the global generators, which it should not."""
        def score(self, observations, audit):
            n = len(audit.ids)
            x = torch.rand(n, requires_grad=True)
            return np.random.rand(n) + (2 * x).detach().numpy() + random.random() * (x.dtype == torch.float32)

    class Leaves(Last):
        def score(self, observations, audit):
            sys.exit(4)

    class Copies(Last):
        """And forgets to end the copy."""
        def score(self, observations, audit):
            os.fork()
            return super().score(observations, audit)

    class Tardy(Last):
        """Takes long to be made, once a run began."""
        def __init__(self, **values):
            super().__init__(**values)
            while os.path.exists("r/records"):
                pass

    class Undecided(Last):
        """Its threshold is no number any more, once it was asked."""
        def score(self, observations, audit):
            self.threshold = float("nan")
            return super().score(observations, audit)

    class Vanishes(Last):
        def score(self, observations, audit):
            os._exit(4)

    class Sleeps(Last):
        def score(self, observations, audit):
            remember("asleep")
            time.sleep(3600)

    class Complex(Last):
        def score(self, observations, audit):
            return super().score(observations, audit) + 0j

    class Text(Last):
        def score(self, observations, audit):
            return np.array(["0.25"] * len(audit.ids))

    class Masked(Last):
        def score(self, observations, audit):
            return np.ma.masked_greater(super().score(observations, audit), 0)

    class Objects(Last):
        def score(self, observations, audit):
            return np.array([None] * len(audit.ids))

    class Short(Last):
        def score(self, observations, audit):
            return np.zeros(3)

    def hoard_handles():
        return [open("/dev/null") for _ in range(10**6)]

    class Opens(Last):
        def score(self, observations, audit):
            hoard_handles()

    class Daemonises(Last):
        """Leaves a process of a session of its own behind, which nobody waits for."""
        def score(self, observations, audit):
            script = (
                "import os, sys, time; os.fork() and sys.exit(); os.setsid(); "
                "print(os.getpid(), file=open('pids', 'a'), flush=True); time.sleep(3600)"
            )
            subprocess.run([sys.executable, "-c", script], check=True)
            while not os.path.exists("pids") or not open("pids").read():
                time.sleep(0.01)
            return super().score(observations, audit)

    class Leaks(Defense):
        def protect(self, update, ctx):
            hoard_handles()

    class Cheats(Defense):
        def begin(self, ctx):
            from fedbench.core.experiment import verdict
            from fedbench.core.metrics import groups
            groups.score_groups = verdict.score_groups = lambda *a: {}
            np.isin = lambda a, b: np.zeros(len(a), bool)

    class Chatters(Last):
        def score(self, observations, audit):
            line, total = "x" * 9999, 0
            for _ in range(5000):
                total += len(line) + 1
                print(line)
            remember(total)
            time.sleep(1)
            print("the end")
            return super().score(observations, audit)

    class God(Last):
        view = "god"

    class Spins(Last):
        def score(self, observations, audit):
            while True:
                pass

    class Dozes(Defense):
        """Takes its time and no processor's."""
        def protect(self, update, ctx):
            time.sleep(1.0)
            return update

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
        return announce(
            Exits, Talks, Rants, Hoards, Spawns, Holds, Dozes, Leaks, Cheats, InitFails, InitExits, NoModels, Twins, Gone, Wordy,
        )

    @hookimpl
    def fedbench_attacks():
        return announce(
            Last, Wrecks, Writes, Draws, Leaves, Vanishes, Sleeps, Spins, Complex, Text, Masked, Objects, Short, Opens,
            Chatters, Daemonises, God, Letters, Copies, Tardy, Undecided,
        )

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
    company = ["ill-wrecks", "ill-writes", "ill-leaves", "ill-vanishes", "ill-draws", "ill-last"]
    invoke(suite(tmp_path, attacks=company), "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r")
    assert found["ill-leaves"][0] == "failed"
    assert found["ill-leaves"][1].startswith("attack 'ill-leaves' (ill 1.0): it called sys.exit(4) (ill.py:")
    assert found["ill-vanishes"] == ("failed", "attack 'ill-vanishes' (ill 1.0): it ended the process with status 4")
    assert found["ill-writes"][0] == "failed" and "read-only" in found["ill-writes"][1]
    assert [found[f"ill-{a}"][0] for a in ("wrecks", "draws", "last")] == ["ok"] * 3
    alone = ["ill-draws", "ill-last"]
    invoke(suite(tmp_path, attacks=alone), "--results", tmp_path / "alone")
    together, apart = fingerprint(tmp_path / "r"), fingerprint(tmp_path / "alone")
    assert len(apart) == 4 and all(together[name] == apart[name] for name in apart)


@pytest.mark.slow
def test_an_attack_that_hangs_or_never_ends_costs_its_cell(tmp_path, ill, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attacks = ["loss-series", "ill-sleeps", "ill-spins", "ill-last"]
    limits = {"run_seconds": 5, "idle_seconds": 3}
    invoke(suite(tmp_path, attacks=attacks, limits=limits), "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r")
    assert found["ill-sleeps"] == ("timeout", "stopped: nothing moved for 3 s (limits.idle_seconds)")
    assert found["ill-spins"] == ("timeout", "stopped: it used more than 5 s of CPU (limits.run_seconds)")
    assert found["loss-series"][0] == found["ill-last"][0] == "ok"


@pytest.mark.slow
def test_a_run_that_waits_for_the_processor_is_not_out_of_time(tmp_path, ill):
    """The limit counts CPU time: here the clock runs far beyond it, as on a machine that others keep busy."""
    path = suite(tmp_path, defenses=["ill-dozes"], limits={"run_seconds": 6, "idle_seconds": HANG_S})
    invoke(path, "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["outcome"] == "ok" and record["measured"]["wall_s"] > 6 > record["measured"]["cpu_s"]


def test_a_copy_that_somebody_makes_of_its_process_changes_nothing(tmp_path, ill):
    path = suite(tmp_path, defenses=["ill-twins", "none"], attacks=["ill-copies", "ill-last"])
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    for defense in ("ill-twins", "none"):
        assert found[defense, "ill-copies", 0]["pooled"] == found[defense, "ill-last", 0]["pooled"]


@pytest.mark.slow
def test_who_takes_too_long_to_be_made_is_named_with_the_limit_that_ended_it(tmp_path, ill, monkeypatch):
    monkeypatch.setenv("FEDBENCH_PLUGIN_SECONDS", "8")
    process = start(suite(tmp_path, attacks=["ill-tardy", "ill-last"]), tmp_path / "r", ill)
    assert "8 s of CPU" in process.communicate()[0] and process.returncode == 1
    found = outcomes(tmp_path / "r")
    assert found["ill-last"][0] == "ok"
    assert found["ill-tardy"] == (
        "timeout", "stopped: attack 'ill-tardy' (ill 1.0): it used more than 8 s of CPU; FEDBENCH_PLUGIN_SECONDS sets how long "
        "it may take",
    )  # fmt: skip


def test_a_defense_that_ends_the_training_is_named(tmp_path, ill):
    invoke(suite(tmp_path, defenses=["ill-gone"]), "--results", tmp_path / "r", status=1)
    why = "training with the defense 'ill-gone' (ill 1.0): it ended the process with status 0"
    assert outcomes(tmp_path / "r", 0) == {"ill-gone": ("failed", why)}


def test_a_name_as_long_as_a_page_is_no_name_of_a_fact(tmp_path, ill):
    invoke(suite(tmp_path, defenses=["ill-wordy"]), "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["facts"] == {} and "expected a mapping from short names to finite numbers" in record["complaints"][0]


def test_a_defect_of_the_worker_blames_no_plugin(tmp_path, monkeypatch):
    sent = []

    class Pipe:
        def send(self, what):
            sent.append(what)

        def close(self):
            pass

    monkeypatch.setattr(worker, "stand_alone", lambda job: None)
    monkeypatch.setattr(worker, "run_job", lambda job, report: 1 / 0)
    job = build_plan(str(suite(tmp_path)), (), tmp_path / "r", "cpu").jobs[0]
    worker.child_main(job, Pipe())
    ((kind, why),) = sent
    said = "a defect of fedbench: ZeroDivisionError: division by zero (test_isolation.py:"
    assert kind == "stopped" and why.startswith(said) and ".log" in why


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA counts all memory on Linux alone")
@pytest.mark.slow
def test_a_memory_limit_above_what_the_machine_grants_is_what_the_machine_grants(tmp_path, site):
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (64 << 30, 64 << 30))

    process = start(suite(tmp_path, limits={"memory_gb": 100}), tmp_path / "r", site, preexec_fn=bound)
    assert process.wait() == 0, process.communicate()[0]


def test_what_is_no_number_a_candidate_is_no_score(tmp_path, ill):
    names = ["complex", "text", "masked", "objects", "short", "undecided"]
    invoke(suite(tmp_path, attacks=[f"ill-{n}" for n in names]), "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r")
    for name, why in zip(names, (
        "score returned complex64, expected real numbers", "score returned <U4, expected real numbers",
        "score returned a masked array; expected a score for every candidate", "score returned object, expected real numbers",
        "score returned shape [3] for client 0; expected [", "its threshold is nan, expected a finite number or None",
    ), strict=True):  # fmt: skip
        outcome, reason = found[f"ill-{name}"]
        assert outcome == "failed" and why in reason, reason


def test_handles_that_one_leaves_open_cost_its_own_cells(tmp_path, ill):
    path = suite(tmp_path, defenses=["none", "ill-leaks"], attacks=["loss-series", "ill-opens", "ill-last"])
    invoke(path, "--results", tmp_path / "r", status=1)
    found = {(d, a): r["outcome"] for (d, a, _), r in records(tmp_path / "r").items()}
    assert found == {
        ("none", "loss-series"): "ok", ("none", "ill-last"): "ok", ("none", "ill-opens"): "failed",
        **{("ill-leaks", a): "failed" for a in ("loss-series", "ill-opens", "ill-last")},
    }  # fmt: skip
    assert all("Too many open files" in r["reason"] for r in records(tmp_path / "r").values() if r["outcome"] == "failed")


def test_what_a_defense_does_to_the_harness_in_its_process_reaches_no_metric(tmp_path, ill):
    invoke(suite(tmp_path, defenses=["none", "ill-cheats"]), "--results", tmp_path / "r")
    alone, cheat = (records(tmp_path / "r")[name, "loss-series", 0] for name in ("none", "ill-cheats"))
    aucs = [[t["groups"]["mix"]["values"]["auc"]["value"] for t in r["targets"]] for r in (alone, cheat)]
    assert aucs[1] == aucs[0][: len(aucs[1])] and min(aucs[0]) > 0.4


@pytest.mark.slow
def test_who_prints_in_a_loop_fills_no_disk(tmp_path, ill, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke(suite(tmp_path, attacks=["ill-chatters"]), "--results", tmp_path / "r")
    written = int((tmp_path / "pids").read_text().split()[0])
    (log,) = (tmp_path / "r" / "logs").iterdir()
    assert log.stat().st_size < 9 << 20 < written and b"MiB were written here" in log.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_the_server_of_workers_ends_with_its_parent_while_it_still_imports(tmp_path):
    (tmp_path / "slow.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(3600)\n")
    script = (
        "import multiprocessing\nc = multiprocessing.get_context('forkserver')\n"
        "c.set_forkserver_preload(['fedbench.core.execution.with_parent', 'slow'])\nc.Process(target=print).start()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=environment, text=True)
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text(), process)
    assert _alive(int(pid.read_text()))
    process.kill()
    process.communicate()
    wait_for(lambda: not _alive(int(pid.read_text())))


def test_ctrl_c_while_the_server_of_workers_imports_is_answered_by_the_command_alone(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    script = (
        "import multiprocessing\nc = multiprocessing.get_context('forkserver')\n"
        "c.set_forkserver_preload(['fedbench.core.execution.with_parent', 'slow'])\n"
        "p = c.Process(target=print, args=('served',)); p.start(); p.join()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    pid = tmp_path / "pid"
    wait_for(lambda: pid.exists() and pid.read_text(), process)
    os.kill(int(pid.read_text()), signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.communicate()[0] == "served\n"


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server among the processes")
@pytest.mark.slow
def test_a_server_of_workers_that_is_ended_blames_nobody(tmp_path, ill):
    process = start(suite(tmp_path, defenses=["ill-spawns"]), tmp_path / "r", ill)
    wait_for(lambda: (tmp_path / "pids").exists(), process)
    (server,) = (c for c in psutil.Process(process.pid).children() if "forkserver" in " ".join(c.cmdline()))
    server.kill()
    output = process.communicate()[0]
    assert process.returncode == 1 and "the server that workers are forked from was ended" in output


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to the worker")
def test_what_a_plugin_leaves_running_ends_with_its_cell(tmp_path, ill, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke(suite(tmp_path, attacks=["ill-daemonises", "ill-last"]), "--results", tmp_path / "r")
    left = [int(p) for p in (tmp_path / "pids").read_text().split()]
    assert left and not any(map(_alive, left))


def test_what_a_plugin_prints_goes_to_a_log_and_what_it_raises_into_one_line(tmp_path, ill, capfd):
    path = suite(tmp_path, defenses=["ill-talks", "ill-rants", "ill-exits"])
    invoke(path, "--results", tmp_path / "r", status=1)
    found = outcomes(tmp_path / "r", part=0)
    assert found["ill-talks"][0] == "ok"
    assert found["ill-exits"][1].startswith("Exits.protect (client 0, round 1): it called sys.exit(5) (ill.py:")
    reason = found["ill-rants"][1]
    assert reason.startswith("Rants.protect (client 0, round 1): ValueError: two lines, \\u001b[31m red, \\ud800 and long")
    assert len(reason) < 700 and reason.isprintable()
    logs = [path.read_bytes() for path in (tmp_path / "r" / "logs").iterdir()]
    (log,) = (text for text in logs if b"Traceback" not in text)
    assert b"\xff raw bytes" in log and b"chatter\n" in log
    assert len(logs) == 3 and all(b"\x1b" not in text for text in logs if text is not log)
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
    why = "training with the defense 'ill-spawns' (ill 1.0): it was killed by SIGKILL - out of memory?"
    assert found["ill-spawns"] == ("failed", why) and "SIGKILL" in output


@pytest.mark.slow
@pytest.mark.parametrize(("suite_is_kept", "message"), [
    (True, "File too large; 0 of 1 cells are done and kept: make room, then the same command goes on from here"),
    (False, ".json: File too large"),
])  # fmt: skip
def test_a_results_folder_that_cannot_be_written_any_more_is_one_message(tmp_path, ill, suite_is_kept, message):
    def no_large_file():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    path, folder = suite(tmp_path), tmp_path / "r"
    if suite_is_kept:
        start(path, folder, ill).communicate(timeout=HANG_S)
        for made in ("records", "cache"):
            shutil.rmtree(folder / made)
    process = start(path, folder, ill, preexec_fn=no_large_file)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 2, output
    assert message in output
    assert "Traceback" not in output and not list((folder / "records").iterdir())
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
