"""Plugins that misbehave in a run: the outcome of their own cells, the bits of their neighbours,
the processes they leave.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from fake_packages import install
from running import (
    HANG_S,
    changed,
    fingerprint,
    invoke,
    loaded,
    outcomes,
    settings_of,
    start,
    suite,
    wait_for,
)

from fedbench.core.run import local_executor

PLUGIN = '''
    import os, pickle, random, resource, signal, subprocess, sys, time
    import numpy as np
    import torch
    from fedbench.core import ActiveAttack, Analysis, Attack, Component, Data, Dataset, Defense
    from fedbench.core import Model, Signal, hookimpl

    def never(x):
        return np.linalg.inv(np.zeros((2, 2)))  # line 8: numpy raises

    def remember(name):
        with open("pids", "a") as f:  # where the command was called
            f.write(f"{name}\\n")

    def open_many():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        return [open("/dev/null") for _ in range(1000)]

    class Fails(Defense):
        def protect(self, update, ctx):
            return never(update)

    class Exits(Defense):
        def protect(self, update, ctx):
            sys.exit(5)

    class Gone(Defense):
        def protect(self, update, ctx):
            os._exit(0)

    class Nan(Defense):
        def protect(self, update, ctx):
            return update * torch.nan

    class Rants(Defense):
        def protect(self, update, ctx):
            os.write(1, b"\\xff raw bytes ")
            print("chatter")
            raise ValueError("two\\nlines, \\x1b[31m red, \\ud800 and " + "long " * 10**5)

    class Hoards(Defense):
        def protect(self, update, ctx):
            heap = []
            while True:
                heap.append(bytes(10**7))

    class Leaks(Defense):
        def protect(self, update, ctx):
            open_many()

    class Wordy(Defense):
        def report(self, ctx):
            return {"long " * 1000: 1.0}

    class Reports(Defense):
        def report(self, ctx):
            return never(ctx)

    class Twins(Defense):
        """Forks and does not end the copy."""
        def protect(self, update, ctx):
            os.fork()
            return update

    class Cheats(Defense):
        """Replaces the harness's metrics in its own process."""
        def begin(self, ctx):
            from fedbench.core.run import verdict
            from fedbench.core.metrics import registry
            registry.score_groups = verdict.score_groups = lambda *a: {}
            np.isin = lambda a, b: np.zeros(len(a), bool)

    class Hangs(Defense):
        def protect(self, update, ctx):
            time.sleep(3600)

    class Spawns(Defense):
        def protect(self, update, ctx):
            remember(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid)
            remember(subprocess.Popen(["sleep", "3600"]).pid)
            remember(os.getpid())
            time.sleep(3600)

    class Last(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return -observations.of_target("loss")[-1]

    class Outside(Last):
        view = "external"

    class Scores(Last):
        def score(self, observations, audit):
            return never(observations)

    class Wrecks(Last):
        """Changes the global state of its process."""
        def score(self, observations, audit):
            torch.set_default_dtype(torch.float64)
            for generator in (np.random.seed, torch.manual_seed, random.seed):
                generator(0)
            scores = super().score(observations, audit)
            torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 0)
            np.argsort = np.sort = lambda a, *rest, **named: np.zeros(len(a), int)
            return scores

    class Writes(Last):
        def score(self, observations, audit):
            observations["loss"][...] = 7.0
            return super().score(observations, audit)

    class Draws(Last):
        """Draws from the global generators, which it should not."""
        def score(self, observations, audit):
            n = len(audit.ids)
            x = torch.rand(n, requires_grad=True)
            scores = np.random.rand(n) + (2 * x).detach().numpy()
            return scores + random.random() * (x.dtype == torch.float32)

    class Leaves(Last):
        def score(self, observations, audit):
            sys.exit(4)

    class Vanishes(Last):
        def score(self, observations, audit):
            os._exit(4)

    class Copies(Last):
        def score(self, observations, audit):
            os.fork()
            return super().score(observations, audit)

    class Forges(Last):
        """Writes a message with a pickle that makes a file, and bytes that are no message, to
        every descriptor.
        """
        def score(self, observations, audit):
            forged = pickle.dumps(("cell", Touch()))
            for fd in range(3, 256):
                for text in (len(forged).to_bytes(4, "big") + forged, b"eleven bytes"):
                    try:
                        os.write(fd, text)
                    except OSError:
                        pass
            return super().score(observations, audit)

    class Touch:
        def __reduce__(self):
            return os.mkdir, ("forged",)

    class Speaks(Last):
        """Sends messages that only the worker sends to the command, and one of no kind."""
        def score(self, observations, audit):
            from fedbench.core.process import channel
            cell = ["key", "ok", "", False]
            sent = {"done": None, "stopped": "by me", "cell": cell, "nonsense": 1}
            for kind, value in sent.items():
                channel._channel.send(kind, value)
            return super().score(observations, audit)

    class Stops(Last):
        """Stops the worker."""
        def score(self, observations, audit):
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(3600)

    class Asks(Last):
        """Reads from the terminal."""
        def score(self, observations, audit):
            return input()

    class Daemonises(Last):
        """Leaves a process in a session of its own behind."""
        def score(self, observations, audit):
            script = (
                "import os, sys, time; os.fork() and sys.exit(); os.setsid(); "
                "print(os.getpid(), file=open('pids', 'a'), flush=True); time.sleep(3600)"
            )
            subprocess.run([sys.executable, "-c", script], check=True)
            while not os.path.exists("pids") or not open("pids").read():
                time.sleep(0.01)
            return super().score(observations, audit)

    class Opens(Last):
        def score(self, observations, audit):
            open_many()

    class Infinite(Last):
        def score(self, observations, audit):
            return super().score(observations, audit) / 0.0

    class Short(Last):
        def score(self, observations, audit):
            return np.zeros(3)

    class Complex(Last):
        def score(self, observations, audit):
            return super().score(observations, audit) + 0j

    class Masked(Last):
        def score(self, observations, audit):
            return np.ma.masked_greater(super().score(observations, audit), 0)

    class Undecided(Last):
        """Its threshold is no number any more once it was asked."""
        def score(self, observations, audit):
            self.threshold = float("nan")
            return super().score(observations, audit)

    class Peeks(Last):
        view = "client"
        def score(self, observations, audit):
            return observations.of_others("loss").mean((0, 1))

    class Wishes(Last):
        def score(self, observations, audit):
            return observations["mind-reading"]

    class Reads(Attack):
        needs = frozenset({"ill-measured"})
        def score(self, observations, audit):
            return observations.of_target("ill-measured").mean(0)

    class Measured(Signal):
        def measure(self, probe):
            return never(probe)

    class Sleeps(Last):
        def score(self, observations, audit):
            time.sleep(3600)

    class Spins(Last):
        def score(self, observations, audit):
            while True:
                pass

    class Flip(ActiveAttack):
        needs = frozenset({"loss"})
        def craft(self, round, knowledge):
            return -knowledge.own
        def score(self, observations, audit):
            return -observations.of_target("loss").mean(0)

    class Crafts(Flip):
        def craft(self, round, knowledge):
            return never(knowledge)

    class Finds(Analysis):
        def analyse(self, run, judgement):
            return never(run)

    class Unseeded(Dataset):
        """Differs from load to load."""
        def load(self, seed):
            rng = np.random.default_rng()
            x, y = rng.normal(size=(900, 8)).astype(np.float32), rng.integers(0, 2, 900)
            train = {"train_x": x[:600], "train_y": y[:600], "test_x": x[600:700]}
            rest = {"test_y": y[600:700], "holdout_x": x[700:], "holdout_y": y[700:]}
            return Data(**train, **rest, n_classes=2)

    class Net(torch.nn.Linear):
        def forward(self, x):
            # the check before a run trains on batches of two
            return never(x) if self.training and len(x) > 2 else super().forward(x.flatten(1))

    class Line(Model):
        def build(self, input_shape, n_classes):
            return Net(64, n_classes)

    def announced(*classes):
        for c in classes:
            yield Component(f"ill-{c.__name__.lower()}", f"ill:{c.__name__}", "ill-behaved")

    @hookimpl
    def fedbench_defenses():
        return announced(
            Fails, Exits, Gone, Nan, Rants, Hoards, Leaks, Wordy, Reports, Twins, Cheats, Hangs,
            Spawns,
        )

    @hookimpl
    def fedbench_attacks():
        return announced(
            Last, Outside, Scores, Wrecks, Writes, Draws, Leaves, Vanishes, Copies, Forges, Speaks,
            Stops, Asks, Daemonises, Opens, Infinite, Short, Complex, Masked, Undecided, Peeks,
            Wishes, Reads, Sleeps, Spins, Flip, Crafts,
        )

    @hookimpl
    def fedbench_signals():
        return announced(Measured)

    @hookimpl
    def fedbench_analyses():
        return announced(Finds)

    @hookimpl
    def fedbench_datasets():
        return announced(Unseeded)

    @hookimpl
    def fedbench_models():
        return announced(Line)
