"""FedMIA's other defenses against slow, obvious references, and what the faithful switches bring back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import CPU, facts_of, generator, member_context
from pydantic import ValidationError
from tiny import tiny_clients, tiny_module, tiny_setup, train_all
from torch import nn
from torch.nn.functional import kl_div, log_softmax

from fedbench.core import Batch, Defense, MemberContext, MemberData, UserError
from fedbench.core.federation.compose import Composite
from fedbench.core.numerics.normalise import Normalised
from fedbench.plugins import defenses
from fedbench.plugins.defenses import instahide
from fedbench.plugins.defenses.data_augmentation import DataAugmentation, jitter, rotate, shift_and_flip
from fedbench.plugins.defenses.data_sampling import DataSampling, batches_kept
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.hamp import HAMP, soft_labels
from fedbench.plugins.defenses.instahide import InstaHide, bounded_weights
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.perturb import Perturb
from fedbench.plugins.defenses.quantize import Quantize, quantize
from fedbench.plugins.defenses.relaxloss import RelaxLoss

NAMES = ("perturb", "quantize", "data-augmentation", "data-sampling", "instahide")


def member(data: MemberData | None = None, *, key=1, epoch=0, memory=None, module=None, **facts) -> MemberContext:
    module, memory = module or tiny_module(), {} if memory is None else memory
    known = facts_of(sum(p.numel() for p in module.parameters()), **{"batch_size": 5, **facts})
    return member_context(module, data or tiny_clients()[0], known, key=key, epoch=epoch, memory=memory)


def whole(data: MemberData) -> Batch:
    return Batch(data.x, data.y, torch.arange(len(data.y)), data.soft)


def images(n: int, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=generator(seed))


def bits(defense: Defense, **changes) -> torch.Tensor:
    return torch.stack([r.models for r in train_all(tiny_setup(defense, **changes))[1]])


def test_every_new_defense_is_announced_and_documents_its_params():
    announced = {c.name: c for c in defenses.fedbench_defenses()}
    for name in NAMES:
        module, cls = announced[name].target.split(":")
        made = getattr(import_module(module), cls)()
        assert all(f.description for f in type(made.params).model_fields.values()), name


# -- perturb -------------------------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_perturb_clips_to_the_norm_and_no_further(clip, norm):
    update = torch.randn(200, generator=generator(0), dtype=torch.float64)
    update *= norm / update.norm()
    out = Perturb(clip=clip, sigma=0).protect(update, member())
    torch.testing.assert_close(out, update * min(1.0, clip / norm))
    assert torch.equal(Perturb(clip="none", sigma=0).protect(update, member()), update)


def test_perturb_of_an_update_of_zeros_is_noise_alone():
    assert torch.equal(Perturb(sigma=0).protect(torch.zeros(9), member()), torch.zeros(9))


@pytest.mark.parametrize(("scale", "clip", "std"), [("absolute", 4.0, 0.3), ("relative", 4.0, 1.2), ("absolute", "none", 0.3)])
def test_perturb_noise_has_the_stated_deviation(scale, clip, std):
    noise = Perturb(sigma=0.3, clip=clip, scale=scale).protect(torch.zeros(40_000), member())
    assert noise.std().item() == pytest.approx(std, rel=0.02)
    assert abs(noise.mean().item()) < 4 * std / 200


def test_perturb_clips_before_it_adds_noise():
    update = torch.full((10_000,), 5.0)
    out = Perturb(sigma=1.0, clip=2.0).protect(update, member())
    assert out.norm() > 50  # noise of norm 100 is not clipped away
    assert out.mean().item() == pytest.approx(2 / 100, abs=0.05)


def test_perturb_relative_is_client_level_dp():
    update = torch.randn(300, generator=generator(0))
    dp = DPSGD(mode="client", sigma=0.7, clip_update=2.0).protect(update, member())
    assert torch.equal(Perturb(sigma=0.7, clip=2.0, scale="relative").protect(update, member()), dp)
    with pytest.raises(ValidationError, match="units of clip"):
        Perturb(clip="none", scale="relative")


class NoiseOnWeights(Defense):
    """FedMIA's released code: after training, noise on the local weights themselves, nothing clipped (F5)."""

    def local_train(self, ctx):
        ctx.train()
        ctx.params.add_(0.2 * self.noise[ctx.round, ctx.client])


