"""Several coalitions at once: each is what it would be alone, and the server is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from every_phase import EveryPhase
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_clients, tiny_setup, train_all
from torch.nn.functional import cross_entropy

from fedbench.core import Defense, SkipCell
from fedbench.core.federation.answering import answered
from fedbench.core.federation.coalitions import Coalitions, allied, merged
from fedbench.core.federation.compose import Composite, composed
from fedbench.core.federation.guard import PhaseError
from fedbench.core.federation.loop import Training
from fedbench.core.signals.logits import Loss
from fedbench.core.signals.measure import Recorder, model_of_row, rows_of
from fedbench.core.signals.observe import observe
from fedbench.core.signals.rows import coalition_of_row, coalition_row, seen_from
from fedbench.plugins.defenses.cofedmid import CoFedMID
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.none import NoDefense
from fedbench.plugins.defenses.placebo import Placebo

CLIENTS = 6
Groups = tuple[tuple[int, ...], ...]


class Everywhere(EveryPhase):
    """Acts in every phase, with global models that no upload moves: so a coalition meets the same ones whoever else defends."""

    def aggregate(self, updates, weights, ctx):
        return torch.zeros_like(updates[0])

    def report(self, ctx):
        return {"rounds": ctx.coalition.get("rounds", 0)}


def both() -> Defense:
    """A list of two, each with a memory and a key of its own."""
    return Composite([Everywhere(), GradNoise(sigma=0.1)])


def setup_of(groups: Groups, make: Any = Defense, **changes: Any):
    """A federation of six clients of unequal sizes with these coalitions."""
    data = [replace(d, x=d.x[: 12 - k], y=d.y[: 12 - k]) for k, d in enumerate(tiny_clients(CLIENTS))]
    members = tuple(sorted(k for group in groups for k in group))
    return tiny_setup(allied(groups, make), members, clients=data, **changes)


def uploads(groups: Groups, make: Any, **changes: Any) -> list[dict[int, torch.Tensor]]:
    """What each client uploads in each round."""
    results = train_all(setup_of(groups, make, **changes))[1]
    return [dict(zip(r.uploads.participants, r.uploads.updates, strict=True)) for r in results]


@st.composite
def groupings(draw: st.DrawFn) -> Groups:
    """Two or three disjoint groups of the six clients; some may defend in none."""
    where = draw(st.lists(st.integers(0, 3), min_size=CLIENTS, max_size=CLIENTS))
    groups = [tuple(k for k, w in enumerate(where) if w == g) for g in range(3)]
    return tuple(sorted(g for g in groups if g))


@pytest.mark.parametrize("make", [Everywhere, both])
@settings(max_examples=12, deadline=None)
@given(groups=groupings(), seed=st.integers(0, 5), share=st.sampled_from((0.5, 1.0)))
def test_every_coalition_uploads_what_it_would_alone(make, groups, seed, share):
    """The reference: a federation for each coalition, in which nobody else defends. Updates after every phase, in every round."""
    how = {"seed": seed, "participation": share, "n_models": 2}
    together = uploads(groups, make, **how)
    for group in groups:
        alone = uploads((group,), make, **how)
        for ours, theirs in zip(together, alone, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[k], theirs[k]) for k in group if k in ours)


class Told(Defense):
    """Keeps what the coordinator, and each instance, is told."""

    made: list[Told]

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Any] = []
        self.coordinated: list[Any] = []
        self.members: set[int] = set()
        Told.made.append(self)

    def begin(self, ctx):
        assert ctx.memory == {}
        ctx.memory["planned"] = self.begun.append(ctx)

    def protect(self, update, ctx):
        self.members.add(ctx.client)
        return update

    def coordinate(self, updates, ctx):
        assert "planned" in ctx.memory and len(updates) == len(ctx.present)
        self.coordinated.append(ctx)
        return updates


def test_a_coordinator_is_told_of_its_own_coalition_alone():
    Told.made = []
    groups = ((0, 4), (1, 2, 3))
    setup = setup_of(groups, Told, participation=0.5)
    _, results = train_all(setup)
    total = sum(setup.sizes)
    assert len(Told.made) == 2
    for group, instance in zip(groups, Told.made, strict=True):
        (plan,) = instance.begun
        here = [tuple(k for k in r.uploads.participants if k in group) for r in results]
        assert plan.members == plan.present == group and plan.sizes == tuple(12 - k for k in group)
        assert plan.weights == pytest.approx([(12 - k) / total for k in group])
        assert [ctx.present for ctx in instance.coordinated] == [present for present in here if present]
        assert all(ctx.members == group for ctx in instance.coordinated) and instance.members == {k for p in here for k in p}
    keys = [ctx.key for instance in Told.made for ctx in (*instance.begun, *instance.coordinated)]
    assert len(set(keys)) == len(keys)


def test_the_noise_of_cofedmid_cancels_in_each_coalition_by_itself():
    groups = ((0, 3), (1, 2, 4))
    setup = setup_of(
        groups, lambda: CoFedMID(partition=False, compensation=False, sigma=1.0, ratio=1.0, noise="vector"), keep_unprotected=True
    )
    for result in Training(setup).rounds():
        noise = (result.uploads.updates - result.uploads.unprotected).double()
        weights = torch.tensor(setup.sizes, dtype=torch.float64)
        for group in groups:
            mine = list(group)
            assert noise[mine].norm(dim=1).min() > 1
            assert (weights[mine] @ noise[mine]).abs().max() < 1e-4
        assert noise[5].abs().max() == 0
        assert abs(torch.corrcoef(torch.stack([noise[0], noise[1]]))[0, 1]) < 0.5  # nor is it one noise twice


def test_the_plan_of_a_coalition_does_not_depend_on_the_others():
    def plan(groups: Groups, which: int) -> np.ndarray:
        setup = setup_of(groups, lambda: CoFedMID(compensation=False, m_max=2, m_min=1), seed=3)
        defense = train_all(setup)[0].defense
        return (defense.parts or (defense,))[which].classes

    plans = [plan(((2, 3),), 0), plan(((0, 1), (2, 3)), 1), plan(((2, 3), (4, 5)), 0), plan(((0, 1), (2, 3), (4, 5)), 1)]
    assert all(np.array_equal(plans[0], other) for other in plans)
    assert not np.array_equal(plans[0], plan(((0, 1), (2, 3)), 0))


@pytest.mark.parametrize("make", [NoDefense, Placebo, lambda: GradNoise(sigma=0.5)])
@settings(max_examples=6, deadline=None)
@given(groups=groupings())
def test_members_who_do_nothing_together_train_as_in_one_coalition(make, groups):
    together = tuple(sorted(k for group in groups for k in group))
    models = [train_all(setup_of(g, make))[0].models for g in (groups, (together,) if together else ())]
    assert torch.equal(*models)


class Rule(Defense):
    """A server that counts; members that do nothing but exist."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def protect(self, update, ctx):
        return update

    def aggregate(self, updates, weights, ctx):
        self.calls += 1
        ctx.memory["calls"] = ctx.memory.get("calls", 0) + 1
        return weights @ updates

    def report(self, ctx):
        said = ["one for all", f"of {len(ctx.members)}"]
        return {"calls": ctx.of_server[0]["calls"], "members": list(ctx.members), "remarks": said}


