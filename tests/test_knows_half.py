"""The supervised adversary: taught by one half of the candidates, judged on the other, and told no
label that it is judged on.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, Attack, SkipCell, UserError
from fedbench.core.population.audit import client
from fedbench.core.run.scoring import NOTE, BadScores, ask, in_second_half
from fedbench.core.run.train import kinds_of
from fedbench.testing.worlds import setting_of, train_job, world

HANDED: list[dict[str, Any]] = []


class Nearest(Attack):
    """The loss, turned as the known members' mean stands to the known non-members', plus the base
    rate.
    """

    needs = frozenset({"loss"})
    knows_half = True

    def _seen(self, observations):
        return np.nanmean(observations.of_target("loss").astype(np.float64), axis=0)

    def fit(self, shadows, audit):
        (half,) = shadows
        x = self._seen(half.observations)
        self._means = [x[half.member == m].mean() for m in (True, False)]
        self._rate = half.member.mean()

    def score(self, observations, audit):
        x = self._seen(observations)
        return (x - np.mean(self._means)) * (self._means[0] - self._means[1]) + 1000 * self._rate


class Spy(Nearest):
    """Keeps whatever it is handed, in every call."""

    def fit(self, shadows, audit):
        HANDED.append({"fit": (list(shadows), audit), "self": self, "before": dict(vars(self))})
        super().fit(shadows, audit)

    def score(self, observations, audit):
        HANDED[-1]["score"] = (observations, audit)
        assert HANDED[-1]["self"] is self
        return super().score(observations, audit)


class GlobalSpy(Spy):
    view = "client"


class BaseRate(Nearest):
    """Knows only how many of its half were members."""

    def score(self, observations, audit):
        return np.full(len(audit.ids), self._rate)


class AlsoColludes(Nearest):
    colluders = 1


class HasThreshold(Nearest):
    threshold = 0.0


class OneTooFew(Nearest):
    def score(self, observations, audit):
        return super().score(observations, audit)[1:]


class Clumsy(Nearest):
    """Holds what cannot be copied."""

    def __init__(self, **values):
        super().__init__(**values)
        self.lines = (line for line in ())


class Colludes(Attack):
    """Keeps its lesson."""

    needs = frozenset({"loss", "logits"})
    view = "client"
    colluders = 1

    def fit(self, shadows, audit):
        HANDED.append({"fit": (list(shadows), audit)})

    def score(self, observations, audit):
        return -observations.of_target("loss")[-1]


@pytest.fixture(autouse=True)
def nothing_handed():
    HANDED.clear()


def arrays_behind(thing: Any) -> list[np.ndarray]:
    """Every array that can be reached from something, through views to what they are views of."""
    if isinstance(thing, np.ndarray):
        return [thing, *(arrays_behind(thing.base) if thing.base is not None else [])]
    if is_dataclass(thing):
        return [a for f in fields(thing) for a in arrays_behind(getattr(thing, f.name))]
    if isinstance(thing, dict):
        return [a for v in thing.values() for a in arrays_behind(v)]
    return [a for v in thing for a in arrays_behind(v)] if isinstance(thing, list | tuple) else []


def with_held_out(seen):
    """As if the first target's defense had kept five of its members out of training."""
    audit = seen.scene.audits[0]
    held = np.sort(audit.ids[audit.kind == MEMBER][:5])
    return replace(seen, trained=replace(seen.trained, held_out=held))


# --- what it is handed ----------------------------------------------------------------------------


@pytest.mark.parametrize("spy", [Spy, GlobalSpy])
def test_no_label_of_a_judged_candidate_is_ever_handed_over(spy):
    seen = with_held_out(world(spy.needs))
    answers = ask(seen.run, spy())
    assert len(HANDED) == 2 * len(seen.scene.audits) and answers.notes == [NOTE]
    names = seen.scene.names
    t, pool = seen.trained, seen.scene.names[seen.scene.pool].tolist()
    for i, audit in enumerate(seen.scene.audits):
        label = dict(zip(names[audit.ids].tolist(), kinds_of(audit, t).tolist(), strict=True))
        row, judged_of = t.rows.index(-1 if spy is GlobalSpy else audit.target.index), []
        for call in HANDED[2 * i : 2 * i + 2]:
            ((half,), lesson), (observed, asked_about) = call["fit"], call["score"]
            known, judged = half.ids.tolist(), asked_about.ids.tolist()
            assert not {*known} & {*judged} and known == lesson.ids.tolist() == sorted(known)
            kinds = [label[k] for k in known]
            assert [kind == MEMBER for kind in kinds] == half.member.tolist()
            assert EXCLUDED not in kinds
            assert call["before"].keys() == {"params"}  # nothing of the half that it scores now
            wanted = t.signals["loss"][:, row, [pool.index(k) for k in known]]
            np.testing.assert_array_equal(half.observations.of_target("loss"), wanted)
            assert {a.shape[2] for a in observed.signals.values()} == {len(judged)}
            # rounds and clients apart
            shapes = [a.shape for a in arrays_behind([half, lesson]) if a.size > 8]
            # no array of the whole list behind a view
            assert len(shapes) > 4 and all(len(known) in shape for shape in shapes)
            told = {half.client, lesson.target_client, asked_about.target_client}
            assert told == {audit.target.code}
            judged_of += judged
        assert sorted(judged_of) == sorted(label)
    assert len({id(call["self"]) for call in HANDED}) == len(HANDED)


