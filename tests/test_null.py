"""Null and sanity tests through the real engine: without a leak there is none to find, and a real
one is found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import judge, use, with_setting
from ruamel.yaml import YAML
from tiny import tiny_insider, tiny_setup, train_all

from fedbench.core import EXCLUDED, MEMBER, OFL, ActiveAttack, Attack, Defense, Signal
from fedbench.core.cli.run import build_plan
from fedbench.core.metrics import combined_interval, tpr_at_fpr
from fedbench.core.run.scene import build, set_scene
from fedbench.core.run.train import kinds_of, train
from fedbench.plugins.defenses.cofedmid.defense import CoFedMID
from fedbench.testing.worlds import setting_of, train_job

PLAIN = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")
CLASS = ("loss-series", "fedmia-ii")
ATTACKS = (*PLAIN, *(f"{name}-class" for name in CLASS))
MEMBERS, NONMEMBERS, K = 120, 1100, 10
# of one AUC without a leak (Mann-Whitney)
AUC_SD = np.sqrt((MEMBERS + NONMEMBERS + 1) / 12 / MEMBERS / NONMEMBERS)
LUCKY = 9  # members above the second best non-member, over nine shuffles

SUITE = {
    "schema": 1,
    "name": "null",
    "seeds": [0],
    "settings": [
        {
            "name": "digits",
            "dataset": {
                "name": "digits",
                "params": {"test": 397, "holdout": 200, "label_noise": 0.3},
            },
            "model": {"name": "mlp", "params": {"hidden": [128, 64]}},
            "federation": {
                "clients": K,
                "rounds": 30,
                "local_epochs": 3,
                "batch_size": 20,
                "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005},
            },
            "audit": {"every": 5, "nonmembers": NONMEMBERS, "targets": [0, 1, 2]},
        }
    ],
    "coalitions": ["half"],
    "defenses": ["none", "cofedmid"],
    "floors": [],
    "attacks": [
        *({"name": name, "params": {"epochs": 5} if name == "seqmia" else {}} for name in PLAIN),
        *(
            {"name": name, "label": f"{name}-class", "params": {"normalise": "class"}}
            for name in CLASS
        ),
    ],
}


class Tail(Signal):
    """Not of the samples: the last parameters of the measured model, one in the place of each
    sample.
    """

    def measure(self, probe):
        return torch.cat([p.reshape(-1) for p in probe.model.parameters()])[-len(probe.y) :].float()


class Reads(Attack):
    """Asks for what the tests want to see; ``view`` ``client`` adds the global model's row."""

    needs = frozenset({"tail", "loss"})
    view = "client"


class Guess(Attack):
    """Knows nothing."""

    def score(self, observations, audit):
        return audit.rng.random(len(audit.ids))


class Oracle(Attack):
    """Is told."""

    members = frozenset()
    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return np.array([float(i in self.members) for i in audit.ids])


class HoldsOut(Defense):
    """The first quarter of a member's samples stays out; what they are is replaced if ``spoil``."""

    spoil = False

    def prepare(self, data, ctx):
        held = torch.arange(len(data.y)) < len(data.y) // 4
        return spoilt(replace(data, held_out=held)) if self.spoil else replace(data, held_out=held)


class HoldsOutSpoilt(HoldsOut):
    spoil = True


class CoFedMIDSpoilt(CoFedMID):
    def prepare(self, data, ctx):
        return spoilt(super().prepare(data, ctx))


def spoilt(data):
    """The same member with other samples in the place of those held out."""
    x, y = data.x.clone(), data.y.clone()
    x[data.held_out], y[data.held_out] = 1 - x[data.held_out], (y[data.held_out] + 1) % 10
    return replace(data, x=x, y=y)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("null")
    YAML().dump(SUITE, folder / "null.yaml")
    return {
        j.defense.label: j
        for j in build_plan(folder / "null.yaml", (), folder / "results", "cpu").jobs
    }


def run(job, attacks=None):
    # so that every client's rows are measured, whatever the other attacks see
    class Server(Attack):
        pass

    parts = build(job)
    scene = set_scene(job, parts)
    return scene, train(
        job,
        parts,
        scene,
        [*(attacks if attacks is not None else made(job)), Server()],
        lambda t, measured: None,
    )


def attack_of(cell):
    """A fresh one."""
    (attack,) = cell.attack.make()
    return attack


