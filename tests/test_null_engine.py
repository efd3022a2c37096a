"""Every registered attack in a federation that leaks, asked about members that no client trained
on: it finds nothing there.

The whole engine takes part, from the suite's file to the records of ``fedbench run``. An attack
that is registered is tested here; one that scores in none of the settings fails the suite.

Given the candidates of a target, which of the hold-out samples are called members is a fair draw,
its own for each target and seed, and nothing in the training depends on it. The units (a target of
a seed) are therefore independent although they share hold-out samples and a training, and the AUC
of each has Mann and Whitney's distribution.
"""

from __future__ import annotations

import numpy as np
import pytest
from running import invoke, suite

from fedbench.core import MEMBER, OFL, ActiveAttack
from fedbench.core.metrics import auc
from fedbench.core.registry.components import Registry
from fedbench.core.store.reading import load_records

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # tests/test_null.py has the quick null tests

# the others judge rows of their defenses alone
REGISTERED = [c.name for c in Registry.discover().own("attack") if not c.load().against]
FOLLOWING = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")
ON_MEAN = [f"{name}-on-mean" for name in FOLLOWING]
ATTACKS = [*REGISTERED, *(f"{name}-class" for name in FOLLOWING), *ON_MEAN]
OF_COALITION = [*ON_MEAN, "prolin"]
PARAMS = {
    "seqmia": {"epochs": 5},  # a net that learns for long takes longer to find as little
    # no client here trains on the soft labels of its default
    "adaptive-membershield": {"theta": 0.1},
}
WEAK = {"shadow"}  # its net learns too little from the few shadow samples that digits has left
LARGEST_Z = 4.0


def listed(label):
    """An attack, or a variant of one, as a suite lists it."""
    name = label.removesuffix("-class").removesuffix("-on-mean")
    params = PARAMS.get(name, {}) | ({"normalise": "class"} if label.endswith("-class") else {})
    return {
        "name": name,
        "label": label,
        "params": params | ({"view": "coalition"} if label.endswith("-on-mean") else {}),
    }


def ran(folder, members_from, seeds):
    """The records of every registered attack in the setting where it can act; both federations
    learn, and overfit.
    """
    registry = Registry.discover()
    active = [a for a in REGISTERED if issubclass(registry.get("attack", a).load(), ActiveAttack)]
    common = {
        "dataset": {"name": "digits", "params": {"test": 297, "holdout": 900, "label_noise": 0.3}},
        "model": {"name": "mlp", "params": {"hidden": [64, 32]}},
        "federation": {
            "clients": 5,
            "rounds": 20,
            "local_epochs": 5,
            "batch_size": 20,
            "optimizer": {"lr": 0.1, "momentum": 0.9},
        },
    }
    pair = {"every": 5, "nonmembers": 300, "outside": 300, "members_from": members_from}
    clients = {
        **pair,
        "targets": [0, 1, 2, 3],
        "shadow": {"samples": 50, "models": 4, "epochs": 20},
    }
    together = {
        "every": 20,
        "targets": "honest",
        "members": 400,
        "nonmembers": 500,
        "members_from": members_from,
    }
    settings = [
        {
            "name": "clients",
            "audit": clients,
            "attacks": [a for a in ATTACKS if a not in (*active, *OF_COALITION)],
        },
        {"name": "coalition", "audit": pair, "attacks": OF_COALITION, "coalitions": ["pair"]},
        {
            "name": "honest",
            "audit": together,
            "attacks": active,
            "adversary": {"clients": 1, "knowledge": "rule", "mask_set": 20},
        },
    ]
    path = suite(
        folder,
        seeds=list(range(seeds)),
        coalitions=["none"],
        attacks=[listed(a) for a in ATTACKS],
        settings=[common | setting for setting in settings],
    )
    invoke(path, "--results", folder / "results", "--workers", 2)
    return load_records(folder / "results")


@pytest.fixture(scope="module")
def null(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("null"), "holdout", 2)


@pytest.fixture(scope="module")
def leak(tmp_path_factory):
    """The same federations, asked about what they trained on."""
    return ran(tmp_path_factory.mktemp("leak"), "training", 1)


def deviations(records, attack):
    """By how many standard deviations the mean AUC against outsiders lies above one half (Lehmann,
    1975, section 1.4: ties).
    """
    excess, variance, units = 0.0, 0.0, 0
    for loaded in (r for r in records if r.record.attack.label == attack):
        assert loaded.record.outcome == "ok", loaded.record.reason
        for target in loaded.record.targets:
            c = loaded.candidates(target.target)
            counted = np.isin(c.kind, (MEMBER, OFL))
            scores, member = c.scores[counted], c.kind[counted] == MEMBER
            n, tied = len(scores), np.unique(scores, return_counts=True)[1].astype(float)
            excess += auc(scores, member) - 0.5
            variance += (
                (n + 1 - (tied**3 - tied).sum() / n / (n - 1)) / 12 / member.sum() / (~member).sum()
            )
            units += 1
    assert units
    return excess / np.sqrt(variance) if variance else 0.0


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_finds_nothing_where_there_is_nothing(attack, null):
    assert abs(deviations(null, attack)) < LARGEST_Z


@pytest.mark.parametrize("attack", sorted({*ATTACKS} - WEAK))
def test_the_same_federation_leaks_to_it(attack, leak):
    """Without this the test above would hold of an attack that never finds anything."""
    assert deviations(leak, attack) > LARGEST_Z
