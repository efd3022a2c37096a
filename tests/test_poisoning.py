"""The poisoning attacks: what each sends, against slow obvious references; and that poisoning pays in a federation."""

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
from tiny import tiny_federation
from torch.nn.functional import cross_entropy

from fedbench.core import (
    ActiveAttack,
    Attack,
    Audit,
    Defense,
    Federation,
    Knowledge,
    MemberData,
    Observations,
    Probe,
    SkipCell,
    UserError,
)
from fedbench.core.federation import loop
from fedbench.core.federation.setup import Insider, Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.signals.logits import Margin
from fedbench.plugins.attacks.poisoning.adaptive_atm import AdaptiveATM, blend
from fedbench.plugins.attacks.poisoning.agrevader import AGREvader, is_close
from fedbench.plugins.attacks.poisoning.angles import angles, cosines, least_cosine, products, unit_rows
from fedbench.plugins.attacks.poisoning.fedpoisonmia import FedPoisonMIA
from fedbench.plugins.attacks.poisoning.gradient_ascent import GradientAscent
from fedbench.plugins.attacks.poisoning.labels import permuted, uniform, wrong_labels
from fedbench.plugins.attacks.poisoning.passive import Passive, PassiveTrained
from fedbench.plugins.attacks.poisoning.scaling import Segment, closest_scale, optimal_scale
from fedbench.plugins.attacks.poisoning.selection import Masks, greedy

ACTIVE = [PassiveTrained, GradientAscent, AGREvader, FedPoisonMIA, AdaptiveATM]
FEATURES, CLASSES, RATE = 6, 4, 0.5
few = settings(max_examples=60, deadline=None)


# --- a linear model's federation, by hand ---------------------------------------------------------------------------


def logits_of(params: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ params.view(FEATURES, CLASSES)


def step_from(start: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step of gradient descent on the mean cross-entropy: the update."""
    params = start.clone().requires_grad_()
    (g,) = torch.autograd.grad(cross_entropy(logits_of(params, x), y), params)
    return -RATE * g


def train_from(start: torch.Tensor, x: torch.Tensor, y: torch.Tensor, batch: int = 8) -> torch.Tensor:
    params = start.clone()
    for a, b in zip(x.split(batch), y.split(batch), strict=True):
        params = params + step_from(params, a, b)
    return params - start


def loss_at(params: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    return float(cross_entropy(logits_of(params, x), y))


def samples(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of a noisy linear rule, the same for every seed."""
    g, rule = torch.Generator().manual_seed(seed), torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(99))
    x = torch.randn(n, FEATURES, generator=g)
    return x, (x @ rule + torch.randn(n, CLASSES, generator=g)).argmax(1)


def knowing(
    malicious: int = 2, others: int = 5, level: str = "honest", round: int = 1, key: int = 3, memory: dict | None = None,
    participation: float = 1.0, n_mask: int = 12,
) -> Knowledge:  # fmt: skip
    """What an adversary of ``malicious`` present clients knows at a slightly trained linear model."""
    start = train_from(torch.zeros(FEATURES * CLASSES), *samples(40, 50))
    (x, y), (mask_x, mask_y) = samples(20, 60), samples(n_mask, 70)
    rows = torch.stack([train_from(start, *samples(24, 80 + k)) for k in range(malicious + others)])
    return Knowledge(
        key=key,
        device=torch.device("cpu"),
        federation=Federation(
            clients=10,
            rounds=3,
            local_epochs=1,
            batch_size=8,
            participation=participation,
            n_classes=CLASSES,
            n_params=len(start),
        ),
        round=round,
        clients=tuple(range(10 - malicious, 10)),
        start=start,
        model=torch.nn.Identity(),
        x=x,
        y=y,
        mask_x=mask_x,
        mask_y=mask_y,
        memory={} if memory is None else memory,
        step=lambda a, b: step_from(start, a, b),
        train=lambda a, b: train_from(start, a, b),
        sample_steps=lambda a, b: torch.stack([step_from(start, a[i : i + 1], b[i : i + 1]) for i in range(len(b))]),
        logits=lambda a: logits_of(start, a),
        own=rows[others:] if level != "none" else None,
        honest=rows[:others] if level == "honest" else None,
    )


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    """In radians, one pair at a time."""
    c = float(a.double() @ b.double()) / math.sqrt(float(a.double() @ a.double()) * float(b.double() @ b.double()))
    return math.acos(max(-1.0, min(1.0, c)))


def widest(rows: torch.Tensor) -> float:
    return max(angle(a, b) for a, b in combinations(rows, 2))


def deviation(row: torch.Tensor, rows: torch.Tensor) -> float:
    return max(angle(row, h) for h in rows)


# --- inference --------------------------------------------------------------------------------------------------------


def margin(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Margin().measure(Probe(torch.nn.Identity(), torch.zeros(1), logits, y, logits))


@few
@given(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=6), st.data())
def test_the_margin_is_positive_exactly_where_the_label_alone_wins(values, data):
    logits = torch.tensor(values, dtype=torch.float32) * 1e-30  # ties are frequent, differences tiny
    y = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values))))
    found = margin(logits, y)
    for z, label, m in zip(logits.tolist(), y.tolist(), found.tolist(), strict=True):
        others = [v for j, v in enumerate(z) if j != label]
        assert m == pytest.approx(z[label] - max(others), rel=1e-6, abs=1e-45)
        assert (m > 0) == (all(z[label] > v for v in others))
        assert (m >= 0) == (z[label] == max(z))


