"""What a signal or a phase sets for the whole process: a signal's neighbours never meet it, a phase that leaves it is named."""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from fake_packages import install
from running import invoke, outcomes, records, suite
from tiny import tiny_insider, tiny_setup, train_all

from fedbench.core import ActiveAttack, Defense
from fedbench.core.apart.global_state import kept
from fedbench.core.federation.guard import PhaseError

SETS = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "grad": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "matmul": lambda: torch.set_float32_matmul_precision("medium"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "flush": lambda: torch.set_flush_denormal(True),
    "kernels": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "numpy": lambda: np.seterr(all="raise"),
    "warnings": lambda: warnings.simplefilter("error"),
    "recursion": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7),
    "hook": lambda: torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 0),
    "draws": lambda: (random.random(), np.random.rand(), torch.rand(1)),
    "seeds": lambda: (random.seed(1), np.random.seed(1), torch.manual_seed(1)),
}


def state() -> tuple[Any, ...]:
    """What somebody in the same process would notice."""
    made, tiny = torch.ones(3), sys.float_info.min
    settings = (
        made.dtype, made.device, torch.get_num_threads(), torch.is_grad_enabled(), torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"), tiny / 2,
        torch.backends.mkldnn.enabled, np.geterr(), list(warnings.filters), sys.getrecursionlimit(),
        torch.nn.Flatten()(torch.ones(1, 1, device="cpu")).tolist(),
    )  # fmt: skip
    return *settings, random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", SETS)
def test_whatever_is_set_is_put_back(name):
    before = state()
    with kept():
        with kept():
            SETS[name]()
            changed = state()
        assert state() == before != changed


def test_it_is_put_back_after_an_exception():
    before = state()
    with pytest.raises(KeyError), kept():
        torch.set_default_dtype(torch.float64)
        raise KeyError("sigma")
    assert state() == before


# --- a signal's neighbours --------------------------------------------------------------------------------------------

PLUGIN = """
    import random
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Signal, hookimpl
    {at_import}

    class Sets(Signal):
        def measure(self, probe):
            {in_measure}
            return probe.logits.amax(1).float()

    class Reads(Attack):
        needs = frozenset({{"sets"}})
        def score(self, observations, audit):
            return np.nanmean(observations.of_target("sets"), axis=0)

    @hookimpl
    def fedbench_signals():
        yield Component("sets", "setting_signals:Sets", "a toy")

    @hookimpl
    def fedbench_attacks():
        yield Component("reads", "setting_signals:Reads", "a toy")
"""
DEFENSE = """
    import random
    import numpy as np
    import torch
    from fedbench.core import Component, Defense, hookimpl

    class Draws(Defense):
        '''From the generators that belong to nobody.'''
        def protect(self, update, ctx):
            return update + 0.01 * (torch.from_numpy(np.random.normal(size=update.shape)) + random.random()).to(update)

    @hookimpl
    def fedbench_defenses():
        yield Component("draws", "drawing:Draws", "a toy")
"""
EVIL = "torch.set_default_dtype(torch.float64); np.random.rand(); random.random(); np.seterr(all='raise')"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["at_import", "in_measure"])
def test_a_signal_that_sets_torchs_defaults_changes_nobodys_scores(site, tmp_path, where):
    bodies = {"at_import": "pass", "in_measure": "pass", where: EVIL}
    install(site, "setting_signals", PLUGIN.format(**bodies))
    install(site, "drawing", DEFENSE)
    invoke(suite(tmp_path, defenses=["draws"], attacks=["avg-cosine"]), "--results", tmp_path / "alone")
    invoke(suite(tmp_path, defenses=["draws"], attacks=["reads", "avg-cosine"]), "--results", tmp_path / "beside")
    assert outcomes(tmp_path / "beside") == {"reads": ("ok", ""), "avg-cosine": ("ok", "")}
    (alone,) = (tmp_path / "alone" / "records").glob("*.npz")
    assert (tmp_path / "beside" / "records" / alone.name).read_bytes() == alone.read_bytes()


ANALYSIS = """
    import torch
    from fedbench.core import Analysis, Component, Findings, hookimpl

    class Wide(Analysis):
        def __init__(self, **values):
            super().__init__(**values)
            torch.set_default_dtype(torch.float64)
        def analyse(self, run, judgement):
            return Findings({})

    @hookimpl
    def fedbench_analyses():
        yield Component("wide", "widening:Wide", "a toy")
"""


def test_an_analysis_is_made_in_no_training(site, tmp_path):
    install(site, "widening", ANALYSIS)
    invoke(suite(tmp_path, attacks=["avg-cosine"]), "--results", tmp_path / "alone")
    invoke(suite(tmp_path, attacks=["avg-cosine"], analyses=["wide"]), "--results", tmp_path / "beside")
    ((alone,), (beside,)) = (records(tmp_path / name).values() for name in ("alone", "beside"))
    assert beside["outcome"] == "ok" and beside["targets"] == alone["targets"]


# --- a phase ----------------------------------------------------------------------------------------------------------

LEAVES = {"dtype": "default dtype", "grad": "grad mode", "threads": "number of threads", "autocast": "autocast",
          "deterministic": "deterministic mode"}  # fmt: skip
REMEDY = "everybody's training goes on in the same process: put back what was there, as a `with` block does"


@pytest.mark.parametrize("name", LEAVES)
def test_a_phase_that_leaves_a_setting_is_named(name):
    made = type("Mine", (Defense,), {"protect": lambda self, update, ctx: (SETS[name](), update)[1]})()
    with kept(), pytest.raises(PhaseError) as caught:
        train_all(tiny_setup(made, rounds=1))
    assert str(caught.value) == f"Mine.protect (client 0, round 1) changed torch's {LEAVES[name]}; {REMEDY}"


def test_an_adversary_that_leaves_a_setting_is_named():
    class Sets(ActiveAttack):
        def craft(self, round, knowledge):
            torch.set_grad_enabled(False)
            return knowledge.own

    with kept(), pytest.raises(PhaseError, match=r"^Sets\.craft \(round 1\) changed torch's grad mode; "):
        train_all(tiny_setup(members=(), insider=tiny_insider(Sets())))