def test_the_server_is_one_party_whatever_the_coalitions():
    federation, _ = train_all(setup_of(((0, 1), (2, 3, 4)), Rule))
    assert [part.calls for part in federation.defense.parts] == [3, 0]
    assert federation.setup.facts.aggregation == "Rule"
    assert federation.facts() == {
        "calls": 3, "group 1: members": [0, 1], "group 2: members": [2, 3, 4], "remarks": ["one for all", "of 2", "of 3"],
    }  # fmt: skip


def test_the_rule_of_a_list_is_named_through_its_coalitions():
    setup = setup_of(((0, 1), (2, 3)), lambda: composed([GradNoise(sigma=0.1), Rule()]))
    assert setup.facts.aggregation == "Rule" and isinstance(setup.defense, Coalitions)


def test_a_model_has_one_answer_of_the_first_coalition_that_it_serves():
    asked = []

    class Answers(Defense):
        n_models = 2

        def assign(self, models, ctx):
            return int(ctx.client >= 2)

        def answer(self, logits, ctx):
            asked.append(ctx)
            return 2 * logits

    federation, _ = train_all(setup_of(((0, 1), (2, 3)), Answers, n_models=2))
    logits = torch.ones(3, 3)
    for j in range(2):
        assert torch.equal(answered(federation, j, logits), 2 * logits)  # once, not for each coalition
    first, second = asked
    assert (first.members, first.served, second.members, second.served) == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert set(first.of_member) == {0, 1} and set(second.of_member) == {2, 3}


def test_one_instance_is_asked_nothing_of_another_and_its_failure_names_it():
    class Fails(Defense):
        def coordinate(self, updates, ctx):
            return updates[:1] if 3 in ctx.members else updates

    with pytest.raises(PhaseError, match=r"Fails\.coordinate \(round 1\) returned a tensor of shape \[1, "):
        train_all(setup_of(((0, 1), (2, 3)), Fails))


def test_members_that_are_not_those_of_the_coalitions_are_refused():
    with pytest.raises(ValueError, match=r"the members \(0, 1\) are not those of the coalitions \(\(0, 1\), \(2, 3\)\)"):
        tiny_setup(allied(((0, 1), (2, 3)), Defense), (0, 1))