def made(job):
    return [attack_of(c) for c in job.cells]


def verdicts(job, scene, trained):
    """Attack label -> its verdict."""
    return {c.attack.label: judge(job, c, attack_of(c), scene, trained) for c in job.cells}


def verdict_of(job, attack, scene, trained):
    return judge(job, replace(job.cells[0], attack=use(type(attack))), attack, scene, trained)


def shares_above_the_second(verdict):
    """Of each target's members, those above all non-members but one: TF01 at twice its rate, which
    1,100 of them can tell.
    """
    arrays = [
        (verdict.arrays[f"t{t.target}_scores"], verdict.arrays[f"t{t.target}_kind"])
        for t in verdict.targets
    ]
    return [tpr_at_fpr(s[k != EXCLUDED], k[k != EXCLUDED] == MEMBER, 0.002) for s, k in arrays]


@pytest.fixture(scope="module")
def leaking(plan):
    """The one expensive training: undefended and overfitted."""
    job = plan["none"]
    return job, *run(job)


# -- a leak, and the same run without one ----------------------------------------------------------


def test_the_undefended_overfitted_run_leaks_to_every_attack(leaking):
    for name, verdict in verdicts(*leaking).items():
        scores = [t.groups["mix"] for t in verdict.targets]
        interval = combined_interval(
            [s.value("auc") for s in scores], [s.error("auc") for s in scores]
        )
        assert interval.low > 0.5, (name, interval)
        assert min(s.value("auc") for s in scores) > 0.5, name


def test_shuffled_membership_is_chance_for_every_attack_on_a_leaking_run(leaking):
    job, scene, trained = leaking
    rng, repeats = np.random.default_rng(0), 3
    found, above = {name: [] for name in ATTACKS}, dict.fromkeys(ATTACKS, 0.0)
    for _ in range(repeats):
        orders = [rng.permutation(len(a.ids)) for a in scene.audits]
        audits = [
            replace(a, kind=a.kind[o], owner=a.owner[o])
            for a, o in zip(scene.audits, orders, strict=True)
        ]
        for name, verdict in verdicts(job, replace(scene, audits=audits), trained).items():
            found[name] += [t.groups["mix"] for t in verdict.targets]
            above[name] += MEMBERS * sum(shares_above_the_second(verdict))
    for name, scores in found.items():
        n = len(scores)  # independent shuffles
        assert n == 3 * repeats
        assert abs(np.mean([s.value("auc") for s in scores]) - 0.5) < 4 * AUC_SD / np.sqrt(n), name
        # One false positive is allowed: 2 * 120 / 1101 members are expected above the second best
        # non-member, 2.0 in all, with a deviation of 1.5.
        assert above[name] <= LUCKY, name


# -- guessing and knowing --------------------------------------------------------------------------


def test_guessing_is_chance_and_knowing_is_perfect_in_every_group(leaking):
    job, scene, trained = leaking
    guessed = verdict_of(
        job, Guess(), scene, replace(trained, signals={"loss": trained.signals["loss"]})
    )
    for t, share in zip(guessed.targets, shares_above_the_second(guessed), strict=True):
        assert abs(t.groups["mix"].value("auc") - 0.5) < 4 * AUC_SD and share < 0.03
    for audit in scene.audits:
        oracle = Oracle()
        oracle.members = frozenset(scene.names[scene.shards[audit.target.index]].tolist())
        pooled = verdict_of(job, oracle, replace(scene, audits=[audit]), trained).pooled
        assert {(score.value("auc"), score.value("advantage")) for score in pooled.values()} == {
            (1, 1)
        }
        counts = {
            group: (pooled[group].n_members, pooled[group].n_nonmembers)
            for group in ("mix", "ofl", "ifl")
        }
        assert counts == {
            "mix": (MEMBERS, NONMEMBERS),
            "ofl": (MEMBERS, 110),
            "ifl": (MEMBERS, 990),
        }


# -- the candidates --------------------------------------------------------------------------------


