"""Images from uploaded embeddings beside the members that an attack names (FedMIA, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from torch import Tensor

from fedbench.core import (
    OFL,
    Analysis,
    Findings,
    FinishedRun,
    Judged,
    Judgement,
    Number,
    Params,
    Probe,
    Signal,
)
from fedbench.core.report import Block, Figure, Numbers, Section, Style
from fedbench.plugins.analyses.common import finite_mean
from fedbench.plugins.generative.diffusion import CLASSES, Denoising, sampled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_KEY = 1803  # of the noises that images are made of
_PICTURES = ("generated", "named", "nearest")


class Generated(Signal):
    """The image that DDIM samples from the model's embedding of a sample's class, one keyed noise a
    class, and the sample itself: [n, 2 D].
    """

    vector = True
    tasks = frozenset({Denoising.name})

    def measure(self, probe: Probe) -> Tensor:
        x = probe.normalise(probe.x).flatten(1)
        draws = torch.Generator().manual_seed(_KEY)
        noise = torch.randn(CLASSES, x.shape[1], generator=draws).to(x)
        images = sampled(probe.model, torch.arange(CLASSES, device=x.device), noise)
        return torch.cat([images[probe.y], x], 1).float()


class GeneratedImages(Analysis):
    """Pictures of the first target's classes after the last audited round, and the share of test
    images with the least loss under their own class.

    For each class: the image from the uploaded embedding, the candidate that the attack names first
    as a member, and the target's training image that is nearest to the generated one (L2).
    """

    needs = frozenset({"generated"})
    by_default = False

    class Params(Params):
        attack: str = Field("fedmia-ii", description="label of the attack that names members")

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return the pictures, and ``member`` (whether the named ones are), class by class.

        ``nearest member`` and ``nearest outsider``: mean distance of a generated image to the
        target's nearest training image and to the nearest of as many outsiders of its class. None
        of other attacks, and on no client by itself.
        """
        if judgement is None or judgement.attack != self.params.attack:
            return None
        target = judgement.targets[0]
        if target.target < 0:
            return None
        values = run.signals["generated"][-1, run.rows.index(target.target)]
        generated, samples = np.split(values[target.position], 2, axis=1)
        classes = [c for c in range(CLASSES) if (target.member & (target.y == c)).any()]
        lines = [_of_class(target, generated, samples, c) for c in classes]
        columns = [np.array(column) for column in zip(*lines, strict=True)]
        pictures, (member, inside, outside) = columns[:3], columns[3:]
        numbers = {
            "accuracy": Number(float((run.predicted == run.test_y).mean()), unit="fraction"),
            "named are members": Number(float(member.mean()), unit="fraction"),
            "nearest member": Number(float(inside.mean())),
            "nearest outsider": Number(finite_mean(outside)),
        }
        arrays = {name: p.ravel() for name, p in zip(_PICTURES, pictures, strict=True)}
        return Findings(numbers, arrays | {"class": np.array(classes), "member": member})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the findings' table, and the pictures of the undefended federation's first seed."""
        yield Numbers(label)
        attack = self.params.attack
        for row in section.rows:
            findings = None
            if row.undefended and attack in row.entries:
                findings = row.entries[attack].findings(label, section.seeds[0])
            if findings is not None:
                drawing = partial(_drawn, findings=findings, section=section)
                yield Figure("generated", "Images from uploaded embeddings", drawing)


def _of_class(
    target: Judged, generated: ndarray, samples: ndarray, c: int
) -> tuple[ndarray, ndarray, ndarray, bool, float, float]:
    """Return the three pictures of a class, whether the named one is a member, and the generated
    one's distances to members and outsiders, infinite without any.
    """
    of_class = np.flatnonzero((target.y == c) & target.counted)
    named = of_class[np.argmax(target.scores[of_class])]
    image = generated[of_class[0]]
    distances = np.linalg.norm(samples - image, axis=1)
    members = of_class[target.member[of_class]]
    # of as many as there are members: the nearest of more would be nearer
    outsiders = of_class[target.kind[of_class] == OFL][: len(members)]
    nearest = members[np.argmin(distances[members])]
    outside = distances[outsiders].min(initial=np.inf)
    is_member = bool(target.member[named])
    return image, samples[named], samples[nearest], is_member, distances[nearest], outside


def _drawn(style: Style, findings: Findings, section: Section) -> Canvas:
    classes = findings.arrays["class"].astype(int).tolist()
    figure = style.new_figure(0.75 * len(classes) + 1.2, 3.0)
    axes = figure.subplots(len(_PICTURES), len(classes), squeeze=False)
    for row, name in zip(axes, _PICTURES, strict=True):
        pictures = _images(findings.arrays[name], len(classes))
        for axis, picture, c in zip(row, pictures, classes, strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row is axes[0]:
                axis.set_title(str(c), fontsize=8)
        row[0].set_ylabel(name, fontsize=8)
    for axis, member in zip(axes[1], findings.arrays["member"], strict=True):
        axis.set_xlabel("member" if member else "no member", fontsize=6)
    figure.suptitle(f"{style.literal(section.where, 90)}", fontsize=9)
    return figure


def _images(values: ndarray, n: int) -> Sequence[ndarray]:
    """Return images [n, H, W] or, of three channels, [n, H, W, 3], in 0..1."""
    flat = ((values.reshape(n, -1) + 1) / 2).clip(0, 1)
    side = int(np.sqrt(flat.shape[1]))
    if side * side == flat.shape[1]:
        return list(flat.reshape(n, side, side))
    side = int(np.sqrt(flat.shape[1] / 3))
    return list(flat.reshape(n, 3, side, side).transpose(0, 2, 3, 1))
