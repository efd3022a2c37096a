"""Attacks that signal their process group or write to their parent, and a worker that sends no
message: what is beside them.
"""

from __future__ import annotations

import os
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest
from fake_packages import install
from running import HANG_S, called, fingerprint, invoke, outcomes, records, start, suite

from fedbench.core.run import local_executor

PLUGIN = '''
    import glob, os, signal
    from fedbench.core import Attack, Component, hookimpl

    class Signals(Attack):
        needs = frozenset({"loss"})
        which = signal.SIGTERM
        def score(self, observations, audit):
            os.killpg(0, self.which)
            return -observations.of_target("loss")[-1]

    class Stops(Signals):
        which = signal.SIGSTOP

    class WritesUp(Signals):
        """Writes no message to every descriptor of its parent."""
        def score(self, observations, audit):
            for name in glob.glob(f"/proc/{os.getppid()}/fd/*"):
                try:
                    with open(name, "wb", buffering=0) as f:
                        f.write(bytes(12))
                except OSError:
                    pass
            return -observations.of_target("loss")[-1]

    class EndsParent(Signals):
        def score(self, observations, audit):
            os.kill(os.getppid(), signal.SIGKILL)

    @hookimpl
    def fedbench_attacks():
        yield Component("bad-ends-parent", "bad:EndsParent", "ends its parent")
        yield Component("bad-signals", "bad:Signals", "ends its group")
        yield Component("bad-stops", "bad:Stops", "stops its group")
        yield Component("bad-writes-up", "bad:WritesUp", "writes to its parent's descriptors")
'''
GOOD = ["loss-series", "avg-cosine"]
BAD = {
    "bad-signals": ("failed", "attack 'bad-signals' (bad 1.0): it was killed by SIGTERM"),
    "bad-stops": ("timeout", "stopped: nothing moved for 2 s (limits.idle_seconds)"),
    "bad-writes-up": ("ok", ""),
}


@pytest.fixture
def bad(site) -> Path:
    return install(site, "bad", PLUGIN)


def test_a_signal_to_the_group_and_bytes_for_the_parent_reach_no_neighbour(tmp_path, bad):
    limits = {"run_seconds": 900, "idle_seconds": 2}
    for folder, attacks in (("alone", GOOD), ("beside", [*BAD, *GOOD])):
        invoke(
            suite(tmp_path, attacks=attacks, limits=limits),
            "--results",
            tmp_path / folder,
            status=folder == "beside",
        )
    alone, beside = fingerprint(tmp_path / "alone"), fingerprint(tmp_path / "beside")
    assert outcomes(tmp_path / "beside") == BAD | dict.fromkeys(GOOD, ("ok", ""))
    assert len(alone) == 4 and {name: beside[name] for name in alone} == alone


def test_cells_that_are_judged_before_a_loss_are_kept(tmp_path, bad):
    path = suite(tmp_path, attacks=["loss-series", "bad-ends-parent", "avg-cosine"])
    output = " ".join(invoke(path, "--results", tmp_path / "r", status=1).split())
    assert "the worker was killed by SIGKILL" in output
    assert "cells without a score: 2 lost" in output
    assert outcomes(tmp_path / "r") == {"loss-series": ("ok", "")}


def test_bytes_that_are_no_message_cost_one_worker(tmp_path, monkeypatch):
    garbled = [bytes(12), b"\0\0\0\x02{}", b"\0\0\0\x04\xff\xff\xff\xff"]

    def pipe() -> tuple:
        mine, theirs = Pipe()
        if garbled:
            theirs._send(garbled.pop())
        return mine, theirs

    monkeypatch.setattr(local_executor, "Pipe", pipe)
    path = suite(tmp_path, seeds=[0, 1, 2, 3])
    output = " ".join(invoke(path, "--results", tmp_path / "r", "--workers", 1, status=1).split())
    assert output.count("what the worker sent cannot be read (") == 3
    assert list(records(tmp_path / "r")) == [("none", "loss-series", 3)]


@pytest.mark.slow
def test_a_closed_standard_input_costs_no_cell(tmp_path, bad):
    command = start(suite(tmp_path), tmp_path / "r", bad, preexec_fn=partial(os.close, 0))
    output, _ = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, output
    assert outcomes(tmp_path / "r") == {"loss-series": ("ok", "")}


PATCHES = """
    import sys
    import numpy as np
    from fedbench.core import Attack, Component, Data, Dataset, Defense, hookimpl

    np.sort = lambda a, *args, **named: np.asarray(a)[::-1]
    np.argsort = lambda a, *args, **named: np.arange(len(a))
    if planner := sys.modules.get("fedbench.core.run.expand"):
        planner.Job = lambda **named: None

    class Patches(Attack):
        needs = frozenset({"loss"})
        def score(self, observations, audit):
            return -observations.of_target("loss")[-1]

    class Idle(Defense):
        def protect(self, update, ctx):
            return update

    @hookimpl
    def fedbench_attacks():
        yield Component("bad-patches", "patches:Patches", "patches libraries on import")

    @hookimpl
    def fedbench_defenses():
        yield Component("bad-idle", "patches:Idle", "patches libraries on import")
"""


def test_a_module_that_replaces_numpy_and_the_planner_changes_no_plan(tmp_path, site):
    install(site, "patches", PATCHES)
    beside_it = {"attacks": ["bad-patches", *GOOD], "defenses": ["bad-idle", "none"]}
    for folder, changes in (("alone", {"attacks": GOOD}), ("beside", beside_it)):
        called(suite(tmp_path, **changes), "--results", tmp_path / folder)  # its own row fails
    alone, beside = fingerprint(tmp_path / "alone"), fingerprint(tmp_path / "beside")
    assert len(alone) == 4 and {name: beside[name] for name in alone} == alone