def test_the_score_is_the_last_rounds_margin_on_the_global_model():
    margins = np.array([[1.0, -2, 3], [0.5, 0.25, -1]], np.float32)
    seen = Observations(
        view="client", rounds=np.array([5, 10]), clients=np.array([-1]), target=0, signals={"margin": margins[:, None]}
    )
    audit = Audit(key=0, device=torch.device("cpu"), ids=np.arange(3), y=np.zeros(3, int), n_classes=CLASSES, target_client=0)
    for cls in (Passive, *ACTIVE):
        attack = cls()
        assert (attack.view, attack.threshold, attack.needs) == ("client", 0.0, {"margin"})
        np.testing.assert_array_equal(attack.score_rounds(seen, audit), margins)
        np.testing.assert_array_equal(attack.score(seen, audit), margins[-1])
    assert not issubclass(Passive, ActiveAttack) and all(issubclass(cls, ActiveAttack) for cls in ACTIVE)


# --- what every active attack sends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ACTIVE)
@pytest.mark.parametrize("malicious", [1, 3])
def test_one_identical_row_for_every_present_client_and_the_same_key_gives_the_same_rows(cls, malicious):
    rows = cls().craft(1, knowing(malicious))
    assert rows.shape == (malicious, FEATURES * CLASSES) and torch.isfinite(rows).all() and rows.any()
    assert (rows == rows[0]).all()
    assert torch.equal(rows, cls().craft(1, knowing(malicious)))


@pytest.mark.parametrize("cls", ACTIVE)
def test_jitter_tells_the_rows_apart_by_a_share_of_their_norm(cls):
    plain, noisy = cls().craft(1, knowing(3)), cls(jitter=0.1).craft(1, knowing(3))
    off = (noisy - plain).norm(dim=1) / plain.norm(dim=1)
    assert ((off > 0.03) & (off < 0.3)).all() and not torch.equal(noisy[0], noisy[1])


@pytest.mark.parametrize("cls", [AGREvader, FedPoisonMIA, AdaptiveATM])
def test_another_key_mislabels_otherwise(cls):
    changes = {"always": True} if cls is AGREvader else {}
    assert not torch.equal(cls(**changes).craft(1, knowing(key=1)), cls(**changes).craft(1, knowing(key=2)))


