"""Client defenses that change what is trained on: data augmentation, data sampling and
InstaHide.
"""

from __future__ import annotations

import math

import pytest
import torch
from defense_cases import made, member, two_layers
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import generator
from pydantic import ValidationError
from torch import nn

from fedbench.core import Batch, MemberData, UserError
from fedbench.core.numerics.wrappers import Normalised


def whole(data: MemberData) -> Batch:
    return Batch(data.x, data.y, torch.arange(len(data.y)), data.soft)


# -- data augmentation -----------------------------------------------------------------------------

OFF = {"crop": 0, "hflip": False, "vflip": False, "rotation": 0, "brightness": 0, "contrast": 0}


def images(height: int = 9, width: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(3, 2, height, width, generator=generator(seed), dtype=torch.float64)


def augmented(x: torch.Tensor, key: int = 1, **params) -> torch.Tensor:
    batch = Batch(x, torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x)))
    return made("data-augmentation", **params).transform(batch, member(two_layers(), key=key)).x


def draws(n: int, key: int) -> torch.Tensor:
    """[7, n] in [0, 1): shift by rows and columns, mirror left to right and upside down, angle,
    brightness, contrast.
    """
    return torch.rand(7, n, generator=member(two_layers(), key=key).generator)


def pixel(image: torch.Tensor, row: float, column: float) -> list[float]:
    """[C] of the nearest pixel; the darkest value of each channel outside."""
    row, column = round(row), round(column)
    inside = 0 <= row < image.shape[1] and 0 <= column < image.shape[2]
    return [float(c[row, column]) if inside else float(c.min()) for c in image]


def placed(x: torch.Tensor, source) -> torch.Tensor:
    """Images with each pixel from ``source(image number, row, column)``."""
    out = torch.empty_like(x)
    for n, image in enumerate(x):
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                out[n, :, i, j] = torch.tensor(pixel(image, *source(n, i, j)))
    return out


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.integers(0, 999),
)
@settings(max_examples=15)
def test_cropping_and_mirroring_match_a_pixel_loop(height, width, crop, hflip, vflip, key):
    x, u = images(height=height, width=width, seed=key), draws(3, key)

    def source(n, i, j):
        i = height - 1 - i if vflip and u[3, n] < 0.5 else i
        j = width - 1 - j if hflip and u[2, n] < 0.5 else j
        return [p + math.floor(float(u[a, n] * (2 * crop + 1))) - crop for a, p in ((0, i), (1, j))]

    found = augmented(x, key, **OFF | {"crop": crop, "hflip": hflip, "vflip": vflip})
    torch.testing.assert_close(found, placed(x, source), rtol=1e-6, atol=1e-7)


@given(
    st.sampled_from([(8, 8), (7, 7), (6, 9)]), st.sampled_from([45.0, 180.0]), st.integers(0, 999)
)
@settings(max_examples=10)
def test_rotation_takes_the_nearest_pixel_counter_clockwise_about_the_centre(size, rotation, key):
    x, u = images(height=size[0], width=size[1], seed=key), draws(3, key)

    def source(n, i, j):
        angle = math.radians(rotation) * (2 * float(u[4, n]) - 1)
        down, right = i - (size[0] - 1) / 2, j - (size[1] - 1) / 2
        turned = (
            down * math.cos(angle) + right * math.sin(angle),
            right * math.cos(angle) - down * math.sin(angle),
        )
        return turned[0] + (size[0] - 1) / 2, turned[1] + (size[1] - 1) / 2

    apart = (augmented(x, key, **OFF | {"rotation": rotation}) - placed(x, source)).abs() > 1e-6
    # which of two equally near pixels is nearer is a matter of the last bit
    assert apart.double().mean() <= 0.01


def test_brightness_scales_from_black_and_then_contrast_from_the_mean_after_the_geometry():
    x, u = images(), draws(3, 1).double()
    bright, contrast = 1 + 0.25 * (2 * u[5] - 1), 1 + 0.8 * (2 * u[6] - 1)
    geometry = augmented(x, brightness=0, contrast=0)
    found = augmented(x, brightness=0.25, contrast=0.8)
    black = x.amin((2, 3), keepdim=True)
    lit = black + bright.view(-1, 1, 1, 1) * (geometry - black)
    mean = lit.mean((2, 3), keepdim=True)
    torch.testing.assert_close(
        found, mean + contrast.view(-1, 1, 1, 1) * (lit - mean), rtol=1e-6, atol=1e-7
    )