def test_faithful_perturb_is_noise_on_the_weights_without_clipping():
    uploads = {}
    for name, defense in {"plain": Defense(), "perturb": Perturb(clip="none", sigma=0.2)}.items():
        uploads[name] = train_all(tiny_setup(defense, rounds=1))[1][0].uploads.updates
    noise = uploads["perturb"] - uploads["plain"]
    on_weights = NoiseOnWeights()
    on_weights.noise = {(1, k): noise[k] / 0.2 for k in (0, 1)}
    found = train_all(tiny_setup(on_weights, rounds=1))[1][0].uploads
    # the uploaded model, which is what every attack measures, is the noisy local model
    torch.testing.assert_close(found.starts[0] + found.updates, found.starts[0] + uploads["perturb"])
    assert noise[:2].std().item() == pytest.approx(0.2, rel=0.3) and not noise[2:].any()
    assert torch.equal(bits(Perturb(clip="none", sigma=0.2)), bits(GradNoise(sigma=0.2)))
    assert not torch.equal(bits(Perturb(clip=0.1, sigma=0.2)), bits(GradNoise(sigma=0.2)))


# -- quantize ------------------------------------------------------------------------------------------------------------


def slow_quantize(values: list[float], bits: int, rounding: str) -> list[float]:
    low, high = min(values), max(values)
    if low == high:
        return values
    if rounding == "floor":
        edges = [low + (high - low) * j / 2**bits for j in range(2**bits)]
        return [max(e for e in edges if e <= v + 1e-12) for v in values]
    levels = [low + (high - low) * j / (2**bits - 1) for j in range(2**bits)]
    return [min(levels, key=lambda level: abs(level - v)) for v in values]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=30), st.integers(1, 8), st.sampled_from(["floor", "nearest"])
)
@settings(max_examples=150, deadline=None)
def test_quantize_is_the_bin_edge_or_the_nearest_level(values, bits, rounding):
    out = quantize(torch.tensor(values, dtype=torch.float64), bits, rounding, generator(0))
    expected = torch.tensor(slow_quantize(values, bits, rounding), dtype=torch.float64)
    step = (max(values) - min(values)) / (2**bits - (rounding != "floor"))
    # two levels can be equally near, or an entry stand on an edge: then both answers are right
    off = (out - expected).abs()
    original = torch.tensor(values, dtype=torch.float64)
    position = (original - min(values)) / (step or 1)
    tie = (position - position.round()).abs() < 1e-6 if rounding == "floor" else (position % 1 - 0.5).abs() < 1e-6
    assert ((off < 1e-9) | (tie & (off < step * (1 + 1e-9)))).all()


