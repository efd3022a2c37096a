"""Several defenses in one coalition, and several coalitions: each part is what it would be
alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_clients, tiny_setup, train_all

from fedbench.core import Defense, Selection, UserError
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.federation.compose import Composite, allied, composed, merged
from fedbench.core.federation.loop import answered
from fedbench.plugins.defenses.augmentation import Mixup
from fedbench.plugins.defenses.cofedmid.defense import CoFedMID
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.losses import RelaxLoss
from fedbench.plugins.defenses.uploads import GradNoise


class EveryPhase(Defense):
    """Acts everywhere, draws everywhere, remembers everywhere."""

    n_models = 2

    def begin(self, ctx):
        self.scale = float(ctx.rng.uniform(0.5, 1))

    def prepare(self, data, ctx):
        ctx.memory["calls"] = 0
        return replace(data, held_out=ctx.randperm(len(data.y)) < 2)

    def assign(self, models, ctx):
        return int(ctx.rng.integers(2))

    def select(self, ctx):
        index = ctx.data.trainable
        return Selection(index, ctx.randperm(len(index)) % 2 == 0)

    def transform(self, batch, ctx):
        return replace(batch, x=batch.x + 0.1 * ctx.randn_like(batch.x))

    def loss(self, logits, batch, ctx):
        ctx.memory["calls"] += 1
        return (
            super().loss(logits, batch, ctx) * self.scale
            + batch.flag.float().mean() * logits.square().mean()
        )

    def local_step(self, batch, ctx):
        return torch.randn(len(ctx.params), generator=ctx.generator) if ctx.epoch == 3 else None

    def local_train(self, ctx):
        ctx.train()
        ctx.params.add_(ctx.randn_like(ctx.params), alpha=0.01)

    def protect(self, update, ctx):
        return update + 0.01 * ctx.memory["calls"] * ctx.randn_like(update)

    def coordinate(self, updates, ctx):
        ctx.memory["rounds"] = ctx.memory.get("rounds", 0) + 1
        return updates + ctx.memory["rounds"] * 0.01 * ctx.randn_like(updates)

    def aggregate(self, updates, weights, ctx):
        past = ctx.memory.setdefault("past", torch.zeros_like(updates[0]))
        past += weights @ updates + 0.01 * ctx.randn_like(updates[0])
        return past / ctx.round

    def after_round(self, ctx):
        ctx.memory["calls"] += float(ctx.rng.uniform())

    def answer(self, logits, ctx):
        said = (
            sum(ctx.of_member[k]["calls"] for k in ctx.members)
            + ctx.coalition["rounds"]
            + float(ctx.rng.uniform())
        )
        return logits * (1 + said)

    def report(self, ctx):
        return {
            "calls": [ctx.of_member[k]["calls"] for k in ctx.members],
            "rounds": ctx.coalition["rounds"],
        }


def bits(defense, **changes):
    """Everything the loop shows of a training: uploads and global models of every round, and what
    the last ones answer.
    """
    federation, results = train_all(tiny_setup(defense, n_models=defense.n_models, **changes))
    said = [answered(federation, j, torch.eye(3)) for j in range(len(federation.models))]
    return [t for r in results for t in (r.uploads.updates, r.models)] + said


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def facts(defense):
    """What the defense says of a training."""
    return train_all(tiny_setup(defense, n_models=defense.n_models))[0].facts()


# -- a list of defenses ----------------------------------------------------------------------------

ALONE = {"nothing": Defense, "every phase": EveryPhase, "a loss of its own": DPSGD}


@pytest.mark.parametrize("name", ALONE)
def test_a_composite_of_one_is_that_defense_bit_for_bit(name):
    make = ALONE[name]
    alone = bits(make())
    for parts in ([make()], [Composite([make()])], [make(), Defense()]):
        assert same(bits(Composite(parts)), alone)
        assert all(
            overrides(Composite(parts), phase) == overrides(make(), phase) for phase in PHASES
        )
        assert Composite(parts).n_models == make().n_models
    assert same(alone, bits(Defense())) == (name == "nothing")  # the defense did something


def test_the_defense_of_every_phase_has_every_phase_of_the_table_and_lists_need_a_part():
    assert all(overrides(EveryPhase(), phase) for phase in PHASES)
    one = Defense()
    assert composed([one]) is one
    with pytest.raises(UserError, match="at least one"):
        Composite([])


def affine(scale, shift):
    """x -> scale x + shift in every chained phase; three times the scale in ``coordinate``."""

    class Affine(Defense):
        def protect(self, update, ctx):
            return scale * update + shift

        def coordinate(self, updates, ctx):
            return (3 * scale if scale != 1 else 1) * updates + shift

        def transform(self, batch, ctx):
            return replace(batch, x=scale * batch.x + shift)

        def prepare(self, data, ctx):
            assert data is ctx.data
            return replace(data, x=scale * data.x + shift)

        def answer(self, logits, ctx):
            return scale * logits + shift

    return Affine()


def test_phases_are_chained_in_the_order_of_the_list():
    scale, shift, both = affine(2, 0), affine(1, 1), affine(2, 1)
    assert same(bits(Composite([scale, shift])), bits(both)) and not same(
        bits(Composite([shift, scale])), bits(both)
    )


class Counter(Defense):
    """Counts in a memory of each kind, and keeps what it draws."""

    def __init__(self, step):
        super().__init__()
        self.step, self.drawn = step, []

    def begin(self, ctx):
        assert ctx.memory == {}

    def transform(self, batch, ctx):
        self.drawn.append(float(ctx.rng.uniform()))  # goes on from batch to batch
        return batch

    def protect(self, update, ctx):
        ctx.memory["count"] = ctx.memory.get("count", 0) + self.step
        return update

    def coordinate(self, updates, ctx):
        ctx.memory["count"] = ctx.memory.get("count", 0) + self.step
        return updates

    def report(self, ctx):
        of_members = [ctx.of_member[k]["count"] for k in (0, 1)]
        return {"count": ctx.coalition["count"], f"step {self.step}": of_members, "remarks": ["x"]}


def test_every_part_has_its_own_memory_generator_and_facts():
    parts = [Counter(1), type("Tally", (Counter,), {})(10)]
    assert facts(Composite(parts)) == {
        "Counter 1: count": 3,
        "step 1": [3, 3],
        "Tally 2: count": 30,
        "step 10": [30, 30],
        "remarks": ["x"],
    }
    drawn = parts[0].drawn + parts[1].drawn
    # parts, rounds, members, epochs, batches of 5 from 12
    assert len(set(drawn)) == len(drawn) == 2 * 3 * 2 * 2 * 3
    alone = facts(EveryPhase())
    assert alone["rounds"] == 3 and facts(Composite([EveryPhase(), Defense()])) == alone


def trained_on(*parts):
    """(sample, flag) of all that reached the training of a list."""
    seen = []

    class Sees(Defense):
        def transform(self, batch, ctx):
            flags = [None] * len(batch.index) if batch.flag is None else batch.flag.tolist()
            seen.extend(zip(batch.index.tolist(), flags, strict=True))
            return batch

    train_all(tiny_setup(Composite([*parts, Sees()]), members=(0,), rounds=1, local_epochs=1))
    return sorted(seen)


def chooses(index, flag=None, batches=None):
    answer = None if index is None else Selection(torch.tensor(index), flag, batches)
    return type("Chooses", (Defense,), {"select": lambda self, ctx: answer})()


def holds_out(*positions):
    held = torch.isin(torch.arange(12), torch.tensor(positions))
    return type(
        "HoldsOut", (Defense,), {"prepare": lambda self, data, ctx: replace(data, held_out=held)}
    )()


indices = st.lists(st.integers(0, 11), min_size=1, max_size=12)


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.none(), indices), min_size=1, max_size=3),
    st.sets(st.integers(0, 11), max_size=4),
    st.data(),
)
def test_selections_intersect_and_flags_follow_their_samples(answers, held, data):
    chosen = [a for a in answers if a is not None]
    flagger = data.draw(st.sampled_from([None, *range(len(answers))]))
    # what one part holds out stays out
    parts = [holds_out(*list(held)[:2]), holds_out(*list(held)[2:])]
    for i, answer in enumerate(answers):
        parts.append(
            chooses(answer, torch.tensor(answer) + 100 if i == flagger and answer else None)
        )
    flagged = flagger is not None and answers[flagger] is not None
    last = chosen[-1] if chosen else range(12)
    expected = [
        (j, 100 + j if flagged else None)
        for j in last
        if j not in held and all(j in c for c in chosen)
    ]
    assert trained_on(*parts) == sorted(expected)


def test_the_smallest_number_of_batches_counts():
    everything = list(range(12))
    assert [
        len(trained_on(chooses(everything, None, n), chooses(everything, None, 2)))
        for n in (1, None, 3)
    ] == [5, 10, 10]


@pytest.mark.parametrize("phase", phases(combines=("exclusive",)))
def test_a_phase_with_one_answer_takes_one_part(phase):
    one, other = (
        type(name, (Defense,), {phase: getattr(EveryPhase, phase)})() for name in ("One", "Other")
    )
    Composite([one, Defense(), GradNoise()])
    with pytest.raises(UserError, match=rf"'One' \(number 1\) and 'Other' \(number 3\).*{phase}"):
        Composite([one, Defense(), other])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [chooses([0, 1], torch.tensor([1, 2])), chooses([1], torch.tensor([1]))],
            r"'Chooses' \(number 1\) and 'Chooses' \(number 2\).*flags",
        ),
        (
            [RelaxLoss(), DPSGD()],
            r"'DPSGD' \(number 2\) and 'RelaxLoss' \(number 1\).*never be used",
        ),
        ([Mixup(alpha=1.0), RelaxLoss()], "relaxloss works on hard labels"),
        ([Mixup(alpha=1.0), CoFedMID(val_min=1)], "cofedmid works on hard labels"),
    ],
    ids=["flags", "a loss that is not used", "relaxloss", "cofedmid"],
)
def test_parts_that_cannot_go_together_are_refused(parts, message):
    with pytest.raises(UserError, match=message):
        train_all(tiny_setup(Composite(parts)))


# -- several coalitions ----------------------------------------------------------------------------

CLIENTS = 6


class Everywhere(EveryPhase):
    """Acts in every phase, with global models that no upload moves: so a coalition meets the same
    ones whoever else defends.
    """

    def aggregate(self, updates, weights, ctx):
        return torch.zeros_like(updates[0])

    def report(self, ctx):
        return {}


class Still(Defense):
    def aggregate(self, updates, weights, ctx):
        return torch.zeros_like(updates[0])


def coalitions_of(groups, make=Defense, **changes):
    """A federation of six clients of unequal sizes with these coalitions."""
    data = [
        replace(d, x=d.x[: 12 - k], y=d.y[: 12 - k]) for k, d in enumerate(tiny_clients(CLIENTS))
    ]
    members = tuple(sorted(k for group in groups for k in group))
    return tiny_setup(allied(groups, make), members, clients=data, **changes)


MAKES = [
    Everywhere,
    lambda: Composite([Everywhere(), GradNoise(sigma=0.1)]),
    lambda: Composite([CoFedMID(m_max=2, m_min=0.3, val_min=1, allow_absent=True), Still()]),
]


@settings(max_examples=12)
@given(
    make=st.sampled_from(MAKES),
    where=st.lists(st.integers(0, 3), min_size=CLIENTS, max_size=CLIENTS),
    seed=st.integers(0, 5),
    share=st.sampled_from((0.5, 1.0)),
)
def test_every_coalition_uploads_what_it_would_alone(make, where, seed, share):
    """The reference: a federation for each coalition, in which no other client defends."""
    groups = tuple(
        sorted(g for n in range(3) if (g := tuple(k for k, w in enumerate(where) if w == n)))
    )

    def uploads(groups):
        results = train_all(
            coalitions_of(groups, make, seed=seed, participation=share, n_models=make().n_models)
        )[1]
        return [dict(zip(r.uploads.participants, r.uploads.updates, strict=True)) for r in results]

    together = uploads(groups)
    for group in groups:
        for ours, theirs in zip(together, uploads((group,)), strict=True):
            assert ours.keys() == theirs.keys() and all(
                torch.equal(ours[k], theirs[k]) for k in group if k in ours
            )


def test_the_server_is_one_party_whatever_the_coalitions():
    class Rule(Defense):
        def aggregate(self, updates, weights, ctx):
            ctx.memory["calls"] = ctx.memory.get("calls", 0) + 1
            return weights @ updates

        def report(self, ctx):
            said = ["one for all", f"of {len(ctx.members)}"]
            return {
                "calls": ctx.of_server[0]["calls"],
                "members": list(ctx.members),
                "remarks": said,
            }

    for make in (Rule, lambda: composed([GradNoise(sigma=0.1), Rule()])):
        federation, _ = train_all(coalitions_of(((0, 1), (2, 3, 4)), make))
        assert federation.setup.facts.aggregation == "Rule"
        assert federation.facts() == {
            "calls": 3,
            "group 1: members": [0, 1],
            "group 2: members": [2, 3, 4],
            "remarks": ["one for all", "of 2", "of 3"],
        }


@pytest.mark.parametrize(
    # two lists with one entry a model: members that answer, members that it serves
    ("groups", "told"),
    [
        (((0, 1), (2, 3)), [((0, 1), (0, 1)), ((2, 3), (2, 3))]),
        (((0, 1, 2),), [((0, 1, 2), (0, 1)), ((0, 1, 2), (2,))]),
        ((), []),
    ],
    ids=["two coalitions", "one", "none"],
)
def test_a_model_has_one_answer_of_the_first_coalition_that_it_serves(groups, told):
    asked = []

    class Answers(Defense):
        n_models = 2

        def assign(self, models, ctx):
            return int(ctx.client >= 2)

        def answer(self, logits, ctx):
            asked.append(
                (
                    (ctx.round, ctx.model_index, ctx.members, ctx.served, tuple(ctx.of_member)),
                    ctx.key,
                )
            )
            return 2 * logits

    federation, _ = train_all(coalitions_of(groups, Answers, n_models=2))
    once = 2.0 if groups else 1.0  # and not for each coalition
    assert all(
        torch.equal(answered(federation, j, torch.ones(3, 3)), torch.full((3, 3), once))
        for j in (0, 1, 0)
    )
    wanted = [(3, j, members, served, members) for j, (members, served) in enumerate(told)]
    assert [context for context, _ in asked] == wanted + wanted[:1]
    assert len({key for _, key in asked}) == len(told)


def test_facts_that_all_coalitions_state_alike_stand_once():
    said = [
        {"a": 1, "b": 2, "c": [1.0], "d": True},
        {"a": 1, "b": 3, "c": [1.0], "d": 1},
        {"a": 1, "b": 2, "c": [1.0]},
    ]
    assert merged(said) == {
        "a": 1,
        "c": [1.0],
        "group 1: b": 2,
        "group 2: b": 3,
        "group 3: b": 2,
        "group 1: d": True,
        "group 2: d": 1,
    }
    assert merged([said[0]]) == said[0]
