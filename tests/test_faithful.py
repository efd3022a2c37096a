"""The published code's quirks as switches: each does what the ledger says, and is off by
default.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from running import changed, invoke
from tiny import tiny_setup

from fedbench.core import MEMBER, Defense
from fedbench.core.federation.loop import Training
from fedbench.core.metrics import tpr_at_fpr
from fedbench.core.run.observations import redrawn
from fedbench.core.signals.builtin import Loss
from fedbench.core.signals.measure import PRE_DEFENSE, Recorder
from fedbench.core.store.reading import load_records

# -- F1: misaligned non-members --------------------------------------------------------------------


def test_redrawn_keeps_members_and_owners_and_changes_the_rest():
    owners = np.repeat([-1, 0, 1, 2], 50)
    pick = np.r_[50:100, np.random.default_rng(0).choice(50, 20, False), 100:120]
    out, again = (
        redrawn(pick, owners[pick], owners, 3, range(4), seed=0, target=0) for _ in range(2)
    )
    assert (
        out.shape == (3, 4, 90)
        and (out[:, :, :50] == pick[:50]).all()
        and (owners[out] == owners[pick]).all()
    )
    lists = [tuple(sorted(row[50:])) for block in out for row in block]
    assert (
        len(set(lists)) == 12
        and all(len(set(row)) == 40 for row in lists)
        and np.array_equal(out, again)
    )


@pytest.mark.slow
def test_misaligned_nonmembers_make_a_leak_out_of_nothing(tmp_path):
    """Nothing is learned, yet the time average separates members once non-members change from round
    to round.
    """
    null = {
        "dataset": {"name": "digits", "params": {"test": 50, "holdout": 400}},
        "federation": {"clients": 4, "rounds": 8, "batch_size": 1000, "optimizer": {"lr": 1e-12}},
        "audit": {"every": 1, "nonmembers": 1240, "align_nonmembers": False},
    }
    invoke(changed(tmp_path, null, coalitions=["none"]), "--results", tmp_path / "r")
    (loaded,) = load_records(tmp_path / "r")
    judged = [loaded.candidates(t) for t in range(4)]
    # too few non-members for TF01: at twice its rate the threshold is their second largest too
    found = [100 * tpr_at_fpr(c.scores, c.kind == MEMBER, 0.002) for c in judged]
    # aligned: .2
    assert {int((c.kind != MEMBER).sum()) for c in judged} == {1240} and np.mean(found) > 2


# -- F4: the loss before the protection ------------------------------------------------------------


class Silence(Defense):
    """Uploads nothing."""

    def protect(self, update, ctx):
        return torch.zeros_like(update)


def test_pre_defense_signals_are_of_the_model_before_its_protection():
    setup = tiny_setup(Silence(), members=(0,), rounds=1, keep_unprotected=True)
    x, y = setup.clients[0].x, setup.clients[0].y
    signals = {"loss": Loss(), f"loss{PRE_DEFENSE}": Loss()}
    recorder = Recorder(setup.flat, x, y, signals, False, [*range(4)], ((0,),), [12] * 4)
    for result in Training(setup).rounds():
        recorder.record(result)
    arrays = recorder.arrays()
    uploaded, before = arrays["loss"][0], arrays[f"loss{PRE_DEFENSE}"][0]
    assert np.array_equal(uploaded[1:], before[1:])  # undefended clients
    assert before[0].mean() < uploaded[0].mean()  # trained, against what it received
