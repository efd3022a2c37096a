"""The supervised adversary: taught by one half of the candidates, judged on the other, and told no label that it is judged on."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from fake_packages import install
from running import invoke, records, suite

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, Attack, SkipCell, UserError
from fedbench.core.experiment.halves import NOTE, in_second_half, ranks
from fedbench.core.experiment.job import Look
from fedbench.core.experiment.judge import BadScores, ask
from fedbench.core.experiment.train import kinds_of, train
from fedbench.core.experiment.wanted import views_of
from fedbench.core.metrics import auc
from fedbench.core.population.target import client
from fedbench.testing.jobs import judge, use
from fedbench.testing.trials.world import job_of, setting_of, world

HANDED: list[dict[str, Any]] = []


class Nearest(Attack):
    """The loss, turned as the known members' mean stands to the known non-members', plus the base rate."""

    needs = frozenset({"loss"})
    knows_half = True

    def _seen(self, observations):
        return np.nanmean(observations.of_target("loss").astype(np.float64), axis=0)

    def fit(self, shadows, audit):
        (half,) = shadows
        x = self._seen(half.observations)
        self._means, self._rate = [x[half.member == m].mean() for m in (True, False)], half.member.mean()

    def score(self, observations, audit):
        x = self._seen(observations)
        return (x - np.mean(self._means)) * (self._means[0] - self._means[1]) + 1000 * self._rate


class Global(Nearest):
    view = "client"


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


class ByRound(Nearest):
    def score_rounds(self, observations, audit):
        return -observations.of_target("loss").astype(np.float64) + self._rate

    def score(self, observations, audit):
        return self.score_rounds(observations, audit)[-1]


class BaseRate(Nearest):
    """Knows only how many of its half were members."""

    def score(self, observations, audit):
        return np.full(len(audit.ids), self._rate)


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


class ColludesExternally(Colludes):
    view = "external"


class ColludesAtTheServer(Colludes):
    view = "server"


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


def asked(made: Attack, seen: Any) -> Any:
    return ask(seen.job, made, seen.scene, seen.trained, seen.shadows)


# --- what it is handed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spy", [Spy, GlobalSpy])
def test_no_label_of_a_judged_candidate_is_ever_handed_over(spy):
    seen = with_held_out(world())
    answers = asked(spy(), seen)
    assert len(HANDED) == 2 * len(seen.scene.audits) and answers.notes == [NOTE]
    names = seen.scene.names
    for i, audit in enumerate(seen.scene.audits):
        kind = kinds_of(audit, seen.trained)
        label = dict(zip(names[audit.ids].tolist(), kind.tolist(), strict=True))
        judged_of = []
        for call in HANDED[2 * i : 2 * i + 2]:
            ((half,), lesson), (observed, asked_about) = call["fit"], call["score"]
            known, judged = half.ids.tolist(), asked_about.ids.tolist()
            assert set(known) & set(judged) == set() and half.ids.tolist() == lesson.ids.tolist() == sorted(known)
            assert [label[k] == MEMBER for k in known] == half.member.tolist()
            assert EXCLUDED not in {label[k] for k in known}
            assert set(label) - set(known) - set(judged) == {k for k, v in label.items() if v == EXCLUDED} - set(judged)
            assert call["before"].keys() == {"params"}  # nothing of the half that it scores now
            sizes = {a.shape[2] for a in half.observations.signals.values()} | {a.shape[2] for a in observed.signals.values()}
            assert sizes == {len(known), len(judged)}
            shapes = [a.shape for a in arrays_behind([half, lesson]) if a.size > 8]  # rounds and clients apart
            assert len(shapes) > 4 and all(len(known) in shape for shape in shapes)  # no array of the whole list behind a view
            assert (half.client, half.defended) == (audit.target.code, True)
            assert lesson.target_client == asked_about.target_client == audit.target.code
            judged_of += judged
        assert sorted(judged_of) == sorted(label)
    assert len({id(call["self"]) for call in HANDED}) == len(HANDED)


def test_observations_of_a_half_are_those_of_its_samples():
    seen = world()
    asked(GlobalSpy(), seen)
    t = seen.trained
    for call in HANDED:
        (half,), _ = call["fit"]
        where = [int(np.flatnonzero(seen.scene.names[seen.scene.pool] == k)[0]) for k in half.ids]
        np.testing.assert_array_equal(half.observations.of_target("loss"), t.signals["loss"][:, t.rows.index(-1), where])
        np.testing.assert_array_equal(half.y, seen.scene.y_of(seen.scene.pool[where]))


# --- the cut ----------------------------------------------------------------------------------------------------------


def test_the_cut_is_stratified_keyed_and_blind_to_the_order():
    rng = np.random.default_rng(0)
    kind = rng.permutation(np.repeat([MEMBER, OFL, IFL, EXCLUDED], [31, 40, 25, 6]))
    names = rng.permutation(1000)[: len(kind)]
    second = in_second_half(kind, names, 3, client(1))
    assert {k: int(second[kind == k].sum()) for k in (MEMBER, OFL, IFL, EXCLUDED)} == {MEMBER: 15, OFL: 20, IFL: 12, EXCLUDED: 3}
    order = rng.permutation(len(kind))
    np.testing.assert_array_equal(in_second_half(kind[order], names[order], 3, client(1)), second[order])
    others = [in_second_half(kind, names, 4, client(1)), in_second_half(kind, names, 3, client(2))]
    assert all((other != second).any() for other in others)


def test_every_attack_gets_the_same_halves():
    asked(Spy(), world())
    mine = [call["fit"][1].ids.tolist() for call in HANDED]
    HANDED.clear()
    asked(GlobalSpy(), world())
    assert [call["fit"][1].ids.tolist() for call in HANDED] == mine


def test_too_few_candidates_for_two_halves_are_skipped():
    kind = np.array([MEMBER] * 3 + [OFL] * 20)
    with pytest.raises(SkipCell, match="half of the candidates of client 2 has 1 members and 10 non-members"):
        in_second_half(kind, np.arange(23), 0, client(2))


# --- one scale --------------------------------------------------------------------------------------------------------


def test_ranks_are_mid_ranks_among_those_that_count():
    counted = np.array([True, True, True, True, False, True])
    found = ranks(np.array([[5.0, 1.0, 5.0, 9.0, 6.0, -2.0], [np.nan] * 6]), counted)
    np.testing.assert_allclose(found[0], np.array([3.5, 2, 3.5, 5, 4.5, 1]) / 6)
    assert np.isnan(found[1]).all()
    moved = ranks(np.array([5.0, 1.0, 5.0, 9.0, 600.0, -2.0]), counted)
    np.testing.assert_array_equal(moved[counted], found[0][counted])
    assert np.isnan(ranks(np.array([np.nan, 1.0]), np.array([True, True]))[0])


def test_each_half_is_ranked_apart():
    seen = world()
    answers = asked(BaseRate(), seen)
    for scores in answers.scores:
        np.testing.assert_array_equal(scores, 0.5)  # it tells the halves apart, and nothing within one
    for scores, audit in zip(asked(Nearest(), seen).scores, seen.scene.audits, strict=True):
        kind = kinds_of(audit, seen.trained)
        second = in_second_half(kind, seen.scene.names[audit.ids], seen.job.seed, audit.target)
        for half in (second, ~second):
            assert scores[half].mean() == pytest.approx(0.5) and scores[half].min() > 0 and scores[half].max() < 1


def test_single_rounds_are_ranked_too():
    seen = world()
    answers = asked(ByRound(), seen)
    for scores, rounds, audit in zip(answers.scores, answers.by_round, seen.scene.audits, strict=True):
        assert rounds.shape == (len(seen.trained.rounds), len(audit.ids))
        np.testing.assert_array_equal(rounds[-1], scores)
    said = judge(seen.job, seen.job.cells[0], ByRound(), seen.scene, seen.trained)
    assert all(t.rounds is not None for t in said.targets)


def test_excluded_candidates_are_scored_and_move_nobody():
    seen = with_held_out(world())
    audit = seen.scene.audits[0]
    scores = asked(Nearest(), seen).scores[0]
    kind = kinds_of(audit, seen.trained)
    assert (kind == EXCLUDED).sum() == 5 and np.isfinite(scores).all()
    second = in_second_half(kind, seen.scene.names[audit.ids], seen.job.seed, audit.target)
    for half in (second, ~second):
        n = int((half & (kind != EXCLUDED)).sum())
        assert np.sort(scores[half & (kind != EXCLUDED)]) == pytest.approx(np.arange(1, n + 1) / (n + 1))


def test_the_null_of_200_draws_is_one_half():
    """With base rates that differ (odd numbers of members), and scores that show them."""
    seen = world("holdout")
    audit = replace(seen.scene.audits[0], kind=seen.scene.audits[0].kind.copy())
    members = np.flatnonzero(audit.kind == MEMBER)
    audit.kind[members[: 1 - len(members) % 2]] = EXCLUDED
    scene = replace(seen.scene, audits=[audit])
    kept, member = audit.kind != EXCLUDED, audit.kind == MEMBER
    rng, found = np.random.default_rng(11), []
    for _ in range(200):
        drawn = rng.normal(size=seen.trained.signals["loss"].shape).astype(np.float32)
        trained = replace(seen.trained, signals={"loss": drawn})
        (scores,) = ask(seen.job, Nearest(), scene, trained).scores
        found.append(auc(scores[kept], member[kept]))
    error = np.std(found, ddof=1) / np.sqrt(200)
    assert error < 0.008 and abs(np.mean(found) - 0.5) < 4 * error
    second = in_second_half(audit.kind, scene.names[audit.ids], seen.job.seed, audit.target)
    rates = [member[kept & half].mean() for half in (second, ~second)]  # what each half is told of, by the other one
    assert auc(np.where(second, rates[1], rates[0])[kept], member[kept]) < 0.5  # two models' answers pooled as they are


@pytest.mark.parametrize("sign", [1, -1])
def test_a_leak_is_found_whichever_way_it_points(sign):
    seen = world()
    audit, rng = seen.scene.audits[1], np.random.default_rng(5)
    drawn = rng.normal(size=seen.trained.signals["loss"].shape).astype(np.float32)
    members = np.searchsorted(seen.scene.pool, audit.ids[audit.kind == MEMBER])
    drawn[:, seen.trained.rows.index(audit.target.client), members] += 2 * sign
    scores = asked(Nearest(), replace(seen, trained=replace(seen.trained, signals={"loss": drawn}))).scores[1]
    assert auc(scores, audit.kind == MEMBER) > 0.95


# --- targets, and what is refused -------------------------------------------------------------------------------------


def test_all_honest_clients_together():
    seen = world(together=True)
    answers = asked(GlobalSpy(), seen)
    assert [len(s) for s in answers.scores] == [len(seen.scene.audits[0].ids)]
    ((half,), _), = (call["fit"] for call in HANDED[:1])
    assert (half.client, half.defended) == (-3, False)
    with pytest.raises(SkipCell, match="it follows one client's rows"):
        asked(Spy(), seen)


def test_groups():
    audit = {"every": 4, "targets": "groups", "members": 30, "nonmembers": 30}
    groups = [{"name": "upright", "fraction": 0.5, "rotation": [0, 5]}, {"name": "turned", "rotation": [80, 90]}]
    job, parts, scene = job_of(setting_of(audit=audit, groups=groups), attack=use(Global), made=Global())
    trained = train(job, parts, scene, [Global()], lambda t: None)
    answers = ask(job, Global(), scene, trained)
    assert [len(s) for s in answers.scores] == [60, 60]


def test_redrawn_candidates_are_skipped():
    audit = {"every": 2, "nonmembers": 40, "align_nonmembers": False}
    job, parts, scene = job_of(setting_of(audit=audit), attack=use(Nearest), made=Nearest())
    trained = train(job, parts, scene, [Nearest()], lambda t: None)
    with pytest.raises(SkipCell, match="align_nonmembers: false redraws them in every round"):
        ask(job, Nearest(), scene, trained)


@pytest.mark.parametrize(("changes", "said"), [({"colluders": 1}, "neither colluders"), ({"threshold": 0.0}, "nor a threshold")])
def test_other_teachers_and_thresholds_are_refused(changes, said):
    attack = Nearest()
    for name, value in changes.items():
        setattr(attack, name, value)
    with pytest.raises(UserError, match=said):
        asked(attack, world())


def test_what_a_half_gets_wrong_is_said():
    with pytest.raises(BadScores, match=r"score returned shape \[\d+\] for half of the candidates of client 0; expected \[\d+\]"):
        asked(OneTooFew(), world())
    with pytest.raises(UserError, match="it knows half of the candidates, and so is copied before each fit, but cannot be"):
        asked(Clumsy(), world())


# --- colluders of an attack on the global model -----------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "rounds"), [(Colludes, slice(None)), (ColludesExternally, slice(-1, None))])
def test_a_colluder_of_a_global_view_shares_the_global_rows(cls, rounds):
    made = cls()
    assert views_of([made]) == {made.view} == views_of([Look.of(made)])
    job, parts, scene = job_of(setting_of(), attack=use(cls), made=made)
    trained = train(job, parts, scene, [made], lambda t: None)
    assert trained.rows == [-1]
    ask(job, made, scene, trained)
    (lesson,), pool = HANDED[0]["fit"]
    seen, order = lesson.observations, scene.presented
    assert (lesson.client, seen.view, seen.target, seen.clients.tolist(), pool.target_client) == (3, made.view, 0, [-1], -1)
    np.testing.assert_array_equal(seen["logits"], trained.signals["logits"][rounds][:, :, order])
    np.testing.assert_array_equal(lesson.member, np.isin(scene.pool[order], scene.shards[3]))
    assert lesson.member.any() and not lesson.member.all()


def test_a_colluder_at_the_server_shares_its_own_row():
    made = ColludesAtTheServer()
    assert views_of([made]) == {"server"} and views_of([Look(needs=made.needs, view="coalition", colluders=1)]) == {
        "server", "coalition"}  # fmt: skip
    seen = world()
    asked(made, seen)
    (lesson,), _ = HANDED[0]["fit"]
    assert lesson.observations.clients.tolist() == [0, 1, 2, 3] and lesson.observations.target == 3


# --- a whole run ------------------------------------------------------------------------------------------------------

PLUGIN = """
    import numpy as np
    from fedbench.core import Attack, Component, hookimpl

    class Half(Attack):
        '''The log odds of a linear model on the logits.'''
        needs = frozenset({"logits", "uniform-loss", "robustness", "upload-grad-sq"})
        knows_half = True

        def _x(self, seen):
            flat = [seen.of_target(n)[-1] for n in sorted(self.needs - {"logits"})]
            return np.column_stack([seen.of_target("logits")[-1], *flat, np.ones(len(flat[0]))]).astype(np.float64)

        def fit(self, shadows, audit):
            x = self._x(shadows[0].observations)
            self._w = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ shadows[0].member)

        def score(self, observations, audit):
            return self._x(observations) @ self._w

    class Both(Half):
        colluders = 1

    @hookimpl
    def fedbench_attacks():
        yield Component("half", "halves:Half", "a toy")
        yield Component("both", "halves:Both", "a toy")
"""


def test_a_run_says_that_half_is_known(site, tmp_path):
    install(site, "halves", PLUGIN)
    path = suite(tmp_path, attacks=["half", "loss-series"], signals=[{"name": "robustness", "params": {"copies": 2}}])
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    assert {r["outcome"] for r in found.values()} == {"ok"}
    assert NOTE in found["none", "half", 0]["notes"] and NOTE not in found["none", "loss-series", 0]["notes"]


def test_two_teachers_are_a_mistake_of_the_plan(site, tmp_path):
    install(site, "halves", PLUGIN)
    with pytest.raises(UserError, match="attack 'both': knows_half with colluders = 1: an attack learns from one of the two"):
        invoke(suite(tmp_path, attacks=["both"]), "--results", tmp_path / "r")
