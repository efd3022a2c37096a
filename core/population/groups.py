"""Groups of clients with deformed images: majority and minority of the clustering papers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.partition import largest_remainder

_CHUNK = 4_000_000  # values deformed at once; bounds the float32 copies, changes no result
_CLOSE = 1e-9  # fractions such as 0.7 + 0.3 are whole up to rounding


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of clients, and the deformation of each client's images."""

    names: tuple[str, ...]
    of_client: ndarray
    """[K] int, position in ``names``"""
    rotation: ndarray
    """[K] degrees, counter-clockwise, nan: none"""
    brightness: ndarray
    """[K] factor, nan: none"""


def make_groups(spec: Sequence[Mapping[str, Any]], clients: int, seed: int) -> Groups:
    """Contiguous blocks of client ids in the order given; each client draws its own angle and
    factor from its group's range.

    Entries: ``name``, ``fraction`` of the clients (one entry may leave it out and takes the rest),
    ``rotation`` [lo, hi] in degrees, ``brightness`` [lo, hi] as a factor (None: none). Without a
    rest the fractions sum to 1 and are rounded by largest remainder; with one, each is rounded (a
    half upwards). Raises ``UserError`` for fractions that leave clients out or take too many, and
    for an empty group.

    Source: IFCA-MIR, section 5.1: a rotation per client, uniform in the range of its group, not one
    per group.
    """
    names = tuple(str(g["name"]) for g in spec)
    fractions = [g.get("fraction") for g in spec]
    of_client = np.repeat(np.arange(len(names)), _sizes(names, fractions, clients))
    generators = [numpy_rng(seed, "groups", client=k) for k in range(clients)]
    draws = np.stack([rng.random(2) for rng in generators])
    rotation = _within(spec, "rotation", of_client, draws[:, 0])
    brightness = _within(spec, "brightness", of_client, draws[:, 1])
    return Groups(names, of_client, rotation, brightness)


def _within(
    spec: Sequence[Mapping[str, Any]],
    kind: str,
    of_client: ndarray,
    draws: ndarray,
) -> ndarray:
    none = (math.nan, math.nan)
    ends = np.array([g.get(kind) or none for g in spec], dtype=np.float64)
    low, high = ends[of_client].T
    return low + (high - low) * draws


def thresholds(
    low: float,
    high: float,
    clients: int,
    seed: int,
) -> ndarray:
    """[K] each client's own bound on the attack's accuracy, uniform in [low, high] (IFCA-MIR,
    section 5.2.2).
    """
    draws = [numpy_rng(seed, "thresholds", client=k).random() for k in range(clients)]
    return low + (high - low) * np.array(draws, dtype=np.float64)