# --- the cut --------------------------------------------------------------------------------------


def test_the_cut_is_stratified_keyed_and_blind_to_the_order():
    rng = np.random.default_rng(0)
    kind = rng.permutation(np.repeat([MEMBER, OFL, IFL, EXCLUDED], [31, 40, 25, 6]))
    names = rng.permutation(1000)[:102]
    second = in_second_half(kind, names, 3, client(1))
    assert [int(second[kind == k].sum()) for k in (MEMBER, OFL, IFL, EXCLUDED)] == [15, 20, 12, 3]
    order = rng.permutation(len(kind))
    np.testing.assert_array_equal(
        in_second_half(kind[order], names[order], 3, client(1)), second[order]
    )
    others = [in_second_half(kind, names, seed, client(k)) for seed, k in ((4, 1), (3, 2))]
    assert all((other != second).any() for other in others)


def test_too_few_candidates_for_two_halves_are_skipped():
    kind = np.array([MEMBER] * 3 + [OFL] * 20)
    said = "half of the candidates of client 2 has 1 members and 10 non-members"
    with pytest.raises(SkipCell, match=said):
        in_second_half(kind, np.arange(23), 0, client(2))


# --- one scale ------------------------------------------------------------------------------------


def slow_ranks(said: np.ndarray, counted: np.ndarray) -> list[float]:
    """Mid-ranks among the candidates that count, over their number and one."""
    others = said[counted]
    return [((others < v).sum() + (others <= v).sum() + 1) / 2 / (counted.sum() + 1) for v in said]


@pytest.mark.parametrize("cls", [Nearest, BaseRate])
def test_scores_are_mid_ranks_within_each_half_among_those_that_count(cls):
    seen = with_held_out(world())
    answers = ask(seen.run, cls())
    for i, audit in enumerate(seen.scene.audits):
        kind, loss = kinds_of(audit, seen.trained), seen.trained.signals["loss"]
        assert (kind == EXCLUDED).sum() >= (5 if i == 0 else 0)
        second = in_second_half(kind, seen.scene.names[audit.ids], seen.job.seed, audit.target)
        row = loss[:, seen.trained.rows.index(audit.target.index)][
            :, np.searchsorted(seen.scene.pool, audit.ids)
        ]
        x = row.astype(float).mean(axis=0)
        for half in (second, ~second):
            taught = ~half & (kind != EXCLUDED)
            means = [x[taught & ((kind == MEMBER) == m)].mean() for m in (True, False)]
            said = (x - np.mean(means)) * (means[0] - means[1]) * (cls is Nearest)
            np.testing.assert_allclose(
                answers.scores[i][half], slow_ranks(said[half], (kind != EXCLUDED)[half])
            )


# --- targets, and what is refused -----------------------------------------------------------------


def test_all_honest_clients_together():
    seen = world(GlobalSpy.needs, targets="honest", members=60)
    answers = ask(seen.run, GlobalSpy())
    assert [len(s) for s in answers.scores] == [len(seen.scene.audits[0].ids)]
    (((half,), _),) = (call["fit"] for call in HANDED[:1])
    assert (half.client, half.defended) == (-3, False)
    with pytest.raises(SkipCell, match="it follows one client's rows"):
        ask(seen.run, Spy())


def test_redrawn_candidates_are_skipped():
    audit = {"every": 2, "nonmembers": 40, "align_nonmembers": False}
    redrawn = train_job(setting_of(audit=audit), [Nearest()])
    with pytest.raises(SkipCell, match="align_nonmembers: false redraws them in every round"):
        ask(redrawn.run, Nearest())


REFUSED = [
    (AlsoColludes, UserError, "neither colluders"),
    (HasThreshold, UserError, "nor a threshold"),
    (
        OneTooFew,
        BadScores,
        r"score returned shape \[\d+\] for half of the candidates of client 0; expected \[\d+\]",
    ),
    (
        Clumsy,
        UserError,
        "it knows half of the candidates, and so is copied before each fit, but cannot be",
    ),
]


@pytest.mark.parametrize(("cls", "error", "said"), REFUSED)
def test_an_attack_that_cannot_be_taught_by_a_half_is_refused(cls, error, said):
    with pytest.raises(error, match=said):
        ask(world().run, cls())


# --- colluders of an attack on the global model ---------------------------------------------------


def test_a_colluder_of_a_global_view_shares_the_global_rows():
    made = Colludes()
    finished = train_job(setting_of(), [made])
    ask(finished.run, made)
    (lesson,), pool = HANDED[0]["fit"]
    seen, scene = lesson.observations, finished.scene
    order = scene.presented
    assert (lesson.client, pool.target_client) == (3, -1)
    assert (seen.view, seen.target, seen.clients.tolist()) == (made.view, 0, [-1])
    np.testing.assert_array_equal(seen["logits"], finished.trained.signals["logits"][:, :, order])
    np.testing.assert_array_equal(lesson.member, np.isin(scene.pool[order], scene.shards[3]))