def test_neither_the_name_nor_the_place_of_a_candidate_tells_anything(leaking):
    job, scene, trained = leaking
    seen = {}

    class Clerk(Attack):
        needs = frozenset({"loss"})
        colluders = 1

        def fit(self, shadows, audit):
            seen["shown"], seen["loss"] = shadows[0].ids, shadows[0].observations["loss"][-1, 0]
            assert np.array_equal(audit.ids, shadows[0].ids)

        def score(self, observations, audit):
            at = {name: i for i, name in enumerate(seen["shown"])}
            where = [at[name] for name in audit.ids]  # one name for a sample, whoever asks
            np.testing.assert_array_equal(observations["loss"][-1, 0], seen["loss"][where])
            return audit.ids.astype(float)

    verdict = verdict_of(job, Clerk(), scene, trained)
    for t in verdict.targets:
        for group, n0 in (("mix", NONMEMBERS), ("ofl", 110), ("ifl", 990)):
            sd = np.sqrt((MEMBERS + n0 + 1) / 12 / MEMBERS / n0)
            assert abs(t.groups[group].value("auc") - 0.5) < 4 * sd, group


def test_an_active_adversary_gets_its_candidates_in_an_order_that_tells_nothing():
    given = {}

    class Notes(ActiveAttack):
        needs = frozenset({"loss"})

        def craft(self, round, knowledge):
            given["x"] = knowledge.x
            return knowledge.own

    adversary = {"clients": 1, "mask_set": 5}
    scene = train_job(setting_of(adversary=adversary), [Notes()], attack=Notes()).scene
    pool = [tuple(x.reshape(-1).tolist()) for x in scene.x_of(scene.pool)]
    place = {x: i for i, x in enumerate(pool)}
    order = np.array([place[tuple(x.reshape(-1).tolist())] for x in given["x"]])
    assert np.array_equal(np.sort(order), np.sort([place[x] for x in pool]))  # the same samples
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 4 / np.sqrt(len(order))


# -- held-out samples ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("honest", "changed"),
    [
        (use(HoldsOut), use(HoldsOutSpoilt)),
        # rewards count from the sixth on: until then the bandit cannot pass on what it saw in the
        # validation part
        (
            use(CoFedMID, recycle_from=2, val_min=12),
            use(CoFedMIDSpoilt, recycle_from=2, val_min=12),
        ),
    ],
)
def test_held_out_samples_touch_no_parameter_and_no_metric(plan, honest, changed):
    job = plan["cofedmid"]
    narrow = job.model.model_copy(update={"params": {"hidden": [32]}})
    measured = replace(job, model=narrow, signals={**job.signals, "tail": use(Tail)})
    federation = {"local_epochs": 1, "rounds": 6}
    base = with_setting(measured, federation=federation, audit={"every": 1})
    scene, a = run(replace(base, defense=honest), [Reads()])
    _, b = run(replace(base, defense=changed), [Reads()])
    assert a.signals["tail"].tobytes() == b.signals["tail"].tobytes()
    assert np.array_equal(a.held_out, b.held_out) and len(a.held_out) == 5 * (
        30 if "Holds" in honest.name else 12
    )
    assert np.isin(a.held_out, np.concatenate([scene.shards[k] for k in base.members])).all()
    oracle = Oracle()  # wrong about exactly the samples that do not count
    oracle.members = frozenset(scene.names[np.setdiff1d(scene.shards[0], a.held_out)].tolist())
    audit = scene.audits[0]
    verdict = verdict_of(base, oracle, replace(scene, audits=[audit]), a)
    assert verdict.pooled["mix"].value("auc") == 1
    assert verdict.pooled["mix"].n_members == MEMBERS - len(a.held_out) // 5
    assert np.array_equal(verdict.arrays["t0_kind"] == EXCLUDED, np.isin(audit.ids, a.held_out))
    assert (kinds_of(audit, a)[audit.kind == OFL] == OFL).all()


# -- what is measured, and what an adversary may try -----------------------------------------------


def test_trying_the_rule_tells_an_adversary_neither_the_servers_coins_nor_changes_its_memory():
    class NoisyServer(Defense):
        def aggregate(self, updates, weights, ctx):
            ctx.memory["calls"] = ctx.memory.get("calls", 0) + 1
            self.calls, self.coins = ctx.memory["calls"], ctx.randn(4)
            return weights @ updates

    class Prober(ActiveAttack):
        knowledge = "rule"

        def craft(self, round, knowledge):
            for _ in range(2):
                knowledge.rule(torch.zeros(4, len(knowledge.start)))
            self.coins = server.coins
            return knowledge.own

    server, prober = NoisyServer(), Prober()
    train_all(tiny_setup(server, insider=tiny_insider(prober)))
    assert server.calls == 3 and not torch.equal(prober.coins, server.coins)
