"""Where CoFedMID fails, it says so: noise that stays in the model, classes that nobody trains on, members left out."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from coalitions import ONLY_NOISE, ONLY_PARTITION, facts
from tiny import tiny_clients, tiny_module, tiny_setup, train_all
from torch import nn

from fedbench.core import Defense, MemberData, UserError
from fedbench.core.federation.compose import composed
from fedbench.core.federation.guard import remarks_of
from fedbench.plugins.defenses.cofedmid import CoFedMID, perturbation
from fedbench.plugins.defenses.rules.trimmed_mean import TrimmedMean

ALL = {"recycle_from": 2, "val_min": 2, "min_assigned": 1}


def uneven() -> list[MemberData]:
    """Clients of 40 samples that train on 36, 30, 24 and 18 of them."""
    return [MemberData(d.x, d.y, held_out=torch.arange(40) < 6 * k + 4) for k, d in enumerate(tiny_clients(samples=40))]


def trajectory(then: tuple[Defense, ...] = (), clients=None, **changes) -> dict[bool, torch.Tensor]:
    """[T, P] global models, with and without perturbation."""
    found = {}
    for perturbed in (True, False):
        defense = composed([CoFedMID(perturbation=perturbed, allow_absent=True, **ALL), *then])
        _, results = train_all(tiny_setup(defense, (0, 1, 2), clients=clients or uneven(), **changes))
        found[perturbed] = torch.cat([r.models for r in results])
    return found


def apart(found: dict[bool, torch.Tensor]) -> float:
    """The largest difference that the perturbation makes to a global model."""
    return float((found[True] - found[False]).abs().max())


# -- whether noise cancels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_under_the_mean_the_global_model_is_the_one_without_noise(weights):
    found = trajectory(weights=weights)
    assert apart(found) < 1e-5 and not torch.equal(found[True], found[False])


@pytest.mark.parametrize(
    "broken",
    [{"weight_order": "shuffled"}, {"participation": 0.75, "rounds": 6}, {"then": (TrimmedMean(),), "expected_malicious": 1}],
)
def test_shuffled_weights_absent_members_and_another_rule_leave_noise_in_the_global_model(broken):
    assert apart(trajectory(**broken)) > 1e-3


def test_shuffled_weights_of_equally_large_clients_are_the_same_weights():
    assert apart(trajectory(clients=tiny_clients(samples=40), weight_order="shuffled")) < 1e-5


def said(*defenses: Defense, members=(0, 1, 2), **changes) -> tuple[list[str], list[str]]:
    """Remarks before and after the training."""
    setup = tiny_setup(composed(list(defenses)), members, clients=changes.pop("clients", None) or uneven(), **changes)
    before = remarks_of(setup.defense, setup.facts)
    return before, train_all(setup)[0].facts().get("remarks", [])


NOISE = {"sigma": 0.1, "ratio": 0.8}


def test_noise_that_cancels_is_no_remark():
    for weights in ("size", "equal"):
        assert said(CoFedMID(**NOISE, **ONLY_NOISE), weights=weights) == ([], [])


def test_another_rule_is_named_before_and_after():
    before, after = said(CoFedMID(**NOISE, **ONLY_NOISE), TrimmedMean(), expected_malicious=1)
    text = (
        "The coalition's noise of deviation 0.1 on the last 80 % of the parameters cancels in the weighted mean alone: whatever "
        "else the server's rule TrimmedMean makes of the updates leaves some of it in the global model, in each of 3 rounds."
    )
    assert before == [f"CoFedMID: {text}"] and after == [text]
    silent = CoFedMID(perturbation=False, **ALL)
    assert not [s for both in said(silent, TrimmedMean(), expected_malicious=1) for s in both if "noise" in s]


def test_shuffled_weights_are_named_before_and_after():
    before, after = said(CoFedMID(**NOISE, **ONLY_NOISE), weight_order="shuffled")
    assert before == after and len(after) == 1
    assert "another one's number of samples" in after[0] and "does not cancel in any of 3 rounds" in after[0]


def test_client_sampling_is_refused_and_where_it_is_allowed_its_rounds_are_counted():
    with pytest.raises(UserError, match=r"participation 0\.5 members can be absent"):
        CoFedMID(**ONLY_NOISE).check(facts(participation=0.5))
    setup = tiny_setup(CoFedMID(allow_absent=True, **NOISE, **ONLY_NOISE), (0, 1, 2), participation=0.5, rounds=12)
    (before,) = remarks_of(setup.defense, setup.facts)
    assert "With participation 0.5 members can be absent" in before
    training, results = train_all(setup)
    some = [r for r in results if any(k in r.uploads.participants for k in (0, 1, 2))]
    assert [f"In {len(some)} of 12 rounds some members did not take part"] == [
        s[: s.index(":")] for s in training.facts()["remarks"]
    ]  # two of four clients are never all three


def test_a_member_alone_has_no_noise_and_says_so():
    assert said(CoFedMID(**NOISE, **ONLY_NOISE), members=(1,)) == (
        [], ["The coalition has one member: noise that cancels is none, and nothing was perturbed."]
    )  # fmt: skip


def test_noise_that_nobody_cancels_is_named():
    before, after = said(CoFedMID(mode="independent", **NOISE, **ONLY_NOISE))
    assert before == after and "In the independent mode nobody cancels a member's noise of deviation 0.1" in after[0]
    assert said(CoFedMID(mode="independent", independent_noise="none", **NOISE, **ONLY_NOISE)) == ([], [])
    assert said(CoFedMID(sigma=0.0, ratio=0.8, **ONLY_NOISE), weight_order="shuffled") == ([], [])


# -- where the noise lies (C19) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "perturbed", "found"),
    [(tiny_module(), 25, (21, 21)), (tiny_module(), 10, (10, 21)), (nn.Sequential(nn.Linear(4, 3, bias=False)), 9, (9, 12)),
     (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 9, (0, 0))],
)  # fmt: skip
def test_how_many_perturbed_parameters_lie_in_the_final_linear_layer(model, perturbed, found):
    assert perturbation.in_final_layer(model, perturbed) == found


@pytest.mark.parametrize(
    ("ratio", "within", "sentence"),
    [(10.5 / 51, 10, "All 10 perturbed parameters lie in the final linear layer, which has 21."),
     (21.5 / 51, 21, "All 21 perturbed parameters lie in the final linear layer, which has 21, where one number on all of them "
      "changes no prediction."), (0.8, 21, None)],
)  # fmt: skip
def test_a_run_reports_how_much_of_its_noise_lies_in_the_final_layer(ratio, within, sentence):
    reported = train_all(tiny_setup(CoFedMID(ratio=ratio, **ONLY_NOISE)))[0].facts()
    assert reported["perturbed parameters in the final linear layer"] == within
    assert reported["perturbed parameters"] == int(ratio * 51)
    assert reported.get("remarks", [None]) == [sentence]


def test_noise_on_no_parameter_is_named():
    before, after = said(CoFedMID(ratio=0.01, **ONLY_NOISE))
    assert before == ["ratio 0.01 of 51 parameters is not one of them: nothing is perturbed."]
    assert after == ["ratio 0.01 of 51 parameters is not one of them: nothing was perturbed."]


# -- classes and members ---------------------------------------------------------------------------------------------


def test_a_coalition_too_small_for_all_classes_names_its_rounds():
    lone = {"m_max": 1.0, "m_min": 1 / 3, **ONLY_PARTITION}  # of three classes three, two, one in three rounds
    (coverage,) = (s for s in said(CoFedMID(min_assigned=1, **lone), members=(0, 1))[1] if "classes" in s and "were" in s)
    assert coverage == (
        "In 1 of 3 rounds, the first of them round 3, the 2 members were assigned fewer than all 3 classes, 2 at the least: the "
        "coalition left the others out."
    )
    (coverage,) = (s for s in said(CoFedMID(min_assigned=1, **lone), members=(2,))[1] if "was" in s)
    assert coverage.startswith("In 2 of 3 rounds, the first of them round 2, the one member was assigned fewer than all")
    assert said(CoFedMID(min_assigned=1, **lone), members=(0, 1, 2)) == ([], [])


def test_a_federation_in_which_no_coalition_could_cover_all_classes_is_told_beforehand():
    few = CoFedMID(m_max=0.5, m_min=0.01, **ONLY_PARTITION)
    (text,) = few.remarks(facts(n_classes=100, clients=10))
    assert text == (
        "All 10 clients together are too few to cover all 100 classes in 4 of 20 rounds, the first of them round 17: in the last "
        "one that takes 100 members with 1 class each."
    )
    assert few.remarks(facts(n_classes=100, clients=200)) == []
    assert CoFedMID(m_max=0.5, m_min=0.01, mode="independent", **ONLY_PARTITION).remarks(facts(n_classes=100, clients=10)) == []


def test_recycling_in_the_last_round_alone_is_named():
    module_two = CoFedMID(perturbation=False, m_min=0.5)
    assert module_two.remarks(facts(rounds=8)) == ["Of 8 rounds the last one alone recycles samples: set recycle_from."]
    assert module_two.remarks(facts(rounds=11)) == []


def one_class_each() -> list[MemberData]:
    """Client k owns samples of class k mod 3 alone."""
    return [MemberData(d.x, torch.full_like(d.y, k % 3)) for k, d in enumerate(tiny_clients(samples=20))]


def test_members_without_their_assigned_classes_are_counted_with_what_became_of_them():
    params = {"m_max": 1 / 3, "m_min": 1 / 3, "min_assigned": 5}
    setup = tiny_setup(CoFedMID(**params, **ONLY_PARTITION), (0, 1), clients=one_class_each(), rounds=12)
    training, results = train_all(setup)
    still = sum(int((r.uploads.updates[k] == 0).all()) for r in results for k in (0, 1))
    reported = training.facts()
    assert 0 < still < 24
    assert reported["assignments missed"] == reported["rounds that a member trained on nothing"] == still
    (sentence,) = (s for s in reported["remarks"] if "fewer than 5 samples" in s)
    assert sentence.startswith(f"{still} of 24 times (members x rounds)")
    assert f"; {still} times it had nothing to train on" in sentence


def test_bandits_without_anything_to_validate_on_are_counted():
    clients = [*tiny_clients(samples=4)[:1], *tiny_clients(samples=40)[1:]]  # a fifth of four samples is none
    _, after = said(CoFedMID(perturbation=False, **ALL), clients=clients, members=(0, 1))
    assert "1 of 2 bandits had no samples to validate on and learnt nothing." in after


def test_members_with_nothing_left_to_train_on_are_refused():
    clients = [MemberData(d.x, d.y, held_out=torch.ones(12, dtype=torch.bool) if k == 1 else None)
               for k, d in enumerate(tiny_clients())]  # fmt: skip
    with pytest.raises(UserError, match="all 12 samples of client 1 are held out to validate on and none is left to train on"):
        train_all(tiny_setup(CoFedMID(), (0, 1), clients=clients))


# -- other facts -----------------------------------------------------------------------------------------------------


def test_early_and_late_are_the_first_and_last_third_of_the_rounds_that_recycle():
    params = {"recycle_from": 3, "val_min": 4, "n_intervals": 3, "exp3_step": 1.0, "min_assigned": 1}
    setup = tiny_setup(CoFedMID(**params), (0, 1), clients=tiny_clients(samples=40), rounds=13)
    training, _ = train_all(setup)
    rounds = [training.parties.memory(k)["recycler"].rounds for k in (0, 1)]
    assert [[r.round for r in of_one] for of_one in rounds] == [list(range(3, 14))] * 2
    reported = training.facts()
    for when, third in (("early", slice(0, 3)), ("late", slice(8, 11))):
        some = [r for of_one in rounds for r in of_one[third]]
        draws = np.bincount([r.arm for r in some], minlength=3).tolist()
        assert reported[f"{when} draws of each loss interval"] == draws and sum(draws) == 6
        for name in ("probabilities", "proportions"):
            mean = reported[f"{when} {name} of the loss intervals"]
            assert mean == pytest.approx(np.mean([getattr(r, name) for r in some], axis=0)) and sum(mean) == pytest.approx(1)
        own = [np.mean([r.probabilities for r in of_one[third]], axis=0).max() for of_one in rounds]
        assert reported[f"{when} probability of a member's likeliest interval"] == pytest.approx(np.mean(own))
        assert reported[f"recycled share {when}"] == pytest.approx(np.mean([r.share for r in some]))
    assert sum(reported["draws of each loss interval"]) == 22
    first = np.mean([of_one[0].probabilities for of_one in rounds], axis=0)
    assert first == pytest.approx([1 / 3] * 3) and reported["late probabilities of the loss intervals"] != pytest.approx(first)


@pytest.mark.parametrize(
    ("params", "sent"),
    [(dict(), 2 + 2 + 1 + 3 * 2), (dict(perturbation=False), 5), (ONLY_NOISE, 6), (dict(noise_resample=False), 5 + 2),
     (dict(noise="vector", ratio=0.5), 5 + 3 * 26), (dict(mode="independent"), 0)],
)  # fmt: skip
def test_what_the_coordinator_sends_is_counted_item_by_item(params, sent):
    """Three rounds of three classes, of which a member has two, two (1.5 rounded up) and one."""
    reported = train_all(tiny_setup(CoFedMID(val_min=2, **params)))[0].facts()
    bounds = [value for name, value in reported.items() if re.search(r"\(N \+ 2\) T of section 5\.5", name)]
    assert reported["bytes from the coordinator a member"] == sent
    assert bounds == ([] if params.get("mode") else [(3 + 2) * 3])


def test_the_sizes_of_the_plan_are_reported():
    assert train_all(tiny_setup(CoFedMID(val_min=2)))[0].facts()["classes of a member, first and last round"] == [2, 1]
