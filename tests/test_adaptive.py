"""Attacks that know the defense: where a suite runs them, what they are given, how they count, and
that each beats the general attack it is made of in a world made for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from contests import Contest, judged
from layered import one_backward_a_sample
from running import changed, invoke
from torch.testing import assert_close
from worlds import attack, auc

from fedbench.core import Audit, Observations, Probe, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.grouping import build_sections
from fedbench.leaderboard.statistics.scores import SectionScores
from fedbench.leaderboard.tables.provenance import unscored_blocks
from fedbench.leaderboard.tables.ranking import ranking_table
from fedbench.plugins.attacks.adaptive import UnshiftedCosine, soft_label, without_suffix_shift

R, M, N, C = 8, 6, 600, 6
RNG = np.random.default_rng(44)
MEMBER = np.arange(N) < N // 2
Y = RNG.integers(0, C, N)


def scored(name, defense, **signals):
    """The AUC of an attack on the first of M clients, over R rounds of N candidates."""
    values = {key.replace("_", "-"): a for key, a in signals.items()}
    observations = Observations(
        view="server",
        rounds=np.arange(1, R + 1),
        clients=np.arange(M),
        target=0,
        signals=values,
        defense=defense,
    )
    device = torch.device("cpu")
    audit = Audit(key=0, device=device, ids=np.arange(N), y=Y, n_classes=C, target_client=0)
    return auc(attack(name).score(observations, audit), MEMBER)


def of_gradient(cosine, length):
    """Signals of cosines [R, M, n] and gradient lengths [R, 1, n], for updates of length 1."""
    sq = length**2
    return {"grad_dot": cosine * length, "grad_sq": sq, "update_sq": np.ones((R, M, 1))}


# --- worlds made for the attacks ------------------------------------------------------------------


def test_white_noise_is_best_read_by_a_matched_filter():
    length = np.exp(1.5 * RNG.normal(size=(R, 1, N)))
    cosine = RNG.normal(size=(R, M, N))
    cosine[:, 0] += 0.3 * MEMBER * length[:, 0]
    signals = of_gradient(cosine, length)
    assert scored("matched-filter", {}, **signals) > scored("avg-cosine", {}, **signals) + 0.05


def test_members_that_end_at_the_soft_label_are_near_it_and_not_most_confident():
    theta = 0.5
    target = 1 - theta + theta / C
    confidence = target + 0.25 * RNG.choice([-1, 1], (1, 1, N)) + 0.1 * RNG.normal(size=(R, M, N))
    confidence[:, 0, MEMBER] = target + 0.1 * RNG.normal(size=(R, MEMBER.sum()))
    confidence = np.clip(confidence, 0.05, 0.95)
    loss = -np.log(confidence)
    rest = -np.log((1 - confidence) / (C - 1))
    signals = {"loss": loss, "uniform_loss": (loss + (C - 1) * rest) / C, "entropy": 0 * loss}
    known = {"label-smoothing": {"strength": theta}}
    general = scored("blackbox-loss", {}, loss=loss)
    assert scored("adaptive-targets", known, **signals) > max(general, 1 - general) + 0.05


def test_the_soft_label_is_that_of_all_components_together():
    smoothing = {"label-smoothing": {"strength": 0.5}, "membershield": {"theta": 0.5}}
    assert soft_label(smoothing, 10) == (0.75, 0.0)
    theta, reward = soft_label({"hamp": {"gamma": 1.0, "alpha": 0.01}}, 10)
    assert theta == pytest.approx(1.0, abs=0.02)
    assert reward == pytest.approx(0.1)


def test_a_sample_that_is_trained_on_in_some_rounds_shows_in_those():
    trained = RNG.random((R, N)) < 0.25
    cosine = 0.1 * RNG.normal(size=(R, M, N))
    cosine[:, 0] += 0.25 * (MEMBER & trained)
    signals = of_gradient(cosine, np.ones((R, 1, N)))
    known = {"data-sampling": {"fraction": 0.25}}
    assert scored("adaptive-sampling", known, **signals) > scored("fedmia-ii", {}, **signals) + 0.05


COFEDMID = {"cofedmid": {"perturbation": True, "partition": True}}


def partitioned():
    """Cosines of a client that trains on a third of the classes in a round: all of a class rise,
    its members above the others.
    """
    trains = RNG.random((R, M, C)) < 1 / 3
    cosine = RNG.normal(size=(R, M, N)) + 3 * trains[..., Y]
    cosine[:, 0] += trains[:, 0][:, Y] * MEMBER
    return 0.1 * cosine


def test_rounds_that_train_a_class_tell_its_members_and_noise_does_not_hide_them():
    cosine = partitioned()
    scalar = RNG.normal(size=(R, M, 1)) * RNG.normal(size=(R, 1, N))
    noisy = of_gradient(cosine + scalar, np.ones((R, 1, N)))
    known = scored("adaptive-cofedmid", COFEDMID, unshifted_cosine=cosine, **noisy)
    noise_stays = scored("adaptive-cofedmid", COFEDMID, unshifted_cosine=cosine + scalar, **noisy)
    every_round = {"cofedmid": {"perturbation": True, "partition": False}}
    unweighted = scored("adaptive-cofedmid", every_round, unshifted_cosine=cosine, **noisy)
    general = scored("avg-cosine", {}, **noisy)
    assert known > max(noise_stays, unweighted, general) + 0.05


@pytest.mark.parametrize("size", [1, 40, 400])
def test_a_constant_on_the_last_parameters_is_found_and_taken_out(size):
    update = torch.from_numpy(0.01 * np.random.default_rng(size).normal(size=400)).float()
    shifted = update.clone()
    shifted[-size:] += 0.3
    clean = update.clone()
    clean[-size:] -= update[-size:].mean()
    assert_close(without_suffix_shift(shifted), clean, atol=1e-6, rtol=0)


def test_the_cosine_is_that_of_a_gradient_and_the_update_without_the_constant():
    torch.manual_seed(0)
    start, model = (torch.nn.Linear(5, 3) for _ in range(2))
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    flat = [torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in (start, model)]
    update = flat[1] - flat[0]
    update[-7:] += 2.0
    torch.nn.utils.vector_to_parameters(flat[0] + update, model.parameters())
    gradients = one_backward_a_sample(start, x, y)
    cosines = -torch.cosine_similarity(gradients, without_suffix_shift(update)[None])
    measured = UnshiftedCosine().measure(Probe(model, update, x, y, model(x)))
    assert_close(measured, cosines, atol=1e-5, rtol=1e-4)


# --- rows of a suite ------------------------------------------------------------------------------

DEFENSES = [
    "none",
    "label-smoothing",
    {"name": "grad-noise", "label": "both", "then": [{"name": "label-smoothing"}]},
    "grad-noise",
]


def plan_of(path):
    return build_plan(str(path), (), path.parent, "cpu")


def planned(folder, **changes):
    """Row -> labels of its attacks and the keys of its cells."""
    cells = {}
    for job in plan_of(changed(folder, {}, defenses=DEFENSES, **changes)).jobs:
        cells[job.defense.label] = {cell.attack.label: cell.key for cell in job.cells}
    return cells


def test_a_suite_that_asks_for_them_has_them_on_rows_with_the_defense_alone(tmp_path):
    plain, more = planned(tmp_path), planned(tmp_path, adaptive=True)
    added = {label: {*cells} - {*plain[label]} for label, cells in more.items()}
    assert added == {
        "none": set(),
        "label-smoothing": {"adaptive-targets"},
        "both": {"adaptive-targets"},
        "grad-noise": set(),
    }
    assert all(plain[label].items() <= more[label].items() for label in plain)


def test_one_that_no_row_can_be_judged_by_is_refused_with_its_line(tmp_path):
    path = changed(tmp_path, {}, attacks=["loss-series", "adaptive-cofedmid"])
    with pytest.raises(
        UserError, match=r"yaml:\d+:\d+: attack 'adaptive-cofedmid' is against cofe"
    ):
        plan_of(path)


# --- boards ---------------------------------------------------------------------------------------


def test_a_board_counts_them_and_names_rows_without_one(tmp_path):
    path = changed(tmp_path, {}, defenses=DEFENSES, adaptive=True, seeds=[0, 1])
    invoke(path, "--results", tmp_path / "results")
    records = load_records(tmp_path / "results")
    (section,) = build_sections(records)
    assert section.left_out == []
    assert all(row.complete for row in section.rows)
    assert section.row("both").adaptive == ("adaptive-targets",)
    assert section.row("grad-noise").adaptive == ()
    assert unscored_blocks([section]) == []
    notes = [str(note) for note in ranking_table(section).footnotes]
    assert [note for note in notes if "No attack that knows" in note and "grad-noise" in note]
    against = {tuple(r.record.against) for r in records if r.record.attack.name == "loss-series"}
    assert against == {()}


def test_the_worst_case_has_them_and_the_mean_over_attacks_has_not():
    rng = np.random.default_rng(1)
    kind = (np.arange(400) >= 200).astype(int)
    leaks = {("none", "general"): 1.0, ("defended", "general"): 0.3, ("defended", "knows"): 2.0}
    scores = {"none": {"knows": {}}, "defended": {}}
    for (label, name), leak in leaks.items():
        seeds = {seed: {0: rng.normal(size=400) + leak * (kind == 0)} for seed in range(3)}
        scores[label][name] = seeds
    contest = judged(scores, kind)
    general = replaced(contest, adaptive=False)
    known = replaced(contest, adaptive=True)
    assert known.worst("defended").attack == "knows"
    assert known.worst("defended").interval.mean > 0.85 > general.worst("defended").interval.mean
    assert known.mean("defended") == general.mean("defended")
    assert known.worst("none") == general.worst("none")
    assert known.against("none")["defended"].interval.mean > 0.1
    assert general.against("none")["defended"].interval.mean < -0.1


def replaced(contest, adaptive):
    """The contest with ``knows`` as an attack that knows the second row, or without that attack."""
    rows = []
    for row in contest.rows:
        entries = {"general": row.entries["general"]}
        if adaptive:
            knows = replace(row.entries["knows"], adaptive=True)
            entries["knows"] = knows if knows.records else replace(knows, targets={})
        rows.append(replace(row, entries=entries))
    return Contest(SectionScores(rows, contest.scores.units), ["general"])