# -- data sampling ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "fraction", "at_zero", "kept"),
    [
        (500, 0.29, "all", 29),
        (33, 0.5, "one", 3),
        (45, 0.1, "one", 1),
        (45, 0.1, "all", None),
        (50, 1.0, "one", None),
    ],
)
def test_data_sampling_keeps_the_floor_of_its_share_of_the_batches(
    samples, fraction, at_zero, kept
):
    held = torch.arange(samples + 7) < 7
    data = MemberData(
        torch.zeros(samples + 7, 6), torch.zeros(samples + 7, dtype=torch.int64), held_out=held
    )
    ctx = member(two_layers(), data, facts={"batch_size": 5})
    chosen = made("data-sampling", fraction=fraction, at_zero=at_zero).select(ctx)
    if kept is None:  # all batches
        assert chosen is None
    else:
        assert chosen.batches == kept and chosen.index.tolist() == list(range(7, samples + 7))


# -- instahide -------------------------------------------------------------------------------------


def mixtures(k: int, bound: float, key: int = 1, held: int = 0, memory=None, epoch: int = 0):
    """([m, 12] weights of the samples in each encoded one, [m, C] labels): the samples are the rows
    of the identity.
    """
    data = MemberData(torch.eye(12), torch.arange(12) % 4, held_out=torch.arange(12) < held)
    memory = {} if memory is None else memory
    ctx = member(two_layers(12), data, key=key, epoch=epoch, memory=memory)
    own = data.trainable
    out = made("instahide", k=k, bound=bound).transform(Batch(data.x[own], data.y[own], own), ctx)
    return out.x.abs(), out.soft, data.y


@given(st.integers(1, 6), st.floats(0.05, 1), st.integers(0, 99), st.integers(0, 3))
@settings(max_examples=25)
def test_an_encoding_is_a_bounded_mixture_of_distinct_samples_with_mixed_labels(k, room, key, held):
    bound = 1 / k + room * (1 - 1 / k)
    weights, soft, y = mixtures(k, bound, key=key, held=held)
    assert ((weights > 0).sum(1) == k).all() and weights[:, :held].sum() == 0
    assert weights[:, held:].diagonal().all()  # the sample itself is one of them
    torch.testing.assert_close(weights.sum(1), torch.ones(12 - held))
    assert weights.max() <= bound + 1e-6
    assert ((weights[:, held:] > 0).sum(0) == k).all()  # each is used equally often
    torch.testing.assert_close(soft, weights @ nn.functional.one_hot(y, 4).float())


def test_the_client_is_encoded_anew_every_epoch_and_once_within_it():
    memory: dict = {}
    first, again, later = (
        mixtures(3, 0.65, key=key, memory=memory, epoch=e)[0] for key, e in ((1, 0), (1, 0), (2, 1))
    )
    assert torch.equal(first, again) and not torch.equal(first, later)


def test_signs_are_fair_and_independent_of_image_and_pixel():
    data = MemberData(torch.ones(400, 100), torch.zeros(400, dtype=torch.int64))
    signs = made("instahide", k=1).transform(whole(data), member(two_layers(100), data)).x
    assert set(signs.unique().tolist()) == {-1.0, 1.0} and abs(signs.mean().item()) < 0.02
    # 100 fair coins: standard deviation .1
    assert (signs @ signs.T / 100).fill_diagonal_(0).abs().max() < 0.6


def test_partners_are_normalised_bytes_with_their_own_soft_targets():
    byte = torch.randint(0, 256, (6, 3, 4, 4), generator=generator(0), dtype=torch.uint8)
    module = Normalised(
        nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    )
    floats, soft = module.normalise(byte), torch.full((6, 4), 0.25)
    y = torch.arange(6) % 4
    of_bytes, of_floats = (
        made("instahide").transform(
            Batch(floats, y, torch.arange(6), soft), member(module, MemberData(x, y, soft))
        )
        for x in (byte, floats)
    )
    torch.testing.assert_close(of_bytes.x, of_floats.x)
    torch.testing.assert_close(of_bytes.soft, soft)  # mixtures of equal targets


# -- refusals --------------------------------------------------------------------------------------


def encoded(data: MemberData) -> Batch:
    return made("instahide").transform(whole(data), member(two_layers(4), data))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda: encoded(MemberData(torch.zeros(2, 4), torch.zeros(2).long())),
            "client 0 has 2 samples and cannot mix 3",
        ),
        (lambda: encoded(MemberData(torch.zeros(5, 4).long(), torch.zeros(5).long())), "tokens"),
        (lambda: made("instahide", k=2, bound=0.5), "cannot sum to 1"),
        (lambda: augmented(torch.zeros(4, 6)), r"not \[6\] of float32"),
    ],
    ids=["too-few-samples", "tokens", "weights-that-cannot-sum-to-1", "no-image"],
)
def test_data_that_cannot_be_changed_are_refused(refused, says):
    with pytest.raises((UserError, ValidationError), match=says):
        refused()