'''
WHAT = "LinAlgError: Singular matrix (ill.py:9 in never)"
DEFENSES = {
    "none": ("ok", ""),
    "ill-fails": ("failed", f"Fails.protect (client 0, round 1): {WHAT}"),
    "ill-exits": ("failed", "Exits.protect (client 0, round 1): it called sys.exit(5) (ill.py:"),
    "ill-gone": (
        "failed",
        "training with the defense 'ill-gone' (ill 1.0): it ended the process with status 0",
    ),
    "ill-nan": ("diverged", "protect made the upload of client 0, 1 not finite"),
    "ill-rants": (
        "failed",
        "Rants.protect (client 0, round 1): ValueError: two lines, \\u001b[31m red, \\ud800 and "
        "long",
    ),
    "ill-hoards": ("failed", "out of memory: "),
    "ill-leaks": ("failed", "Too many open files"),
    "ill-wordy": ("ok", ""),
    "ill-reports": ("ok", ""),
    "ill-twins": ("ok", ""),
    "ill-cheats": ("ok", ""),
}
ATTACKS = {
    "ill-last": ("ok", ""),
    "ill-wrecks": ("ok", ""),
    "ill-draws": ("ok", ""),
    "ill-copies": ("ok", ""),
    "ill-daemonises": ("ok", ""),
    "ill-speaks": ("ok", ""),
    "ill-forges": ("failed", "attack 'ill-forges' (ill 1.0): what it sent cannot be read ("),
    "ill-asks": ("failed", "attack 'ill-asks' (ill 1.0): EOFError: EOF when reading a line"),
    "ill-flip": ("ok", ""),
    "ill-scores": ("failed", f"attack 'ill-scores' (ill 1.0): {WHAT}"),
    "ill-reads": ("failed", f"signal 'ill-measured' (ill 1.0): round 2: {WHAT}"),
    "ill-crafts": ("failed", f"Crafts.craft (round 1): {WHAT}"),
    "ill-writes": ("failed", "read-only"),
    "ill-leaves": ("failed", "attack 'ill-leaves' (ill 1.0): it called sys.exit(4) (ill.py:"),
    "ill-vanishes": (
        "failed",
        "attack 'ill-vanishes' (ill 1.0): it ended the process with status 4",
    ),
    "ill-opens": ("failed", "Too many open files"),
    "ill-infinite": ("failed", "scores of client 0 are not finite"),
    "ill-short": ("failed", "score returned shape [3] for client 0; expected ["),
    "ill-complex": ("failed", "score returned complex64, expected real numbers"),
    "ill-masked": ("failed", "score returned a masked array; expected a score for every candidate"),
    "ill-undecided": ("failed", "its threshold is nan, expected a finite number or None"),
    "ill-peeks": ("skipped", "the view 'client' shows no other client to compare with"),
    "ill-wishes": (
        "failed",
        "reads the signal 'mind-reading', but its `needs` are loss: add 'mind-reading' to them",
    ),
}


@pytest.fixture(scope="module")
def ill(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        site = install(tmp_path_factory.mktemp("site"), "ill", PLUGIN)
        patch.syspath_prepend(str(site))
        yield site


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def defended(ill, tmp_path_factory) -> tuple[Path, str]:
    """(results, output) of a run of every defense of ``DEFENSES`` with two workers."""
    folder = tmp_path_factory.mktemp("defended")
    path = changed(
        folder,
        {"adversary": {"clients": 1}},
        defenses=list(DEFENSES),
        attacks=["ill-draws", "ill-outside"],
        analyses=["ill-finds"],
        limits={"run_seconds": HANG_S, "memory_gb": 3},
    )
    return folder / "r", invoke(path, "--results", folder / "r", "--workers", 2, status=1)


@pytest.fixture(scope="module")
def attacked(ill, tmp_path_factory) -> Path:
    """Results of a run of every attack of ``ATTACKS``, of a dataset without a seed and of a model
    that fails in training.
    """
    folder = tmp_path_factory.mktemp("attacked")
    settings = settings_of(
        folder,
        {"adversary": {"clients": 1}},
        {"name": "unseeded", "dataset": "ill-unseeded", "model": "mlp", "attacks": ["ill-last"]},
        {"name": "line", "model": {"name": "ill-line"}, "attacks": ["ill-last"]},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where one of the attacks notes its process
        path = suite(folder, settings=settings, attacks=list(ATTACKS), analyses=["ill-finds"])
        invoke(path, "--results", "r", "--workers", 1, status=1)
    return folder / "r"


def of_digits(folder: Path) -> dict[tuple[str, str], dict]:
    """(defense, attack) -> record, of the setting digits."""
    found = [r.record for r in loaded(folder) if r.record.setting == "digits"]
    return {(r.defense.label, r.attack.label): r.model_dump(mode="json") for r in found}


@pytest.mark.parametrize("name", DEFENSES)
def test_a_misbehaving_defense_costs_only_its_own_cells(defended, name):
    found = {
        attack: r for (defense, attack), r in of_digits(defended[0]).items() if defense == name
    }
    outcome, reason = DEFENSES[name]
    assert {r["outcome"] for r in found.values()} == {outcome} and found.keys() == {
        "ill-draws",
        "ill-outside",
    }
    assert all(
        reason in r["reason"] and r["reason"].isprintable() and len(r["reason"]) < 700
        for r in found.values()
    )
    assert found["ill-outside"]["view"] == "external"  # also where the training failed


@pytest.mark.parametrize("name", ATTACKS)
def test_a_misbehaving_attack_costs_only_its_own_cell(attacked, name):
    found, (outcome, reason) = of_digits(attacked)["none", name], ATTACKS[name]
    assert found["outcome"] == outcome and reason in found["reason"], found["reason"]


def test_neighbours_keep_every_bit_whatever_the_company_and_the_number_of_workers(
    defended, attacked
):
    def of_draws(folder: Path) -> dict[str, bytes]:
        return {
            n: content
            for n, content in fingerprint(folder).items()
            if n.startswith("digits--") and "--none--ill-draws" in n
        }

    one, other = of_draws(defended[0]), of_draws(attacked)
    assert one == other and len(one) == 2


def test_a_forked_copy_and_a_replaced_metric_change_no_number(defended, attacked):
    def judged(record: dict) -> tuple:
        return record["pooled"], [t["groups"] for t in record["targets"]]

    attacks, defenses = of_digits(attacked), of_digits(defended[0])
    assert (
        judged(attacks["none", "ill-copies"])
        == judged(attacks["none", "ill-wrecks"])
        == judged(attacks["none", "ill-last"])
    )
    for name in ("ill-twins", "ill-cheats", "ill-wordy", "ill-reports"):
        own = {t["target"]: t["groups"] for t in defenses[name, "ill-outside"]["targets"]}
        undefended = {t["target"]: t["groups"] for t in defenses["none", "ill-outside"]["targets"]}
        assert own and own == {target: undefended[target] for target in own}


def test_a_failing_report_or_analysis_costs_no_score_and_is_a_complaint(defended):
    found = of_digits(defended[0])
    assert (
        f"Reports.report (after the last round): {WHAT}"
        in found["ill-reports", "ill-outside"]["complaints"]
    )
    assert found["ill-wordy", "ill-outside"]["facts"] == {}
    assert any(
        f"analysis 'ill-finds' (ill 1.0): {WHAT}" in said
        for said in found["none", "ill-outside"]["complaints"]
    )


def test_a_model_and_a_dataset_that_fail_in_a_run_are_named(attacked):
    found = {r.record.setting: (r.record.outcome, r.record.reason) for r in loaded(attacked)}
    assert found["line"] == ("failed", f"the model (round 1): {WHAT}")
    assert (
        found["unseeded"][0] == "failed"
        and "load(seed) must depend on nothing but" in found["unseeded"][1]
    )


def test_printed_text_and_tracebacks_are_in_the_logs_alone(defended, attacked):
    folder, output = defended
    assert "chatter" not in output and f"tracebacks are in {folder / 'logs'}" in output.replace(
        "\n", ""
    )
    logs = {
        path: path.read_bytes()
        for path in [*(folder / "logs").iterdir(), *(attacked / "logs").iterdir()]
    }
    (log,) = (text for text in logs.values() if b"chatter" in text)
    assert b"\xff raw bytes" in log and all(b"\x1b" not in text for text in logs.values())
    text = b"".join(logs.values()).decode(errors="replace")
    frames = set(re.findall(r'ill.py", line \d+, in (\w+)\n', text))
    assert {
        "never",
        "protect",
        "score",
        "measure",
        "craft",
        "analyse",
        "report",
        "forward",
    } <= frames
    assert "Singular matrix\n" in text


def test_the_process_of_the_command_never_imports_a_plugin_and_runs_none_of_its_code(
    defended, attacked
):
    assert "ill" not in sys.modules
    assert not (attacked.parent / "forged").exists()


def test_a_worker_that_a_plugin_stopped_is_noticed_and_costs_its_own_run(
    tmp_path, ill, monkeypatch
):
    monkeypatch.setattr(local_executor, "SILENCE_S", 1.0)
    other = {"name": "b", "audit": {"nonmembers": 40}, "attacks": ["ill-last"]}
    settings = settings_of(tmp_path, {"attacks": ["ill-stops"]}, other)
    path = suite(tmp_path, settings=settings, attacks=["ill-stops", "ill-last"])
    said = " ".join(invoke(path, "--results", tmp_path / "r", status=1).split())
    assert (
        "the worker gave no sign of life for 1 s; the same command tries again what has no record"
        in said
    )
    assert [(r.record.setting, r.record.outcome) for r in loaded(tmp_path / "r")] == [("b", "ok")]


def test_a_process_that_a_plugin_leaves_running_ends_with_its_cell(attacked):
    left = [int(p) for p in (attacked.parent / "pids").read_text().split()]
    assert left and not any(map(runs, left))


# --- limits of time, and processes that are killed ------------------------------------------------


@pytest.mark.slow
def test_what_hangs_or_spins_costs_its_own_cell(tmp_path, ill):
    limits = {"run_seconds": 5, "idle_seconds": 3}
    path = suite(
        tmp_path,
        defenses=["none", "ill-hangs"],
        attacks=["ill-sleeps", "ill-spins", "ill-last"],
        limits=limits,
    )
    invoke(path, "--results", tmp_path / "r", status=1)
    found = {(d, a): (r["outcome"], r["reason"]) for (d, a), r in of_digits(tmp_path / "r").items()}
    idle = ("timeout", "stopped: nothing moved for 3 s (limits.idle_seconds)")
    assert found == {
        ("none", "ill-last"): ("ok", ""),
        ("none", "ill-sleeps"): idle,
        ("none", "ill-spins"): (
            "timeout",
            "stopped: it used more than 5 s of CPU (limits.run_seconds)",
        ),
        **{("ill-hangs", attack): idle for attack in ("ill-sleeps", "ill-spins", "ill-last")},
    }


def spawned(
    folder: Path, ill: Path, popen: dict, **more
) -> tuple[subprocess.Popen[str], list[int]]:
    """`fedbench run` of the defense that starts processes and waits, and the pids that it notes: in
    a session of its own, in the fork's group, and the fork.
    """
    process, pids = start(suite(folder, **more), folder / "r", ill, **popen), folder / "pids"
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 3, process)
    return process, [int(pid) for pid in pids.read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of its parent's end"
)
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_command_leaves_no_process_behind(tmp_path, ill, which):
    # tests started in the background of a shell inherit an ignored SIGINT, and so would the command
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process, pids = spawned(tmp_path, ill, {"preexec_fn": heard}, defenses=["ill-spawns"])
    process.send_signal(which)
    process.communicate()
    wait_for(lambda: not any(map(runs, pids)))


@pytest.mark.slow
def test_kill_minus_nine_of_a_worker_costs_its_run(tmp_path, ill):
    process, (apart, child, pid) = spawned(tmp_path, ill, {}, defenses=["ill-spawns", "none"])
    os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1 and not runs(child) and not runs(apart) and "SIGKILL" in output
    why = "training with the defense 'ill-spawns' (ill 1.0): it was killed by SIGKILL"
    why += " - out of memory?"
    assert outcomes(tmp_path / "r", part=0) == {"none": ("ok", ""), "ill-spawns": ("failed", why)}