def deform(x: ndarray, client: ndarray, groups: Groups) -> ndarray:
    """``x`` with each sample turned about its centre, then made brighter or darker, as its client's
    images are.

    x: [n, C, H, W] uint8 or float32, client: [n] int 0..K-1 -> the same shape and dtype; ``x``
    itself is not changed. Rotation: bilinear, 0 where the turned image has no pixel, so black
    should be 0. Brightness: intensities times the factor, cut at full intensity: 255, or 1 for
    floats, which must lie in 0..1. uint8 is rounded once, at the end. Samples of a client with
    neither, a whole turn or the factor 1 keep their bits; a sample's result depends on nothing else
    in ``x``. Raises ``UserError`` for samples that are no images, and for a factor on floats
    outside 0..1.
    """
    _require_images(x, groups)
    out = x.copy()
    step = max(1, _CHUNK // max(1, math.prod(x.shape[1:])))
    for k in np.unique(client):
        rows = np.flatnonzero(client == k)
        angle = float(groups.rotation[k])
        factor = float(groups.brightness[k])
        for chunk in np.split(rows, range(step, len(rows), step)):
            out[chunk] = _deformed(x[chunk], angle, factor)
    return out


def _deformed(x: ndarray, angle: float, factor: float) -> ndarray:
    """Images of one client."""
    turned = not math.isnan(angle) and angle % 360 != 0
    lit = not math.isnan(factor) and factor != 1
    if not turned and not lit:
        return x
    values = rotate(x, angle) if turned else x.astype(np.float32)
    most = 255 if x.dtype == np.uint8 else 1
    if lit:
        values = np.clip(values * np.float32(factor), 0, most)
    if x.dtype == np.uint8:
        values = np.clip(np.rint(values), 0, most)
    return values.astype(x.dtype)


def rotate(x: ndarray, degrees: float) -> ndarray:
    """``x`` [n, C, H, W] turned counter-clockwise about the centre of the image, as float32:
    bilinear, 0 outside.
    """
    import torch
    from torch.nn.functional import grid_sample

    n, c, height, width = x.shape
    values = np.ascontiguousarray(x, dtype=np.float32)
    # All samples as channels of one image: they share the grid, so its weights are computed once.
    planes = torch.from_numpy(values.reshape(1, n * c, height, width))
    grid = torch.from_numpy(_grid(degrees, height, width))
    turned = grid_sample(planes, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.numpy().reshape(x.shape)


def _grid(degrees: float, height: int, width: int) -> ndarray:
    """[1, H, W, 2] input position of each output pixel, R(-degrees) p, as (x, y) with the image at
    -1..1.
    """
    radians = math.radians(degrees % 360)
    cos = round(math.cos(radians), 15)  # quarter turns are exact
    sin = round(math.sin(radians), 15)
    rows = np.arange(height) - (height - 1) / 2
    columns = np.arange(width) - (width - 1) / 2
    y, x = np.meshgrid(rows, columns, indexing="ij")
    # y grows downwards, hence the signs
    right = 2 * (cos * x - sin * y) / width
    down = 2 * (sin * x + cos * y) / height
    return np.stack([right, down], axis=-1)[None].astype(np.float32)


def _require_images(x: ndarray, groups: Groups) -> None:
    if x.ndim != 4 or x.dtype not in (np.uint8, np.float32):
        raise UserError(
            f"groups deform images, and the samples are {list(x.shape[1:])} {x.dtype}: rotation "
            "and brightness need a data set with samples [channels, height, width], uint8 or "
            "float32, such as mnist, femnist, cifar10 or digits"
        )
    factors = groups.brightness
    lit = (~np.isnan(factors) & (factors != 1)).any()
    if lit and x.dtype == np.float32 and x.size and not 0 <= x.min() <= x.max() <= 1:
        raise UserError(
            "groups: brightness needs intensities, uint8 or floats in 0..1, and the samples reach "
            f"from {x.min():g} to {x.max():g}; use a data set of uint8 images, or scale them to "
            "0..1"
        )


def _sizes(names: Sequence[str], fractions: Sequence[float | None], clients: int) -> list[int]:
    rest = fractions.count(None)
    total = math.fsum(f for f in fractions if f is not None)
    if problem := _problem(rest, total):
        raise UserError(f"groups: {problem}")
    exact = [round((f or 0) * clients, 9) for f in fractions]
    if rest:
        sizes = [math.floor(e + 0.5) for e in exact]
        sizes[fractions.index(None)] = clients - sum(sizes)
    else:
        sizes = largest_remainder(np.array(exact), clients).tolist()
    if min(sizes) < 1:
        pairs = zip(names, sizes, strict=True)
        sizes_text = ", ".join(f"{name} {max(size, 0)}" for name, size in pairs)
        raise UserError(
            f"groups: {clients} clients are divided as {sizes_text}: each group needs one; change "
            "fractions or clients"
        )
    return sizes


def _problem(rest: int, total: float) -> str:
    if rest > 1:
        return f"{rest} groups have no fraction, and only one can take the rest: add fractions"
    if total > 1 + _CLOSE:
        return f"the fractions sum to {total:g}, not 1; lower them"
    if not rest and total < 1 - _CLOSE:
        remedy = "raise them, or leave one out: that group takes the rest"
        return f"the fractions sum to {total:g}, not 1; {remedy}"
    return ""