@given(st.integers(1, 16), st.sampled_from(["floor", "nearest", "stochastic"]), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_quantize_leaves_few_values_near_the_old_ones(bits, rounding, seed):
    values = torch.randn(400, generator=generator(seed))
    out = quantize(values, bits, rounding, generator(seed))
    span = (values.max() - values.min()).item()
    intervals = 2**bits if rounding == "floor" else 2**bits - 1
    assert len(out.unique()) <= 2**bits
    error = out - values
    assert error.abs().max().item() <= span / intervals * (0.5 if rounding == "nearest" else 1) + 1e-5
    if rounding == "floor":
        assert error.max().item() <= 1e-6  # always down
    assert out.min() == values.min()


def test_quantize_floor_is_biased_and_stochastic_is_not():
    values = torch.rand(40_000, generator=generator(0))
    error = {r: (quantize(values, 2, r, generator(1)) - values).mean().item() for r in ("floor", "nearest", "stochastic")}
    assert error["floor"] == pytest.approx(-1 / 8, abs=0.005)  # half a bin
    assert abs(error["stochastic"]) < 0.005
    one = torch.tensor([0.0, 0.3, 1.0]).repeat(20_000)
    mean = quantize(one, 1, "stochastic", generator(2)).view(-1, 3).mean(0)
    torch.testing.assert_close(mean, torch.tensor([0.0, 0.3, 1.0]), atol=0.02, rtol=0)


@pytest.mark.parametrize("rounding", ["floor", "nearest", "stochastic"])
def test_quantize_works_tensor_by_tensor_and_spares_none(rounding):
    ctx = member()
    sizes = [p.numel() for p in ctx.model.parameters()]
    update = torch.randn(sum(sizes), generator=generator(3))
    update[-sizes[-1] :] = 0.7  # a constant tensor
    out = Quantize(bits=1, rounding=rounding).protect(update, ctx)
    for old, new in zip(update.split(sizes)[:-1], out.split(sizes)[:-1], strict=True):
        assert len(new.unique()) == 2 and new.min() == old.min()
    assert torch.equal(out[-sizes[-1] :], update[-sizes[-1] :])
    assert torch.equal(Quantize(rounding=rounding).protect(torch.zeros(len(update)), ctx), torch.zeros(len(update)))


def test_quantize_does_not_hide_a_diverged_update():
    update = torch.ones(member().params.shape)
    update[3] = math.nan
    assert not torch.isfinite(Quantize().protect(update, member())).all()


# -- data augmentation ---------------------------------------------------------------------------------------------------


def slow_shift_and_flip(image, shift, hflip, vflip, fill):
    channels, height, width = image.shape
    out = torch.empty_like(image)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                row = (height - 1 - i if vflip else i) + shift[0]
                column = (width - 1 - j if hflip else j) + shift[1]
                inside = 0 <= row < height and 0 <= column < width
                out[c, i, j] = image[c, row, column] if inside else fill[c, 0, 0]
    return out


@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 9), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_cropping_and_mirroring_match_a_pixel_loop(height, width, pad, seed):
    x, g = images(3, 2, height, width, seed), generator(seed)
    shift = torch.randint(-pad, pad + 1, (2, 3), generator=g)
    h, v = torch.rand(2, 3, generator=g) < 0.5
    fill = x.amin((2, 3), keepdim=True)
    out = shift_and_flip(x, shift, h, v, fill)
    for b in range(3):
        expected = slow_shift_and_flip(x[b], shift[:, b].tolist(), bool(h[b]), bool(v[b]), fill[b])
        assert torch.equal(out[b], expected)


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (6, 9)])
def test_rotation_is_torchvisions(size):
    from torchvision.transforms.v2 import functional as tv  # takes seconds to import
    angles = [-45.0, -31.7, -3.2, 0.0, 12.3, 44.9, 90.0, 180.0]
    x = images(len(angles), 3, *size) + 1
    found = rotate(x, torch.tensor(angles) * math.pi / 180, torch.zeros(len(x), 3, 1, 1))
    for image, angle, turned in zip(x, angles, found, strict=True):
        if angle == 90 and sum(size) % 2:
            continue  # every source point then lies midway between two pixels
        # the nearest of two equally near pixels is a matter of the last bit
        assert (turned != tv.rotate(image, angle)).float().mean() <= (0.05 if angle % 90 else 0.0)


def test_right_angles_are_exact():
    x = images(3, 2, 5, 5)
    turned = rotate(x, torch.tensor([math.pi / 2, -math.pi / 2, math.pi]), x.new_zeros(3, 2, 1, 1))
    assert all(torch.equal(turned[i], x[i].rot90(k, (1, 2))) for i, k in enumerate((1, -1, 2)))


def test_jitter_on_pixels_is_torchvisions_where_nothing_is_cut_off():
    from torchvision.transforms.v2 import functional as tv
    grey = 0.3 + 0.2 * images(5, 1)
    holed = grey.clone()
    holed[:, :, 0, 0] = 0  # brightness is relative to the darkest pixel, so let it be black
    black = holed.amin((2, 3), keepdim=True)
    one, factors = torch.ones(5), torch.tensor([0.2, 0.75, 1.0, 1.25, 1.8])
    bright, contrast = jitter(holed, factors, one, black), jitter(grey, one, factors, black)
    for i, f in enumerate(factors.tolist()):
        torch.testing.assert_close(bright[i], tv.adjust_brightness(holed[i], f))
        torch.testing.assert_close(contrast[i], tv.adjust_contrast(grey[i], f))


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.lists(st.floats(0.1, 4), min_size=3, max_size=3))
@settings(max_examples=40, deadline=None)
def test_augmenting_commutes_with_normalisation(mean, std):
    x, y = images(6).double(), torch.zeros(6, dtype=torch.int64)
    mu, sd = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))

    def augmented(x):
        return DataAugmentation().transform(Batch(x, y, torch.arange(6)), member()).x

    torch.testing.assert_close(augmented((x - mu) / sd), (augmented(x) - mu) / sd)


