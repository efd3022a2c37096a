"""The poisoning attacks: what each sends, against slow references on the vectors themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU, facts_of, generator
from worlds import attack

from fedbench.core import ActiveAttack, Knowledge, SkipCell, UserError
from fedbench.plugins.attacks.poisoning.base import permuted, uniform, wrong_labels

ACTIVE = ["passive-trained", "gradient-ascent", "agrevader", "fedpoisonmia", "adaptive-atm"]
CLASSES = 4


# --- what an adversary knows ----------------------------------------------------------------------


def knowing(
    updates, poison, benign, malicious: int = 2, cover=None, participation: float = 1.0, **fields
) -> Knowledge:
    """Knowledge of an adversary of ``malicious`` clients: a step gives ``poison``, steps on single
    mask samples ``updates`` [N, P], and training on all of them ``cover``; the other clients sent
    ``benign`` [n, P].
    """
    federation = facts_of(
        len(poison), clients=10, rounds=3, participation=participation, n_classes=CLASSES
    )
    made = {
        "key": 3,
        "device": CPU,
        "federation": federation,
        "round": 1,
        "memory": {},
        "clients": tuple(range(10 - malicious, 10)),
        "start": torch.zeros_like(poison),
        "model": torch.nn.Identity(),
        "x": torch.zeros(20, 3),
        "y": torch.arange(20) % CLASSES,
        "mask_x": torch.zeros(len(updates), 3),
        "mask_y": torch.zeros(len(updates)),
        "step": lambda x, y: poison,
        "train": lambda x, y: cover,
        "sample_steps": lambda x, y: updates,
        "logits": lambda x: x,
        "own": updates[:malicious],
        "honest": benign,
    }
    return Knowledge(**made | fields)


def scattered(
    seed: int, n_mask: int = 6, n: int = 4, width: int = 5, noise: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """(mask updates, poison, benign rows): updates and rows about a common direction."""
    g = generator(seed)
    common, poison = torch.randn(2, width, generator=g, dtype=torch.float64)
    rows = common + noise * torch.randn(n_mask + n, width, generator=g, dtype=torch.float64)
    return rows[:n_mask], poison, rows[n_mask:]


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    """In radians, one pair at a time."""
    c = float(a.double() @ b.double()) / math.sqrt(
        float(a.double() @ a.double()) * float(b.double() @ b.double())
    )
    return math.acos(max(-1.0, min(1.0, c)))


def widest(rows: torch.Tensor) -> float:
    return max(angle(a, b) for a, b in combinations(rows, 2))


def deviation(row: torch.Tensor, rows: torch.Tensor) -> float:
    return max(angle(row, h) for h in rows)


# --- every attack ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVE)
def test_every_present_client_sends_the_same_row_unless_jitter_tells_them_apart(name):
    updates, poison, benign = scattered(0, width=400)
    k = knowing(updates, poison, benign, 3, cover=updates[0])
    assert isinstance(attack(name), ActiveAttack) and attack(name).threshold == 0
    rows = attack(name).craft(1, k)
    assert rows.shape == (3, 400) and torch.isfinite(rows).all() and rows.any()
    assert (rows == rows[0]).all() and torch.equal(rows, attack(name).craft(1, k))
    noisy = attack(name, jitter=0.1).craft(1, k)
    off = (noisy - rows).norm(dim=1) / rows.norm(dim=1)
    assert ((off > 0.08) & (off < 0.12)).all() and not torch.equal(noisy[0], noisy[1])
    # minus a step on the attack set, and the step
    if name in ("gradient-ascent", "passive-trained"):
        torch.testing.assert_close(rows[0], poison if name == "passive-trained" else -poison)


# --- wrong labels ---------------------------------------------------------------------------------


def test_wrong_labels_are_never_the_true_one_and_equally_often_any_other():
    true = np.repeat(np.arange(CLASSES), 3000)
    counts = np.zeros((CLASSES, CLASSES))
    np.add.at(counts, (true, uniform(true, CLASSES, np.random.default_rng(0))), 1)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(CLASSES, dtype=bool)]
    # chi-square of 8 degrees of freedom: 99.3rd percentile
    assert ((off - 1000) ** 2 / 1000).sum() < 21.0


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30).filter(any), st.integers(0, 10**6))
def test_permuted_labels_are_wrong_too_and_collisions_miss_the_highest_class(true, seed):
    true = np.array(true)
    wrong = permuted(true, np.random.default_rng(seed))
    assert (wrong != true).all() and wrong.min() >= 0 and wrong.max() <= true.max()
    kept = np.random.default_rng(seed).permutation(true)
    again = kept == true
    if true.max() > 1:
        assert (wrong[again] < true.max()).all()
    np.testing.assert_array_equal(wrong[~again], kept[~again])


def test_labels_are_drawn_once_and_kept():
    memory: dict = {}
    first = wrong_labels(knowing(*scattered(0), key=1, memory=memory)).clone()
    assert torch.equal(first, wrong_labels(knowing(*scattered(0), key=2, memory=memory)))
    assert not torch.equal(first, wrong_labels(knowing(*scattered(0), key=2)))
    with pytest.raises(UserError, match="at least two classes"):
        wrong_labels(
            SimpleNamespace(
                memory={}, y=torch.zeros(3).long(), federation=SimpleNamespace(n_classes=1)
            )
        )


# --- AGREvader ------------------------------------------------------------------------------------


def test_agrevader_sends_the_sum_only_while_it_is_no_further_than_benign_rows_are_apart():
    outcomes = set()
    for seed in range(40):
        cover, poison, benign = scattered(seed, 1, noise=(0.3, 1.0, 3.0)[seed % 3])
        mixed, apart = (
            0.5 * cover[0] + poison,
            max(math.dist(a, b) for a, b in combinations(benign.tolist(), 2)),
        )
        hides = all(math.dist(mixed.tolist(), h) <= apart for h in benign.tolist())
        k = knowing(cover, poison, benign, cover=cover[0])
        torch.testing.assert_close(attack("agrevader").craft(1, k)[0], mixed if hides else cover[0])
        torch.testing.assert_close(
            attack("agrevader", always=True, cover=2).craft(1, k)[1], 2 * cover[0] + poison
        )
        outcomes.add(hides)
    assert outcomes == {False, True}
    alone = replace(k, clients=(9,), own=cover, honest=None)  # nothing to compare with
    torch.testing.assert_close(attack("agrevader").craft(1, alone), cover)
    assert (attack("agrevader").knowledge, attack("agrevader", always=True).knowledge) == (
        "own",
        "none",
    )


# --- FedPoisonMIA ---------------------------------------------------------------------------------


def slow_greedy(updates, poison, benign, count, scale, objective, search) -> list[int]:
    """Equation 5, by the vectors of every extension."""
    bound, chosen, seen = widest(benign) + 1e-9, [], [(-math.inf, [])]
    value = {"angle": lambda row: deviation(row, benign), "norm": lambda row: float(row.norm())}[
        objective
    ]
    for _ in range(count):
        rows = {
            i: scale * updates[[*chosen, i]].mean(0) + poison
            for i in range(len(updates))
            if i not in chosen
        }
        allowed = [i for i, row in rows.items() if deviation(row, benign) <= bound]
        if not allowed and search == "best":
            break
        pick = (
            max(allowed, key=lambda i: value(rows[i]))
            if allowed
            else min(rows, key=lambda i: deviation(rows[i], benign))
        )
        chosen = [*chosen, pick]
        seen.append((value(rows[pick]), chosen))
    return max(seen, key=lambda s: s[0])[1] if search == "best" else chosen


@pytest.mark.parametrize(
    ("objective", "search", "scaling"),
    [
        ("angle", "full", "optimised"),
        ("angle", "best", "optimised"),
        ("norm", "full", "optimised"),
        ("norm", "best", "fixed"),
    ],
)
def test_fedpoisonmia_sends_the_best_mask_and_scale_within_the_benign_angles(
    objective, search, scaling
):
    """Against the vectors of every greedy extension, and a dense grid of scales."""
    outcomes, grid = set(), torch.linspace(0, 1, 1001, dtype=torch.float64)
    params = {
        "objective": objective,
        "search": search,
        "scaling": scaling,
        "scale": 0.8,
        "mask_count": 3,
    }
    for seed in range(24):
        updates, poison, benign = scattered(seed, noise=(0.5, 1.0, 2.0)[seed % 3])
        (row, copy) = attack("fedpoisonmia", **params).craft(1, knowing(updates, poison, benign))
        assert torch.equal(row, copy)
        chosen = slow_greedy(updates, poison, benign, 3, 0.8, objective, search)
        mask = updates[chosen].mean(0) if chosen else torch.zeros_like(poison)
        scale = float((row - poison) @ mask / (mask @ mask)) if chosen else 0.0
        torch.testing.assert_close(row, scale * mask + poison)
        rows = grid[:, None] * mask + poison
        unit = torch.nn.functional.normalize
        wide = (unit(rows) @ unit(benign).T).clamp(-1, 1).acos().amax(1)
        hidden = wide <= widest(benign) + 1e-9
        value, mine = (
            (wide, deviation(row, benign))
            if objective == "angle"
            else (rows.norm(dim=1), float(row.norm()))
        )
        if scaling == "fixed":
            assert scale == pytest.approx(0.8 if chosen else 0)
        elif hidden.any():
            assert -1e-9 <= scale <= 1 + 1e-9 and deviation(row, benign) <= widest(benign) + 1e-6
            assert mine >= float(value[hidden].max()) - 1e-6
        else:
            assert deviation(row, benign) <= float(wide.min()) + 1e-6
        outcomes.add(bool(hidden.any()))
    assert outcomes == {False, True}


def test_of_equal_scales_it_takes_the_least_mask():
    """With all of the mask the row is as long as with none of it."""
    wide, (mask, poison) = (
        torch.tensor([[1.0, 2], [1, -2]]).double(),
        torch.tensor([[0.0, 1], [1, -0.5]]).double(),
    )
    row = attack("fedpoisonmia", objective="norm").craft(1, knowing(mask[None], poison, wide))[0]
    assert torch.equal(row, poison)


def test_where_no_scale_hides_the_poison_it_takes_the_one_of_the_least_angle():
    """The poison rises from between two benign rows: it stays out of their plane, nearest where it
    is as far from both.
    """
    benign, poison = (
        torch.tensor([[1.0, 0.2, 0], [1, -0.2, 0]]).double(),
        torch.tensor([0.2, 1, 1]).double(),
    )
    row = attack("fedpoisonmia").craft(
        1, knowing(torch.tensor([[0.0, -2, 0]]).double(), poison, benign)
    )[0]
    assert row.tolist() == pytest.approx([0.2, 0, 1])


def test_where_the_bound_cannot_be_kept_it_does_what_it_was_told():
    """Benign rows that all point one way: nothing may deviate at all."""
    updates, poison, _ = scattered(0)
    k = knowing(updates, poison, torch.ones(4, 5, dtype=torch.float64))
    sent = {
        w: attack("fedpoisonmia", infeasible=w, ratio=0.4).craft(1, k)
        for w in ("skip", "poison", "cover")
    }
    assert torch.equal(sent["skip"], k.own) and torch.equal(sent["poison"][0], poison)
    means = [updates[list(s)].mean(0) for s in combinations(range(6), 3)]  # ceil(0.4 x 6)
    assert min(float((sent["cover"][0] - m).norm()) for m in means) < 1e-6
    random = {"selection": "random", "scaling": "fixed", "infeasible": "cover"}
    torch.testing.assert_close(
        attack("fedpoisonmia", random_count=6, **random).craft(1, k)[0], updates.mean(0)
    )
    drawn = [
        attack("fedpoisonmia", mask_count=3, **random).craft(1, replace(k, key=key))[0]
        for key in (1, 2)
    ]
    assert not torch.equal(*drawn) and min(float((drawn[0] - m).norm()) for m in means) < 1e-6


def test_it_reads_own_rows_beside_a_single_other_and_says_when_there_is_nothing_to_compare():
    one, (updates, poison, benign) = attack("fedpoisonmia"), scattered(0)
    with_one = one.craft(1, knowing(updates, poison, benign[:1]))
    joined = one.craft(1, knowing(updates, poison, torch.cat([benign[:1], updates[:2]])))
    torch.testing.assert_close(with_one, joined)
    with pytest.raises(SkipCell, match="two benign rows"):
        one.craft(1, knowing(updates, poison, None, 1))
    thin = knowing(updates, poison, None, 1, participation=0.5)  # a later round may bring more
    assert torch.equal(one.craft(1, thin), thin.own)
    with pytest.raises(SkipCell, match="two benign rows"):
        one.craft(3, replace(thin, round=3))
    one.craft(1, knowing(updates, poison, None, 2, participation=0.5, memory=thin.memory))
    assert torch.equal(one.craft(3, replace(thin, round=3)), thin.own)


# --- the adaptive attack --------------------------------------------------------------------------


def slow_adaptive(
    poison: torch.Tensor, benign: torch.Tensor, m: int, trim: int, most: int
) -> tuple[torch.Tensor, bool]:
    """(what is sent, whether trimming would spare it), on the vectors themselves."""
    a = poison
    for taken in range(most + 1):
        rows = [*benign, *[a] * m]
        means = [sum(angle(r, s) if r is not s else 0.0 for s in rows) / len(rows) for r in rows]
        spared = means[-1] < sorted(means)[max(len(rows) - trim, 0)]
        if spared or taken == most:
            return a, spared
        a = (a + max(benign, key=lambda h: angle(a, h))) / 2
    raise AssertionError


@pytest.mark.parametrize(("m", "trim"), [(1, None), (2, 4), (2, 8)])
def test_the_adaptive_attack_blends_poison_with_benign_rows_until_trimming_would_spare_it(m, trim):
    ends = set()
    for seed in range(15):
        _, poison, benign = scattered(seed, 0, n=6, width=8, noise=(0.3, 1.0, 2.0)[seed % 3])
        sent = attack("adaptive-atm", trim=trim, most=12).craft(
            1, knowing(poison[None], poison, benign, m)
        )
        wanted, spared = slow_adaptive(poison, benign, m, trim or 2 * m, 12)
        torch.testing.assert_close(sent, wanted.repeat(m, 1), rtol=1e-6, atol=1e-8)
        ends.add(spared)
    assert (ends == {False}) == (trim == 8)
    alone = replace(knowing(poison[None], poison, benign[:0], m), own=None, honest=None)
    assert torch.equal(attack("adaptive-atm").craft(1, alone)[0], poison)