def test_gradient_ascent_raises_the_attack_sets_loss_by_minus_a_step():
    k = knowing(1)
    (row,) = GradientAscent().craft(1, k)
    (trained,) = PassiveTrained().craft(1, k)
    torch.testing.assert_close(row, -step_from(k.start, k.x, k.y))
    torch.testing.assert_close(trained, -row)
    before = loss_at(k.start, k.x, k.y)
    assert loss_at(k.start + row, k.x, k.y) > before > loss_at(k.start + trained, k.x, k.y)


def test_poison_raises_the_loss_and_a_member_pulls_its_own_samples_back():
    k = knowing()
    poisoned = k.start + 3 * k.step(k.x, wrong_labels(k))
    x, y = k.x[:10], k.y[:10]  # half of the attack set: some client trains on it
    assert loss_at(poisoned, x, y) > loss_at(k.start, x, y)
    healed = poisoned + train_from(poisoned, x, y)
    assert loss_at(healed, x, y) < loss_at(poisoned, x, y)


# --- wrong labels -----------------------------------------------------------------------------------------------------


def test_wrong_labels_are_never_the_true_one_and_equally_often_any_other():
    true = np.repeat(np.arange(CLASSES), 3000)
    counts = np.zeros((CLASSES, CLASSES))
    np.add.at(counts, (true, uniform(true, CLASSES, np.random.default_rng(0))), 1)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(CLASSES, dtype=bool)]
    assert ((off - 1000) ** 2 / 1000).sum() < 21.0  # chi-square of 8 degrees of freedom: 99.3rd percentile


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 10**6))
def test_permuted_labels_are_wrong_too_and_collisions_miss_the_highest_class(true, seed):
    true = np.array(true)
    if true.max() == 0:
        return
    wrong = permuted(true, np.random.default_rng(seed))
    assert (wrong != true).all() and wrong.min() >= 0 and wrong.max() <= true.max()
    kept = np.random.default_rng(seed).permutation(true)
    again = kept == true
    if true.max() > 1:
        assert (wrong[again] < true.max()).all()
    np.testing.assert_array_equal(wrong[~again], kept[~again])


def test_a_collision_is_drawn_again_evenly_among_the_lower_classes():
    true = np.full(9000, 2)
    true[0] = 4  # the highest class, so that 0, 1 and 3 are open
    counts = np.bincount(permuted(true, np.random.default_rng(1))[1:], minlength=5)
    assert counts[2] == 0 and counts[4] <= 1
    assert ((counts[[0, 1, 3]] - 3000) ** 2 / 3000).sum() < 13.8  # 99.9th percentile at 2 degrees of freedom


def test_labels_are_drawn_once_and_kept():
    memory: dict = {}
    first = wrong_labels(knowing(round=1, key=1, memory=memory)).clone()
    assert torch.equal(first, wrong_labels(knowing(round=2, key=2, memory=memory)))
    assert not torch.equal(first, wrong_labels(knowing(round=2, key=2)))
    with pytest.raises(UserError, match="at least two classes"):
        wrong_labels(SimpleNamespace(memory={}, y=torch.zeros(3).long(), federation=SimpleNamespace(n_classes=1)))


# --- AGREvader ----------------------------------------------------------------------------------------------------------


def naive_is_close(row: torch.Tensor, rows: torch.Tensor) -> bool:
    apart = max(math.dist(a.tolist(), b.tolist()) for a, b in combinations(rows, 2))
    return all(math.dist(row.tolist(), h.tolist()) <= apart for h in rows)


