"""What a run writes of the maximum over rounds: the same shuffles for all attacks, views and defenses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import changed, invoke

from fedbench.core.metrics.maximum import SHUFFLES, maximum
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.reading import LoadedRecord, load_records
from fedbench.leaderboard.submissions.recompute import recompute

ATTACKS = ["loss-series", "blackbox-loss", {"name": "blackbox-loss", "label": "again"}]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> dict[tuple[str, str], LoadedRecord]:
    """(defense, attack) -> record of a run in which every client is a target."""
    root: Path = tmp_path_factory.mktemp("maximum")
    path = changed(root, {}, defenses=["none", "mixup"], attacks=ATTACKS)
    invoke(path, "--results", root / "r")
    return {(r.record.defense.label, r.record.attack.label): r for r in load_records(root / "r")}


def test_records_hold_the_maximum_and_its_null_and_come_back_whole(run):
    assert len(run) == 6
    for loaded in run.values():
        assert recompute(loaded) == []
        for target in loaded.record.targets:
            nulls = loaded.null_maxima(target.target)
            assert [len(n) for n in nulls] == [SHUFFLES, SHUFFLES]
            ofl = target.groups["ofl"]
            for name in ("auc", "advantage"):
                assert getattr(target.maximum, name) >= ofl.value(name) - 1e-12
            assert target.maximum.rounds == (2 if target.rounds else 1)


def test_one_score_a_trajectory_is_the_maximum_of_one_look(run):
    loaded = run["mixup", "loss-series"]
    for target in loaded.record.targets:
        c = loaded.candidates(target.target)
        again = maximum(c.scores[None], c.kind, shuffle_rng(0, target.target))
        assert (target.maximum.auc, target.maximum.advantage) == (again.auc, again.advantage)
        for stored, computed in zip(loaded.null_maxima(target.target), (again.null_auc, again.null_advantage), strict=True):
            assert np.array_equal(stored, computed.astype(np.float32))


def test_attacks_that_say_the_same_have_the_same_null_so_their_shuffles_are_the_same(run):
    for defense in ("none", "mixup"):
        one, other = run[defense, "blackbox-loss"], run[defense, "again"]
        for target in one.record.targets:
            for a, b in zip(one.null_maxima(target.target), other.null_maxima(target.target), strict=True):
                assert np.array_equal(a, b)
