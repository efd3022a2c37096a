"""A divergence names its cause: a training, a phase, a rule, or an adversary, whose success is a result of the run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fake_packages import install
from running import called, changed, records
from tiny import tiny_insider, tiny_setup, train_all

from fedbench.core import ActiveAttack, Defense, Diverged
from fedbench.core.federation.compose import composed
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.plugins.defenses.grad_noise import GradNoise

HUGE = 3e38  # a float32; four times as much is none


class Scales(ActiveAttack):
    """Rows of the honest ones' size times ``factor``."""

    factor = 1.0

    def craft(self, round: int, knowledge: Any) -> torch.Tensor:
        return torch.ones_like(knowledge.own) * self.factor


def attack(factor: float) -> Any:
    return tiny_insider(type("Scales", (Scales,), {"factor": factor})())


def defense(phase: str, does: Any) -> Defense:
    return type("Mine", (Defense,), {phase: lambda self, *args: does(*args)})()


def spoils(update, ctx):
    return update / 0 if ctx.round == 2 and ctx.client == 1 else update


def spoils_rows(rows, ctx):
    rows[ctx.round - 2 :] *= torch.nan  # of round 2: all; of round 1: the last
    return rows


def ends(made: Defense | None = None, **changes: Any) -> tuple[type[Diverged], str]:
    with pytest.raises(Diverged) as caught:
        train_all(tiny_setup(made, **changes))
    return caught.type, str(caught.value)


CASES = {
    "a learning rate": (
        lambda: ends(lr=1e6, local_epochs=20), Diverged,
        "round 1: the local training of client 0, 1, 2, 3 is not finite; lower the learning rate",
    ),
    "a learning rate and a defense": (
        lambda: ends(defense("loss", lambda logits, batch, ctx: logits.sum() * 1e38), members=(2,)), Diverged,
        "round 1: the local training of client 2 is not finite; lower the learning rate or mend Mine.loss",
    ),
    "protect": (
        lambda: ends(defense("protect", spoils)), Diverged,
        "round 2: Mine.protect made the upload of client 1 not finite; mend it",
    ),
    "a part of a composite": (
        lambda: ends(composed([GradNoise(sigma=0.1), defense("coordinate", spoils_rows)])), Diverged,
        "round 1: Mine.coordinate made the upload of client 1 not finite; mend it",
    ),
    "a rule": (
        lambda: ends(defense("aggregate", lambda rows, weights, ctx: rows[0] / 0), members=()), Diverged,
        "round 1: the aggregated model is not finite: Mine.aggregate made such a step of rows of an ordinary size; mend the rule",
    ),
    "a rule with an adversary inside": (
        lambda: ends(defense("aggregate", lambda rows, weights, ctx: rows[0] / 0), members=(), insider=attack(1.0)), Diverged,
        "round 1: the aggregated model is not finite: Mine.aggregate made such a step of rows of an ordinary size; mend the rule",
    ),
    "an adversary through a rule": (
        lambda: ends(defense("aggregate", lambda rows, weights, ctx: rows.sum(0) * 4), members=(), insider=attack(HUGE)),
        DivergedByAdversary,
        "round 1: the aggregated model is not finite: rows of the attack Scales (client 3) are too large, "
        "and Mine.aggregate let them in",
    ),
    "an adversary through a training": (
        lambda: ends(members=(0, 1), made=GradNoise(sigma=0.1), insider=attack(1e25)), DivergedByAdversary,
        "round 2: the local training of client 0, 1, 2 is not finite, from a model that took rows of the attack Scales "
        "(client 3) since round 1",
    ),
    "a phase with an adversary inside": (
        lambda: ends(defense("protect", spoils), insider=attack(1.0)), Diverged,
        "round 2: Mine.protect made the upload of client 1 not finite; mend it",
    ),
    "a learning rate before the adversary's first row": (
        lambda: ends(members=(), insider=attack(1.0), lr=1e6, local_epochs=20), Diverged,
        "round 1: the local training of client 0, 1, 2 is not finite; lower the learning rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_cause(case):
    run, kind, text = CASES[case]
    found, said = run()
    assert found is kind and said.startswith(text), said


def test_huge_rows_that_stay_finite_are_nobodys_divergence():
    assert train_all(tiny_setup(members=(), insider=attack(10.0)))[1][-1].models.isfinite().all()


PLUGIN = """
    import torch
    from fedbench.core import ActiveAttack, Component, Defense, hookimpl

    class Tenfold(ActiveAttack):
        needs = frozenset({"loss"})
        def craft(self, round, knowledge):
            return -1e25 * knowledge.own
        def score(self, observations, audit):
            return -observations.of_target("loss").mean(0)

    class Spoils(Defense):
        def protect(self, update, ctx):
            return update / 0

    @hookimpl
    def fedbench_attacks():
        yield Component("tenfold", "drives:Tenfold", "a toy")
    @hookimpl
    def fedbench_defenses():
        yield Component("spoils", "drives:Spoils", "a toy")
"""


def test_a_result_that_an_adversary_wanted_is_no_failure_of_the_run(site, tmp_path):
    install(site, "drives", PLUGIN)
    path = changed(tmp_path, {"adversary": {"clients": 1}}, attacks=["loss-series", "tenfold"])
    status, output = called(path, "--results", tmp_path / "r")
    assert status == 0 and "1 cells diverged as the adversary inside wanted: results, no failures" in output, output
    assert "[2/2 cells, " in output and "cells failed" not in output
    found = {attack: r for (_, attack, _), r in records(tmp_path / "r").items()}
    assert found["loss-series"]["outcome"] == "ok" and not found["loss-series"]["by_adversary"]
    assert found["tenfold"]["outcome"] == "diverged" and found["tenfold"]["by_adversary"]
    assert "rows of the attack Tenfold (client 3)" in found["tenfold"]["reason"]
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "| diverged by the adversary (1/1) |" in board and "| diverged by the adversary | " in board
    assert "- records: 1 diverged by the adversary, 1 ok" in board
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r" / "records").iterdir()}
    assert called(path, "--results", tmp_path / "r", "--rerun", "failed")[0] == 0
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r" / "records").iterdir()}


def test_a_divergence_without_an_adversary_is_a_failure(site, tmp_path):
    install(site, "drives", PLUGIN)
    path = changed(tmp_path, {"adversary": {"clients": 1}}, attacks=["tenfold"], defenses=["spoils"])
    status, output = called(path, "--results", tmp_path / "r")
    (record,) = [json.loads(p.read_text()) for p in (tmp_path / "r" / "records").glob("*.json")]
    assert status == 1 and "1 cells failed" in output and "wanted" not in output
    assert record["outcome"] == "diverged" and not record["by_adversary"]
    assert "by the adversary" not in (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert record["reason"] == "round 1: Spoils.protect made the upload of client 0, 1 not finite; mend it"