@few
@given(st.integers(2, 6), st.floats(0.1, 3), st.integers(0, 10**6))
def test_agrevaders_condition_equals_the_naive_loop(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    rows, row = torch.randn(n, 5, generator=g), length * torch.randn(5, generator=g)
    assert is_close(row, rows) == naive_is_close(row, rows)


def test_agrevader_sends_the_sum_only_while_it_hides():
    k = knowing(1)
    cover, poison = train_from(k.start, k.mask_x, k.mask_y), k.step(k.x, wrong_labels(k))
    mixed = 0.5 * cover + poison
    for spread in (1e-3, 1e3):  # benign rows close together, then far apart
        honest = cover + spread * torch.randn(4, len(k.start), generator=torch.Generator().manual_seed(0))
        seen = replace(k, honest=honest)
        (row,) = AGREvader().craft(1, seen)
        torch.testing.assert_close(row, mixed if spread > 1 else cover)
        (row,) = AGREvader(always=True).craft(1, seen)
        torch.testing.assert_close(row, mixed)
    torch.testing.assert_close(AGREvader().craft(1, knowing(1, level="own"))[0], cover)  # nothing to compare with
    assert (AGREvader().knowledge, AGREvader(always=True).knowledge) == ("own", "none")
    torch.testing.assert_close(AGREvader(always=True, cover=2).craft(1, knowing(1, level="none"))[0], 2 * cover + poison)


# --- FedPoisonMIA: angles -------------------------------------------------------------------------------------------------


@few
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_angles_from_inner_products_equal_angles_of_vectors(n, seed):
    rows = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    between = angles(products(rows, rows))
    for i, j in combinations(range(n), 2):
        assert between[i, j] == pytest.approx(angle(rows[i], rows[j]), abs=1e-3)
    unit = unit_rows(rows)
    assert math.acos(least_cosine(products(unit, unit))) == pytest.approx(widest(rows), abs=1e-3)
    dots, squared = products(rows, unit), np.diag(products(rows, rows))
    np.testing.assert_allclose(cosines(dots, squared), np.cos(between), atol=1e-5)


def test_a_zero_vector_is_at_right_angles_to_everything():
    rows = torch.tensor([[0.0, 0], [1, 0]])
    assert unit_rows(rows)[0].tolist() == [0, 0]
    assert angles(products(rows, rows)).tolist() == [[0, math.pi / 2], [math.pi / 2, 0]]
    assert cosines(np.zeros((1, 2)), np.zeros(1)).tolist() == [[0, 0]]


# --- FedPoisonMIA: greedy selection -----------------------------------------------------------------------------------------


class Scene:
    """Mask updates, poison and benign rows scattered about a common direction; the attack's view of them in products."""

    def __init__(self, seed: int, n_mask: int = 6, n: int = 4, width: int = 5, noise: float = 1.0) -> None:
        g = torch.Generator().manual_seed(seed)
        common = torch.randn(width, generator=g, dtype=torch.float64)
        self.updates = common + noise * torch.randn(n_mask, width, generator=g, dtype=torch.float64)
        self.poison = torch.randn(width, generator=g, dtype=torch.float64)
        self.benign = common + noise * torch.randn(n, width, generator=g, dtype=torch.float64)
        unit = unit_rows(self.benign)
        self.masks, self.bound = Masks.of(self.updates, self.poison, unit), least_cosine(products(unit, unit))

    def row(self, chosen: list[int], scale: float = 1.0) -> torch.Tensor:
        return scale * self.updates[chosen].mean(0) + self.poison

    def allowed(self, row: torch.Tensor) -> bool:
        return deviation(row, self.benign) <= widest(self.benign) + 1e-6

    def value(self, row: torch.Tensor, objective: str) -> float:
        return deviation(row, self.benign) if objective == "angle" else float(row.norm())


def test_a_chosen_samples_products_are_made_once_and_the_last_ones_not_at_all():
    scene, asked = Scene(3), []
    masks = replace(scene.masks, row=lambda i: asked.append(i) or scene.masks.row(i))
    chosen = greedy(masks, scene.bound, 4, 1.0, "angle", "full")
    segment = masks.segment(chosen)
    assert len(chosen) == 4 and set(asked) == set(chosen[:3])
    mean = scene.updates[chosen].mean(0)
    np.testing.assert_allclose([segment.mask_sq, segment.cross], [float(mean @ mean), float(mean @ scene.poison)], rtol=1e-6)
    np.testing.assert_allclose(segment.mask, (unit_rows(scene.benign) @ mean).numpy(), rtol=1e-6)


@pytest.mark.parametrize("objective", ["angle", "norm"])
@pytest.mark.parametrize("search", ["full", "best"])
def test_every_greedy_step_is_the_best_of_all_extensions(objective, search):
    for seed in range(40):
        scene = Scene(seed)
        slow: list[int] = []
        seen: list[tuple[float, list[int]]] = []
        for _ in range(4):
            rest = [i for i in range(6) if i not in slow]
            rows = {i: scene.row([*slow, i], 0.8) for i in rest}
            ok = [i for i in rest if scene.allowed(rows[i])]
            if not ok and search == "best":
                break
            pick = max(ok, key=lambda i: scene.value(rows[i], objective)) if ok else \
                min(rest, key=lambda i: deviation(rows[i], scene.benign))  # fmt: skip
            slow = [*slow, pick]
            seen.append((scene.value(rows[pick], objective), slow))
        if search == "best":
            slow = max(seen, key=lambda s: s[0], default=(0, []))[1]
        assert greedy(scene.masks, scene.bound, 4, 0.8, objective, search) == slow, seed


def test_greedy_against_all_subsets():
    """One sample: the optimum. More: within the bound, seldom better than the best subset, and close to it on the average."""
    shares = []
    for seed in range(40):
        scene = Scene(seed, n_mask=7)
        for count in (1, 3):
            subsets = [list(s) for s in combinations(range(7), count) if scene.allowed(scene.row(list(s)))]
            chosen = greedy(scene.masks, scene.bound, count, 1.0, "norm", "full")
            row = scene.row(chosen)
            assert len(set(chosen)) == count
            if not subsets or not scene.allowed(row):
                continue
            best = max(float(scene.row(s).norm()) for s in subsets)
            assert float(row.norm()) <= best + 1e-9
            if count == 1:
                assert float(row.norm()) == pytest.approx(best)
            shares.append(float(row.norm()) / best)
    assert len(shares) > 20 and np.mean(shares) > 0.9


def test_greedy_stops_at_the_samples_there_are():
    scene = Scene(0)
    assert sorted(greedy(scene.masks, scene.bound, 99, 1.0, "angle", "full")) == list(range(6))
    empty = Masks.of(scene.updates[:0], scene.poison, unit_rows(scene.benign))
    assert greedy(empty, scene.bound, 3, 1.0, "angle", "full") == []
    assert empty.segment([]).mask_sq == 0


# --- FedPoisonMIA: the scale ---------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["angle", "norm"]), st.just(0.0) | st.floats(-0.9, 0.95), st.floats(0.2, 3))
def test_the_scale_is_at_least_as_good_as_a_dense_grids(seed, objective, bound, noise):
    scene = Scene(seed, noise=noise)
    segment = scene.masks.segment([0, 2])
    found, grid = optimal_scale(segment, bound, objective), np.linspace(0, 1, 4001)
    rows = [scene.row([0, 2], s) for s in grid[::1000]]  # the products tell what the vectors do
    np.testing.assert_allclose(segment.squared(grid[::1000]), [float(r @ r) for r in rows], rtol=1e-9, atol=1e-9)
    wide = [deviation(r, scene.benign) for r in rows]
    np.testing.assert_allclose(np.arccos(segment.least_cosine(grid[::1000])), wide, atol=1e-6)
    allowed = segment.least_cosine(grid) >= bound
    if found is None:
        assert not allowed.any()
        return
    at = np.array([found])
    assert 0 <= found <= 1 and segment.least_cosine(at)[0] >= bound - 1e-8
    if allowed.any():
        assert segment.value(at, objective)[0] >= segment.value(grid[allowed], objective).max() - 1e-6


def test_the_scale_takes_the_least_mask_that_hides_the_poison():
    """In the plane: benign rows at 0 and 60 degrees, poison at 120, the mask at 0. Up to 60 degrees from both is allowed."""
    b0, b1, v = (np.array([math.cos(a), math.sin(a)]) for a in np.radians([0, 60, 120]))
    m = np.array([2.0, 0])
    segment = Segment(np.array([m @ b0, m @ b1]), np.array([v @ b0, v @ b1]), float(m @ m), float(m @ v), float(v @ v))
    assert optimal_scale(segment, math.cos(math.radians(60)), "angle") == pytest.approx(0.5)  # (0.5, 0.866): 60 degrees
    assert optimal_scale(segment, math.cos(math.radians(60)), "norm") == pytest.approx(1)
    assert optimal_scale(segment, math.cos(math.radians(20)), "angle") is None
    assert closest_scale(segment) == pytest.approx(1)  # (1.5, 0.866): 30 degrees from both


@few
@given(st.integers(0, 10**6), st.floats(0.2, 3))
def test_the_closest_scale_deviates_no_more_than_a_dense_grids(seed, noise):
    segment, grid = Scene(seed, noise=noise).masks.segment([1, 3, 4]), np.linspace(0, 1, 4001)
    assert segment.least_cosine(np.array([closest_scale(segment)]))[0] >= segment.least_cosine(grid).max() - 1e-9


# --- FedPoisonMIA: the whole of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["angle", "norm"])
@pytest.mark.parametrize("level", ["honest", "own"])
def test_fedpoisonmia_sends_mask_and_poison_within_the_benign_angles(objective, level):
    k = knowing(3, level=level)
    poison, updates = k.step(k.x, wrong_labels(k)), k.sample_steps(k.mask_x, k.mask_y)
    scattered = torch.randn(4, len(k.start), generator=torch.Generator().manual_seed(0))
    benign = updates.mean(0) + 0.8 * scattered * updates.mean(0).norm() / scattered.norm(dim=1, keepdim=True)
    k = replace(k, **{"honest" if level == "honest" else "own": benign[: 4 if level == "honest" else 3]})
    seen = k.honest if level == "honest" else k.own
    # a tame poison, which some masks can hide
    k = replace(k, step=lambda x, y: 0.25 * poison)
    assert deviation(poison, seen) > widest(seen)
    row = FedPoisonMIA(objective=objective, ratio=0.4, infeasible="skip").craft(1, k)[0]
    assert not torch.equal(row, k.own[0])
    assert deviation(row, seen) <= widest(seen) + 1e-4
    mask = row - 0.25 * poison  # s x the mean of ceil(0.4 x 12) = 5 mask updates
    parts = [updates[list(s)].mean(0) for s in combinations(range(12), 5)]
    cosine, nearest = max((float(torch.cosine_similarity(mask, p, dim=0)), j) for j, p in enumerate(parts))
    assert cosine > 1 - 1e-5 and float(mask.norm() / parts[nearest].norm()) <= 1 + 1e-4


def test_the_objectives_differ_as_they_should():
    angle_wins = norm_wins = 0
    for seed in range(30):
        scene = Scene(seed, n_mask=8)
        rows = {}
        for objective in ("angle", "norm"):
            chosen = greedy(scene.masks, scene.bound, 3, 1.0, objective, "full")
            scale = optimal_scale(scene.masks.segment(chosen), scene.bound, objective)
            rows[objective] = None if scale is None else scene.row(chosen, scale)
        if rows["angle"] is None or rows["norm"] is None:
            continue
        angle_wins += deviation(rows["angle"], scene.benign) > deviation(rows["norm"], scene.benign) + 1e-9
        norm_wins += float(rows["norm"].norm()) > float(rows["angle"].norm()) + 1e-9
    assert angle_wins > 10 and norm_wins > 10


def collinear(k: Knowledge) -> Knowledge:
    """Benign rows that all point one way: nothing may deviate at all."""
    return replace(k, honest=k.honest[:1].repeat(4, 1))


def test_where_the_bound_cannot_be_kept_it_does_what_it_was_told():
    k = knowing(2)
    sent = {w: FedPoisonMIA(infeasible=w, mask_count=5).craft(1, collinear(knowing(2)))
            for w in ("closest", "skip", "poison", "cover")}  # fmt: skip
    poison, updates, benign = k.step(k.x, wrong_labels(k)), k.sample_steps(k.mask_x, k.mask_y), k.honest[:1]
    assert torch.equal(sent["skip"], k.own)
    torch.testing.assert_close(sent["poison"][0], poison)
    means = [updates[list(s)].mean(0) for s in combinations(range(12), 5)]
    assert min(float((sent["cover"][0] - m).norm()) for m in means) < 1e-5
    line = [poison + s * sent["cover"][0] for s in np.linspace(0, 1, 101).tolist()]
    assert deviation(sent["closest"][0], benign) <= min(deviation(row, benign) for row in line) + 1e-4
    assert deviation(sent["closest"][0], benign) < deviation(poison, benign)


def test_the_random_ablation_draws_its_number_of_mask_samples():
    k = knowing(1)
    row = FedPoisonMIA(selection="random", random_count=12, scaling="fixed", infeasible="cover").craft(1, collinear(k))[0]
    torch.testing.assert_close(row, k.sample_steps(k.mask_x, k.mask_y).mean(0))  # all of them, and nothing else
    random = FedPoisonMIA(selection="random", mask_count=3, infeasible="cover")
    a, b = (random.craft(1, collinear(knowing(1, key=key)))[0] for key in (1, 2))
    assert not torch.equal(a, b)


def test_it_reads_own_rows_beside_a_single_other_and_says_when_there_is_nothing_to_compare():
    FedPoisonMIA().craft(1, knowing(2, others=1))
    with pytest.raises(SkipCell, match="two benign rows"):
        FedPoisonMIA().craft(1, knowing(1, level="own"))
    thin = knowing(1, level="own", participation=0.5)  # a later round may bring more
    assert torch.equal(FedPoisonMIA().craft(1, thin), thin.own)
    with pytest.raises(SkipCell, match="two benign rows"):
        FedPoisonMIA().craft(3, knowing(1, level="own", participation=0.5, round=3))
    memory: dict = {}
    FedPoisonMIA().craft(1, knowing(2, level="own", participation=0.5, memory=memory))
    last = knowing(1, level="own", participation=0.5, round=3, memory=memory)
    assert torch.equal(FedPoisonMIA().craft(3, last), last.own)


# --- the adaptive attack --------------------------------------------------------------------------------------------------------


def naive_adaptive(poison: torch.Tensor, benign: torch.Tensor, m: int, trim: int, most: int) -> tuple[torch.Tensor, bool]:
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


def test_the_adaptive_attack_equals_the_naive_loop_and_stops_below_the_threshold_or_at_the_cap():
    ends = set()
    for seed in range(30):
        scene = Scene(seed, n=6, width=8, noise=(0.3, 1.0, 2.0)[seed % 3])
        for m, trim in ((1, 2), (2, 4), (2, 8)):
            rows = torch.cat([scene.poison[None], scene.benign])
            sent = torch.from_numpy(blend(products(rows, rows), m, trim, 12)) @ rows
            wanted, spared = naive_adaptive(scene.poison, scene.benign, m, trim, 12)
            torch.testing.assert_close(sent, wanted, rtol=1e-6, atol=1e-8)
            ends.add("spared" if spared else "cap")
    assert ends == {"spared", "cap"}


def test_the_adaptive_attack_sends_its_blend_and_bare_poison_without_company():
    k = knowing(1)
    poison = k.step(k.x, wrong_labels(k))
    wanted, spared = naive_adaptive(poison, k.honest, 1, 2, 50)
    assert spared
    torch.testing.assert_close(AdaptiveATM().craft(1, k)[0], wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(AdaptiveATM(most=0).craft(1, k)[0], poison)
    assert blend(np.ones((1, 1)), 2, 4, 50).tolist() == [1.0]


# --- in a federation ------------------------------------------------------------------------------------------------------------


def noisy_blobs(n: int, g: torch.Generator) -> MemberData:
    """Four classes that overlap, so that what a network knows of single samples it has memorised."""
    centres = torch.randn(4, 20, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, 4, (n,), generator=g)
    return MemberData(centres[y] + 2 * torch.randn(n, 20, generator=g), y)


def attacked(attack: Attack, seed: int, members: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """(scores [n], membership [n]) after 80 rounds with five honest clients and two of the attacker's.

    ``members`` False: nobody trains on the samples called members.
    """
    g = torch.Generator().manual_seed(seed)
    clients, outside, nobody = [noisy_blobs(40, g) for _ in range(7)], noisy_blobs(60, g), noisy_blobs(60, g)
    x, y = (torch.cat([getattr(c, part) for c in clients[:5]]) for part in ("x", "y"))
    inside = torch.randperm(len(y), generator=g)[:60]
    called = (x[inside], y[inside]) if members else (nobody.x, nobody.y)
    mixed = torch.randperm(120, generator=g)
    x, y = torch.cat([called[0], outside.x])[mixed], torch.cat([called[1], outside.y])[mixed]
    masks = torch.cat([c.x for c in clients[5:]]), torch.cat([c.y for c in clients[5:]])
    module = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    flat = FlatModel(module, torch.device("cpu"))
    flat.params.copy_(0.15 * torch.randn(len(flat.params), generator=g))
    insider = (
        Insider(attack=attack, malicious=2, knowledge="honest", start_round=1, x=x, y=y, mask_x=masks[0], mask_y=masks[1])
        if isinstance(attack, ActiveAttack)
        else None
    )
    config = tiny_federation(len(clients), rounds=80, local_epochs=1, batch_size=40, lr=0.3, momentum=0.0, weight_decay=0.0)
    federation = loop.Training(
        Setup(
            config=config,
            seed=seed,
            flat=flat,
            clients=clients,
            n_classes=4,
            defense=Defense(),
            members=(),
            initial=flat.params.clone()[None],
            insider=insider,
        )
    )
    for result in federation.rounds():
        last = result.models[0].clone()
    flat.params.copy_(last)
    with torch.no_grad():
        margins = margin(module.eval()(x), y).numpy()
    seen = Observations(
        view="client", rounds=np.array([80]), clients=np.array([-1]), target=0, signals={"margin": margins[None, None]}
    )
    scores = attack.score(
        seen, Audit(key=0, device=torch.device("cpu"), ids=np.arange(120), y=y.numpy(), n_classes=4, target_client=0)
    )
    return scores, (mixed < 60).numpy()


def accuracy(scores: np.ndarray, member: np.ndarray) -> float:
    return float(((scores > 0) == member).mean())


def test_poisoning_tells_members_better_than_looking_on_and_a_guess_stays_a_guess():
    passive = [accuracy(*attacked(Passive(), seed)) for seed in (0, 1)]
    poisoned = [attacked(FedPoisonMIA(), seed) for seed in (0, 1)]
    assert np.mean([accuracy(*p) for p in poisoned]) > np.mean(passive) + 0.08
    rng = np.random.default_rng(0)
    guesses = [accuracy(scores, rng.permutation(member)) for scores, member in poisoned for _ in range(200)]
    assert np.mean(guesses) == pytest.approx(0.5, abs=0.02)


def test_without_a_leak_poisoning_finds_no_members():
    found = [accuracy(*attacked(FedPoisonMIA(), seed, members=False)) for seed in (0, 1)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.13)  # 240 samples: four standard deviations
