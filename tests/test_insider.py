"""Adversaries inside the federation: what they know, may do and are blamed for; and the causes of a
divergence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_packages import install
from hypothesis import given, settings
from hypothesis import strategies as st
from running import changed, invoke, records
from tiny import tiny_clients, tiny_insider, tiny_module, tiny_setup, train_all
from torch import nn

from fedbench.core import ActiveAttack, Defense, Diverged, UserError
from fedbench.core.federation.bench import Bench
from fedbench.core.federation.compose import composed
from fedbench.core.federation.diverged import DivergedByAdversary
from fedbench.core.numerics.rng import key_for
from fedbench.core.run.measurements import train_loss
from fedbench.plugins.defenses.rules.means import TrimmedMean
from fedbench.plugins.defenses.uploads import GradNoise


def crafting(craft: Any, level: str = "own") -> ActiveAttack:
    """An adversary with this ``craft(round, knowledge)``."""
    return type(
        "Mine", (ActiveAttack,), {"knowledge": level, "craft": lambda self, *args: craft(*args)}
    )()


@pytest.mark.parametrize("level", ["none", "own", "honest", "rule"])
def test_a_malicious_client_crafts_its_rows_and_knows_no_more_than_its_level(level):
    seen = []

    def craft(round, knowledge):
        seen.append(knowledge)
        knowledge.memory["rounds"] = knowledge.memory.get("rounds", 0) + 1
        return torch.ones(2, 51) if level == "none" else -knowledge.own

    insider = tiny_insider(crafting(craft, level), malicious=2, start_round=2)
    results = train_all(tiny_setup(members=(0,), insider=insider))[1]
    honest = train_all(tiny_setup(members=(0,)))[1]
    assert torch.equal(results[0].uploads.updates, honest[0].uploads.updates)  # before start_round
    k = seen[0]
    assert (k.round, k.clients, k.memory) == (2, (2, 3), {"rounds": 2}) and len(seen) == 2
    levels = ["own", "honest", "rule"]
    known = {name: getattr(k, name) is not None for name in levels}
    assert known == {name: levels.index(name) < ["none", *levels].index(level) for name in levels}
    if level == "rule":
        assert torch.equal(k.honest, honest[1].uploads.updates[:2])
        torch.testing.assert_close(k.rule(k.honest), k.honest.mean(0))
    sent = results[1].uploads.updates
    torch.testing.assert_close(
        sent[2:], torch.ones_like(sent[2:]) if level == "none" else -honest[1].uploads.updates[2:]
    )
    assert torch.equal(sent[:2], honest[1].uploads.updates[:2])


def test_a_client_cannot_defend_and_attack():
    with pytest.raises(UserError, match="client 3 cannot both defend and attack"):
        train_all(tiny_setup(members=(3,), insider=tiny_insider(crafting(lambda round, k: k.own))))


def test_what_an_adversary_writes_to_is_its_own_and_its_tools_keep_their_model():
    steps = []

    def craft(round, knowledge):
        rows = knowledge.own.double()
        for _ in range(2):
            logits = knowledge.logits(knowledge.x).flatten()
            steps.append(torch.cat([knowledge.step(knowledge.x, knowledge.y), logits]))
            knowledge.start.zero_()
            knowledge.own.zero_()
        mine = torch.ones(4, 51)
        knowledge.rule(mine)
        assert bool((mine == 1).all())
        return rows

    class Rule(Defense):
        def aggregate(self, updates, weights, ctx):
            step = weights @ updates
            updates.zero_()
            return step

    plain, attacked = (
        train_all(tiny_setup(Rule(), members=(), insider=insider))[0].models
        for insider in (None, tiny_insider(crafting(craft, "rule")))
    )
    assert torch.equal(attacked, plain)
    assert torch.equal(torch.stack(steps[::2]), torch.stack(steps[1::2]))


# -- the adversary's tools -------------------------------------------------------------------------


def chained() -> nn.Module:
    """The same network as a sequence of layers; its gradient is computed without autograd."""
    return nn.Sequential(nn.Flatten(), tiny_module())


@pytest.mark.parametrize("module", [tiny_module, chained])
def test_a_bench_trains_as_a_client_does(module):
    setup = tiny_setup(rounds=1, module=module())
    bench, data = Bench(setup, setup.flat.state.clone(), 1), setup.clients[2]
    (result,) = train_all(tiny_setup(rounds=1))[1]
    shuffle = torch.Generator().manual_seed(key_for(0, "shuffle", 1, 2) >> 1)
    torch.testing.assert_close(
        bench.train(data.x, data.y, 2, shuffle), result.uploads.updates[2], rtol=1e-4, atol=1e-6
    )
    # in their order: of five, and of one
    first, both = bench.train(data.x[:5], data.y[:5]), bench.train(data.x[:6], data.y[:6])
    assert torch.equal(first, bench.step(data.x[:5], data.y[:5]))
    assert not torch.allclose(both, first)


@settings(max_examples=10)
@given(
    name=st.sampled_from(["sgd", "adam"]),
    decay=st.sampled_from([0.0, 0.01]),
    n=st.sampled_from([1, 4, 130]),
    module=st.sampled_from([tiny_module, chained]),
)
def test_sample_steps_are_the_steps_on_each_sample_alone(name, decay, n, module):
    setup = tiny_setup(name=name, weight_decay=decay, module=module())
    bench = Bench(setup, setup.flat.state.clone(), 1)
    x, y = torch.randn(n, 4, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3
    rows = bench.sample_steps(x, y)
    assert rows.shape == (n, 51)
    for i in {0, n // 2, n - 1}:
        torch.testing.assert_close(
            rows[i], bench.step(x[i : i + 1], y[i : i + 1]), rtol=1e-3, atol=1e-6
        )


def test_sample_steps_beyond_memory_are_refused():
    setup = tiny_setup()
    start = replace(setup.flat.state, params=torch.empty(20_000_000, device="meta"))
    bench = Bench(setup, start, 1)
    with pytest.raises(UserError, match=r"takes 7 GiB: lower adversary\.mask_set"):
        bench.sample_steps(torch.zeros(100, 4), torch.zeros(100).long())


# -- rows that are not finite ----------------------------------------------------------------------


def poison() -> ActiveAttack:
    """Sends NaN in round 2."""
    return crafting(lambda round, knowledge: knowledge.own * (math.nan if round == 2 else 1.0))


def test_malicious_rows_that_are_not_finite_are_rejected_and_the_federation_goes_on():
    class Assumes(Defense):
        def aggregate(self, updates, weights, ctx):
            seen.append((ctx.round, ctx.participants, ctx.assumed_malicious))
            return weights @ updates

    seen: list = []
    adversary = {
        "members": (),
        "insider": tiny_insider(poison(), malicious=2),
        "expected_malicious": 2,
    }
    federation, results = train_all(tiny_setup(Assumes(), keep_unprotected=True, **adversary))
    assert [r.rejected for r in results] == [(), (2, 3), ()]
    kept = results[1].uploads
    assert kept.participants == (0, 1)
    assert len(kept.updates) == len(kept.unprotected) == len(kept.start_of) == 2
    assert seen == [(1, (0, 1, 2, 3), 2), (2, (0, 1), 0), (3, (0, 1, 2, 3), 2)]
    assert bool(torch.isfinite(federation.models).all())
    torch.testing.assert_close(results[1].steps[0], results[1].uploads.updates.mean(0))
    trimmed = train_all(tiny_setup(TrimmedMean(b=1), **adversary))[1]
    assert [r.rejected for r in trimmed] == [(), (2, 3), ()]


def test_a_round_whose_only_rows_are_rejected_keeps_the_model():
    always = crafting(lambda round, knowledge: torch.full_like(knowledge.own, math.inf))
    setup = tiny_setup(
        members=(), clients=tiny_clients(2), insider=tiny_insider(always), participation=0.5
    )
    alone = [r for r in train_all(setup)[1] if r.rejected]
    assert alone, "no round drew the malicious client alone: choose another seed"
    for r in alone:
        assert torch.equal(r.steps, torch.zeros_like(r.steps)) and r.uploads.participants == ()


# -- causes of a divergence ------------------------------------------------------------------------

HUGE = 3e38  # a float32; four times as much is none


def attack(factor: float) -> Any:
    """Rows of one size."""
    return tiny_insider(crafting(lambda round, knowledge: torch.full_like(knowledge.own, factor)))


def acting(phase: str, does: Any) -> Defense:
    return type("Toy", (Defense,), {phase: lambda self, *args: does(*args)})()


def spoils(update, ctx):
    return update / 0 if ctx.round == 2 and ctx.client == 1 else update


def spoils_rows(rows, ctx):
    rows[ctx.round - 2 :] *= torch.nan  # of round 2: all; of round 1: the last
    return rows


def breaks(rows, weights, ctx):
    return rows[0] / 0


class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()


DIVERGE: dict[str, Any] = {"lr": 1e6, "local_epochs": 20}
ORDINARY = (
    "the aggregated model is not finite: Toy.aggregate made such a step of rows of an ordinary "
    "size; fix the rule"
)
CASES: dict[str, tuple[Defense | None, dict[str, Any], type[Diverged], str]] = {
    "a learning rate": (
        None,
        DIVERGE,
        Diverged,
        "round 1: the local training of client 0, 1, 2, 3 is not finite; lower the learning rate",
    ),
    "a model and samples before any training": (
        None,
        {"members": (), "module": nn.Sequential(Logarithm(), tiny_module())},
        Diverged,
        "round 1: the outputs of the initial model for client 0 are not finite, before any "
        "training; fix",
    ),
    "a loss": (
        acting("loss", lambda logits, batch, ctx: logits.sum() * 1e38),
        {"members": (2,)},
        Diverged,
        "round 1: the local training of client 2 is not finite; lower the learning rate or fix "
        "Toy.loss",
    ),
    "prepared data": (
        acting("prepare", lambda data, ctx: type(data)(data.x * 1e38, data.y)),
        {},
        Diverged,
        "round 1: the local training of client 0, 1 is not finite; lower the learning rate or fix "
        "Toy.prepare",
    ),
    "protect": (
        acting("protect", spoils),
        {"insider": attack(1.0)},
        Diverged,
        "round 2: Toy.protect made the upload of client 1 not finite; fix it",
    ),
    "a float64 that is no float32": (
        acting("coordinate", lambda rows, ctx: rows.double() * 1e300),
        {},
        Diverged,
        "round 1: Toy.coordinate made the upload of client 0, 1 not finite; fix it",
    ),
    "a part of a composite": (
        composed([GradNoise(sigma=0.1), acting("coordinate", spoils_rows)]),
        {},
        Diverged,
        "round 1: Toy.coordinate made the upload of client 1 not finite; fix it",
    ),
    "a rule": (acting("aggregate", breaks), {"members": ()}, Diverged, f"round 1: {ORDINARY}"),
    "a rule with an adversary inside": (
        acting("aggregate", breaks),
        {"members": (), "insider": attack(1.0)},
        Diverged,
        f"round 1: {ORDINARY}",
    ),
    "an adversary through a rule": (
        acting("aggregate", lambda rows, weights, ctx: rows.sum(0) * 4),
        {"members": (), "insider": attack(HUGE)},
        DivergedByAdversary,
        "round 1: the aggregated model is not finite: rows of the attack Mine (client 3) are too "
        "large, and "
        "Toy.aggregate let them in",
    ),
    "an adversary through a training": (
        GradNoise(sigma=0.1),
        {"insider": attack(1e25)},
        DivergedByAdversary,
        "round 2: the local training of client 0, 1, 2 is not finite, from a model that took rows "
        "of the attack Mine (client 3) "
        "since round 1",
    ),
    "a learning rate before the adversary's first row": (
        None,
        {"members": (), "insider": attack(1.0), **DIVERGE},
        Diverged,
        "round 1: the local training of client 0, 1, 2 is not finite; lower the learning rate",
    ),
    "a defense beside an adversary too small to be blamed": (
        acting("protect", lambda update, ctx: update * 1e10),
        {"rounds": 5, "insider": attack(1e-9)},
        Diverged,
        "round 4: the local training of client 0, 1, 2 is not finite; lower the learning rate or "
        "fix Toy.protect",
    ),
}


@pytest.mark.parametrize(("made", "changes", "kind", "text"), CASES.values(), ids=CASES)
def test_a_divergence_names_its_cause(made, changes, kind, text):
    with pytest.raises(Diverged) as caught:
        train_all(tiny_setup(made, **changes))
    assert caught.type is kind and str(caught.value).startswith(text), caught.value


def test_a_loss_that_is_not_finite_is_a_divergence_even_of_finite_parameters():
    training, _ = train_all(tiny_setup())
    assert math.isfinite(train_loss(training))
    training.models.fill_(1e30)
    with pytest.raises(Diverged, match=r"the loss .* lower the learning rate"):
        train_loss(training)
    attacked, _ = train_all(tiny_setup(insider=attack(1.0)))
    attacked.models.fill_(1e30)
    with pytest.raises(DivergedByAdversary, match=r"the loss .* rows of the attack Mine"):
        train_loss(attacked)


@settings(max_examples=10)
@given(share=st.sampled_from([0.09, 0.11]), seed=st.integers(0, 3))
def test_rows_from_a_tenth_of_the_honest_ones_on_count(share, seed):
    """A later divergence is attributed to an adversary with large enough rows, and to nothing
    smaller.
    """
    scaled = crafting(
        lambda round, k: torch.full_like(k.own, share * float(k.honest.abs().max())), "honest"
    )
    blows = acting("protect", lambda update, ctx: update * (1 if ctx.round == 1 else 1e30))
    with pytest.raises(Diverged) as caught:
        train_all(tiny_setup(blows, rounds=5, seed=seed, insider=tiny_insider(scaled)))
    assert (caught.type is DivergedByAdversary) == (share > 0.1)


PLUGIN = """
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


def test_a_divergence_that_an_adversary_wanted_is_a_result_and_any_other_a_failure(site, tmp_path):
    install(site, "drives", PLUGIN)
    path = changed(
        tmp_path,
        {"adversary": {"clients": 1}},
        attacks=["loss-series", "tenfold"],
        defenses=["none", "spoils"],
    )
    output = invoke(path, "--results", tmp_path / "r", "--only", "defense=none")
    assert "1 cells diverged as the adversary inside intended: results, no failures" in output
    output = invoke(path, "--results", tmp_path / "r", status=1)
    assert "cells without a score: 2 diverged." in output
    found = {
        (d, a): (r["outcome"], r["by_adversary"], r["reason"])
        for (d, a, _), r in records(tmp_path / "r").items()
    }
    assert found["none", "loss-series"] == ("ok", False, "")
    assert found["none", "tenfold"][:2] == ("diverged", True)
    assert "rows of the attack Tenfold (client 3)" in found["none", "tenfold"][2]
    spoilt = "round 1: Spoils.protect made the upload of client 0, 1 not finite; fix it"
    for attack_name in ("loss-series", "tenfold"):
        assert found["spoils", attack_name] == ("diverged", False, spoilt)
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "diverged by the adversary" in board