# --- what they say of their runs


def test_facts_that_all_coalitions_state_alike_stand_once():
    said = [{"a": 1, "b": 2, "c": [1.0], "d": True}, {"a": 1, "b": 3, "c": [1.0], "d": 1}, {"a": 1, "b": 2, "c": [1.0]}]
    assert merged(said) == {
        "a": 1, "c": [1.0], "group 1: b": 2, "group 2: b": 3, "group 3: b": 2, "group 1: d": True, "group 2: d": 1,
    }  # fmt: skip
    assert merged([said[0]]) == said[0]


def test_remarks_of_a_list_and_of_coalitions_are_one_list_in_which_each_stands_once():
    class Says(Defense):
        def __init__(self, *texts: str) -> None:
            super().__init__()
            self.texts = texts

        def report(self, ctx):
            return {"remarks": [*self.texts, f"{len(ctx.members)} members"]} if self.texts else {}

    def remarks(*texts: tuple[str, ...], groups: Groups = ((0, 1),)) -> Any:
        return train_all(setup_of(groups, lambda: composed([Says(*t) for t in texts])))[0].facts()

    assert remarks(("x", "y"), ("y", "z")) == {"remarks": ["x", "y", "2 members", "z"]}
    assert remarks(("x",), (), groups=((0,), (1, 2), (3,))) == {"remarks": ["x", "1 members", "2 members"]}
    assert remarks((), ()) == {}


@pytest.mark.parametrize(("said", "found"), [("a line", "str"), ([1], "list"), (3, "3")])
def test_remarks_that_are_no_list_of_sentences_are_refused(said, found):
    class Odd(Defense):
        def report(self, ctx):
            return {"remarks": said}

    with pytest.raises(PhaseError, match=rf"Odd\.report .* returned 'remarks' that are {found}; expected a list of sentences"):
        train_all(setup_of(((0, 1),), Odd))[0].facts()


# --- what a view sees of them


def test_rows_of_coalitions_are_no_rows_of_clients_or_models():
    rows = rows_of({"server", "client", "coalition"}, 3, (0, 1, 2), n_models=5, coalitions=3)
    assert rows[:3] == [0, 1, 2] and len(set(rows)) == len(rows) == 11
    assert [coalition_of_row(r) for r in rows] == [None] * 8 + [0, 1, 2]
    assert [model_of_row(r) for r in rows] == [None] * 3 + [0, 1, 2, 3, 4] + [None] * 3
    assert rows_of({"coalition"}, 3, (), coalitions=0) == [] and rows_of({"coalition"}, 3, (0,)) == [-2]


def test_the_target_is_followed_through_the_mean_of_its_own_coalition():
    groups, every = ((0, 4), (1, 2, 3)), [0, 1, 2, 3, 4]
    setup = setup_of(groups, Placebo)
    x, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3
    recorder = Recorder(
        setup.flat, x, y, {"loss": Loss()}, gradients=True, clients=CLIENTS, members=setup.members, views={"coalition"},
        sizes=setup.weighing, coalitions=groups,
    )  # fmt: skip
    (_, results), expected = train_all(setup), {}
    for result in results:
        recorder.record(result)
    u = results[-1].uploads
    for g, group in enumerate(groups):
        share = torch.tensor([12.0 - k for k in group])
        params = u.starts[0] + (share / share.sum()) @ u.updates[list(group)]
        expected[g] = cross_entropy(functional(setup, params, x), y, reduction="none").numpy()
    assert recorder.rows == [coalition_row(0), coalition_row(1)]
    for target in every:
        rows = seen_from(target, recorder.rows, groups)
        seen = observe("coalition", target, rows, np.array(recorder.rounds), recorder.arrays(), np.arange(9))
        own = next(g for g, group in enumerate(groups) if target in group)
        assert seen.clients[seen.target] == -2
        np.testing.assert_allclose(seen.of_target("loss")[-1], expected[own], rtol=1e-5)
    assert not np.allclose(expected[0], expected[1])


def functional(setup, params: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[n, C] logits of these parameters in eval mode."""
    setup.flat.params.copy_(params)
    setup.flat.module.eval()
    return setup.flat.module(x).detach()


def test_whoever_is_in_none_of_several_coalitions_is_followed_through_none():
    rows = [-2, coalition_row(1)]
    assert seen_from(5, rows, ()) == seen_from(None, rows, ((0, 1),)) == rows
    with pytest.raises(SkipCell, match="there are 2, and the audit asks about client 5, which is in none of them"):
        seen_from(5, rows, ((0, 1), (2, 3)))
    with pytest.raises(SkipCell, match="there are 2, and the audit asks about many clients together"):
        seen_from(None, rows, ((0, 1), (2, 3)))