OFF = {"crop": 0, "hflip": False, "vflip": False, "rotation": 0, "brightness": 0, "contrast": 0}
DEFAULT = {"crop": 4, "hflip": True, "vflip": True, "rotation": 45, "brightness": 0.25, "contrast": 0.8}


def augment(x: torch.Tensor, key: int = 1, **params) -> torch.Tensor:
    batch = Batch(x, torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x)))
    return DataAugmentation(**params).transform(batch, member(key=key)).x


def test_every_operation_can_be_switched_and_does_not_change_the_others_draws():
    x = images(8, height=12, width=12)
    assert torch.equal(augment(x, **OFF), x)
    all_on = augment(x)
    for name in OFF:
        alone = augment(x, **OFF | {name: DEFAULT[name]})
        assert not torch.equal(alone, x), name
        assert not torch.equal(augment(x, **{name: OFF[name]}), all_on), name
    # geometry, then light: an image turned first and relit later is the image with everything on
    geometry = augment(x, brightness=0, contrast=0)
    u = torch.rand(7, 8, generator=member(key=1).generator)
    light = jitter(geometry, 1 + 0.25 * (2 * u[5] - 1), 1 + 0.8 * (2 * u[6] - 1), x.amin((2, 3), keepdim=True))
    torch.testing.assert_close(light, all_on)


def test_draws_reach_their_whole_range_and_differ_between_images():
    x = torch.zeros(4000, 1, 9, 9)
    x[:, :, 4, 4] = 1.0
    moved = augment(x, **OFF | {"crop": 2}).flatten(1).argmax(1)
    expected = {(4 + i) * 9 + 4 + j for i in range(-2, 3) for j in range(-2, 3)}
    counts = Counter(moved.tolist())
    assert set(counts) == expected
    assert all(100 <= c <= 230 for c in counts.values())  # 160 expected of each of the 25 places
    up = images(1).expand(2000, -1, -1, -1)
    for flip, dim in (("hflip", 3), ("vflip", 2)):
        mirrored = augment(up, **OFF | {flip: True})
        flipped = (mirrored == up.flip(dim)).flatten(1).all(1)
        kept = (mirrored == up).flatten(1).all(1)
        assert (flipped ^ kept).all() and 900 <= int(flipped.sum()) <= 1100
    relit = augment(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).expand(4000, -1, -1, -1), **OFF | {"brightness": 0.25})
    assert relit.max() == pytest.approx(1.25, abs=0.01) and relit.amax((1, 2, 3)).min() == pytest.approx(0.75, abs=0.01)


def test_augmentation_wants_images():
    flat, tokens = torch.zeros(4, 6), torch.zeros(4, 1, 3, 3, dtype=torch.int64)
    for x, message in ((flat, r"not \[6\] of float32"), (tokens, r"not \[1, 3, 3\] of int64")):
        with pytest.raises(UserError, match=message):
            augment(x)


# -- data sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "fraction", "kept"), [(10, 0.1, 1), (10, 0.29, 2), (100, 0.29, 29), (10, 1.0, 10), (7, 0.5, 3), (50, 0.7, 35)]
)
def test_sampling_keeps_the_floor(batches, fraction, kept):
    assert batches_kept(batches, fraction) == batches_kept(batches, fraction, "all") == kept


def test_a_fraction_of_no_batch_is_one_batch_or_faithfully_everything():
    assert batches_kept(9, 0.1) == 1 and batches_kept(9, 0.1, "all") == 9
    assert batches_kept(0, 0.5) == batches_kept(0, 0.5, "all") == 0


class Watch(Defense):
    """Which samples were trained on, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: dict[tuple[int, int], list[list[int]]] = {}

    def transform(self, batch, ctx):
        self.batches.setdefault((ctx.client, ctx.epoch), []).append(batch.index.tolist())
        return batch


def watched(defense: Defense, **changes) -> dict[tuple[int, int], list[list[int]]]:
    watch = Watch()
    train_all(tiny_setup(Composite([defense, watch]), **changes))
    return watch.batches


def test_sampling_trains_on_that_many_whole_batches_fresh_every_round():
    clients = tiny_clients(samples=33)  # 7 batches of at most 5
    epochs = watched(DataSampling(fraction=0.5), clients=clients, rounds=6, local_epochs=1)
    assert len(epochs) == 6 * 2
    draws = set()
    for batches in epochs.values():
        assert [len(b) for b in batches] == [5, 5, 5]
        used = [i for b in batches for i in b]
        assert len(set(used)) == 15
        draws.add(tuple(sorted(used)))
    assert len(draws) == 12
    everything = watched(DataSampling(fraction=1.0), clients=clients, rounds=1, local_epochs=1)[0, 0]
    assert sorted(i for b in everything for i in b) == list(range(33))


def test_every_sample_is_drawn_equally_often():
    clients = [MemberData(torch.randn(20, 4), torch.arange(20) % 3) for _ in range(2)]
    epochs = watched(DataSampling(fraction=0.5), clients=clients, members=(0,), rounds=100, local_epochs=2)
    counts = Counter(i for batches in epochs.values() for b in batches for i in b)
    assert len(counts) == 20 and len(epochs) == 200
    assert all(70 <= c <= 130 for c in counts.values())  # 100 expected, standard deviation 7


def test_the_local_epochs_of_a_round_draw_anew():
    clients = tiny_clients(samples=40)
    epochs = watched(DataSampling(fraction=0.5), clients=clients, rounds=2, local_epochs=3)
    draws = {tuple(sorted(i for b in batches for i in b)) for batches in epochs.values()}
    assert len(draws) == len(epochs) == 2 * 2 * 3


def test_sampling_leaves_held_out_samples_alone():
    held = torch.arange(20) < 10
    data = MemberData(torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64), held_out=held)
    selection = DataSampling(fraction=0.5).select(member(data))
    assert selection.batches == 1 and selection.index.tolist() == list(range(10, 20))


@pytest.mark.parametrize(("at_zero", "batches"), [("one", 1), ("all", 3)])
def test_the_released_counter_never_stops_where_the_floor_is_zero(at_zero, batches):
    epochs = watched(DataSampling(fraction=0.3, at_zero=at_zero), rounds=1, local_epochs=1)  # floor(.3 * 3) = 0
    assert [len(b) for b in epochs.values()] == [batches, batches]


def test_augmentation_and_sampling_are_one_row_in_either_order():
    g = generator(0)
    clients = [MemberData(torch.randn(12, 1, 4, 4, generator=g), torch.arange(12) % 3) for _ in range(4)]
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    for parts in ([DataAugmentation(), DataSampling()], [DataSampling(), DataAugmentation()]):
        watch = Watch()
        train_all(tiny_setup(Composite([*parts, watch]), clients=clients, module=module, rounds=1, local_epochs=1))
        assert [len(b) for b in watch.batches.values()] == [1, 1]  # floor(.5 * 3)


# -- instahide -----------------------------------------------------------------------------------------------------------


@given(st.integers(2, 8), st.floats(0.02, 1), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_weights_are_on_the_bounded_simplex(k, room, seed):
    bound = 1 / k + room * (1 - 1 / k)
    weights = bounded_weights(50, k, bound, np.random.default_rng(seed))
    assert weights.shape == (50, k)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert weights.min() >= 0 and weights.max() <= bound


@pytest.mark.parametrize(("k", "bound"), [(3, 0.65), (3, 0.9), (4, 0.4)])
def test_weights_are_uniform_as_by_plain_rejection(k, bound):
    rng = np.random.default_rng(0)
    plain = rng.dirichlet(np.ones(k), 400_000)
    plain = plain[plain.max(1) <= bound]
    found = bounded_weights(len(plain), k, bound, rng)
    for column in range(k):
        for q in (0.05, 0.25, 0.5, 0.75, 0.95):
            assert np.quantile(found[:, column], q) == pytest.approx(np.quantile(plain[:, column], q), abs=0.01)
    assert np.cov(found.T) == pytest.approx(np.cov(plain.T), abs=0.002)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_partners_are_distinct_others_each_used_equally_often(k):
    usable = np.array([0, 2, 3, 5, 6, 7, 9])
    plan = instahide.draw_plan(10, usable, k, 0.65, np.random.default_rng(3), CPU)
    index = torch.from_numpy(usable)
    groups = torch.stack([index, *plan.partners(index)], 1)
    assert groups.shape == (7, k)
    assert all(len(set(g)) == k for g in groups.tolist())
    assert Counter(groups.flatten().tolist()) == dict.fromkeys(usable.tolist(), k)


@pytest.mark.parametrize("soft", [False, True])
def test_an_encoding_is_a_masked_mixture_with_mixed_labels(soft):
    g = generator(0)
    data = MemberData(torch.randn(9, 1, 4, 4, generator=g), torch.arange(9) % 3)
    if soft:
        data = replace(data, soft=torch.rand(9, 3, generator=g).softmax(1))
    ctx, pick = member(data), torch.tensor([4, 0, 7])
    batch = Batch(data.x[pick], data.y[pick], pick, None if data.soft is None else data.soft[pick])
    out = InstaHide().transform(batch, ctx)
    plan = ctx.memory["plan"][1]
    target = data.soft if soft else torch.eye(3)[data.y]
    for row, i in enumerate(pick.tolist()):
        group = [i, *(int(p[row]) for p in plan.partners(pick))]
        x = sum(float(w) * data.x[j] for w, j in zip(plan.weights[i], group, strict=True))
        label = sum(float(w) * target[j] for w, j in zip(plan.weights[i], group, strict=True))
        torch.testing.assert_close(out.x[row].abs(), x.abs())
        torch.testing.assert_close(out.soft[row], label)
    assert torch.equal(out.soft, out.soft.clamp(0, 1)) and plan.weights.max() <= 0.65


def test_signs_are_fair_and_independent_of_image_and_pixel():
    data = MemberData(torch.ones(400, 1, 10, 10), torch.zeros(400, dtype=torch.int64))
    signs = InstaHide(k=1).transform(whole(data), member(data, batch_size=400)).x.flatten(1)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(signs.mean().item()) < 0.02
    agreement = (signs @ signs.T / 100).fill_diagonal_(0)
    assert agreement.abs().max() < 0.6  # 100 fair coins: standard deviation .1


def test_the_client_is_encoded_anew_every_epoch_and_once_within_it():
    data = tiny_clients()[0]
    memory: dict = {}
    first = member(data, memory=memory, key=1, epoch=0)
    InstaHide().transform(whole(data), first)
    plan = memory["plan"][1]
    InstaHide().transform(whole(data), first)
    assert memory["plan"][1] is plan
    InstaHide().transform(whole(data), member(data, memory=memory, key=2, epoch=1))
    assert not torch.equal(memory["plan"][1].weights, plan.weights)


def test_bytes_are_normalised_before_they_are_mixed():
    byte = torch.randint(0, 256, (6, 3, 4, 4), generator=generator(0), dtype=torch.uint8)
    module = Normalised(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    floats = module.normalise(byte)
    y = torch.arange(6) % 3
    found = [
        InstaHide().transform(Batch(floats, y, torch.arange(6)), member(MemberData(x, y), module=module)).x
        for x in (byte, floats)
    ]
    torch.testing.assert_close(*found)


def test_instahide_refuses_what_it_cannot_encode():
    few = MemberData(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UserError, match="client 0 has 2 samples and cannot mix 3"):
        InstaHide().transform(whole(few), member(few))
    tokens = MemberData(torch.zeros(5, 4, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(UserError, match="tokens"):
        InstaHide().transform(whole(tokens), member(tokens))
    with pytest.raises(ValidationError, match="cannot sum to 1"):
        InstaHide(k=2, bound=0.5)


# -- faithful switches of the ledger -------------------------------------------------------------------------------------


def test_f3_mixup_of_labels_alone_trains_on_the_samples_as_they_are():
    data = tiny_clients()[0]
    for inputs, kept in (("unmixed", True), ("mixed", False)):
        out = Mixup(alpha=5.0, inputs=inputs).transform(whole(data), member(data))
        assert torch.equal(out.x, data.x) == kept
        assert (out.soft.max(1).values < 1).any()


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # which is the very mistake
def test_h1_mean_reduction_is_the_authors_loss_and_a_smaller_learning_rate():
    g = generator(0)
    logits, y = torch.randn(7, 3, generator=g, dtype=torch.float64), torch.randint(0, 3, (7,), generator=g)
    soft = soft_labels(y, 3, 0.6).double()
    log_p = log_softmax(logits, 1)
    authors = kl_div(log_p, soft, reduction="mean") + 0.02 * (log_p.exp() * log_p).sum(1).mean()
    batch = Batch(torch.zeros(7, 4), y, torch.arange(7), soft)
    found = HAMP(gamma=0.6, alpha=0.02, reduction="mean").loss(logits, batch, member())
    torch.testing.assert_close(found, authors)
    # through the loop, without weight decay: three classes, a rate three times as high, the same training
    everyone = (0, 1, 2, 3)
    slow = bits(HAMP(gamma=0.6, reduction="mean"), members=everyone, weight_decay=0.0, lr=0.3)
    torch.testing.assert_close(slow, bits(HAMP(gamma=0.6), members=everyone, weight_decay=0.0, lr=0.1))
    assert not torch.allclose(slow, bits(HAMP(gamma=0.6, reduction="mean"), members=everyone, weight_decay=0.0, lr=0.1))


class NeverFlattens(RelaxLoss):
    """Every epoch an even one: |mean CE - alpha|."""

    def loss(self, logits, batch, ctx):
        return super().loss(logits, batch, replace(ctx, epoch=0))


def test_r1_local_parity_with_one_epoch_never_reaches_the_flattening():
    plain = {"alpha": 1.5}
    for local_epochs, reaches in ((1, False), (2, True)):
        changes = {"rounds": 4, "local_epochs": local_epochs}
        never = bits(NeverFlattens(**plain), **changes)
        assert torch.equal(bits(RelaxLoss(**plain, parity="local"), **changes), never) != reaches
        assert not torch.equal(bits(RelaxLoss(**plain, parity="global"), **changes), never)
    # with an even number of local epochs a counter of its own makes no difference
    assert torch.equal(bits(RelaxLoss(**plain, parity="local")), bits(RelaxLoss(**plain, parity="global")))


def test_r1_the_released_soft_target_is_not_a_constant():
    released, corrected = (bits(RelaxLoss(alpha=1.5, detach=detach)) for detach in (False, True))
    first_odd_epoch = 0  # each round has one: epoch 1 of 0, 1
    assert not torch.equal(released[first_odd_epoch], corrected[first_odd_epoch])
    # a gradient through p_y: d/dp_y of the soft cross-entropy does not vanish
    logits = torch.tensor([[0.2, 1.0, -0.5]], dtype=torch.float64, requires_grad=True)
    batch = Batch(torch.zeros(1, 4), torch.tensor([0]), torch.arange(1))  # wrongly classified
    grads = {}
    for detach in (True, False):
        loss = RelaxLoss(alpha=9.0, detach=detach).loss(logits, batch, member(epoch=1))
        grads[detach] = torch.autograd.grad(loss, logits)[0]
    log_p = log_softmax(logits, 1)
    p = log_p[0, 0].exp()
    through = torch.autograd.grad(p, logits)[0] * (-(log_p[0, 0] - log_p[0, 1:].mean())).detach()
    torch.testing.assert_close(grads[False] - grads[True], through)


@pytest.mark.parametrize("defense", [Perturb, Quantize, DataSampling, InstaHide])
def test_equal_seeds_equal_trainings_other_seeds_other_ones(defense):
    kwargs = {"rounding": "stochastic"} if defense is Quantize else {}
    assert torch.equal(bits(defense(**kwargs), seed=3), bits(defense(**kwargs), seed=3))
    assert not torch.equal(bits(defense(**kwargs), seed=3), bits(defense(**kwargs), seed=4))
