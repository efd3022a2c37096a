"""FedPoisonMIA: poison behind greedily chosen mask samples, within the angles that benign updates have among themselves."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Knowledge, SkipCell
from fedbench.plugins.attacks.poisoning.base import ABOUT_DRAW, Draw, Jitter, Poisoning, benign_rows, copies, wrong_labels
from fedbench.plugins.attacks.poisoning.evasion import least_cosine, products, unit_rows
from fedbench.plugins.attacks.poisoning.selection import (
    SLACK,
    Masks,
    Objective,
    Search,
    Segment,
    closest_scale,
    greedy,
    optimal_scale,
)


class FedPoisonMIA(Poisoning):
    """Every malicious client sends s m + v (equation 3), as deviant as benign updates are from each other, no more.

    v: one step on the attack set with wrong labels. m: the mean of one-step updates on single mask samples, chosen
    greedily (equation 5). s: the best scale in [0, 1] for that m (equation 6). Objective: the largest angle to a benign
    row, which must not exceed the largest angle between two benign rows. Benign rows: the other clients' with full
    knowledge, its own clients' honest ones with partial knowledge; in a round with fewer than two in sight there is no
    bound to keep, and its clients send what they honestly would.
    The paper does not say what is sent where the bound cannot be kept, which is common once the model fits its data. By
    default that is all of the poison, with as much of the mask as makes it deviate least.
    The released code instead maximises the norm, with at most five samples and s = 1, and sends v bare where nothing is
    allowed: ``objective: norm, mask_count: 5, scaling: fixed, search: best, infeasible: poison``. Its random ablation:
    ``selection: random, random_count: 30, scaling: fixed, infeasible: cover``.
    Source: Mo et al. (FedPoisonMIA), ICCV 2025, sections 4.1 and 4.2; algorithm 1.
    """

    class Params(Jitter):
        objective: Objective = Field(
            "angle", description="what is maximised under the bound: angle to a benign row (paper), or norm (released code)"
        )
        selection: Literal["greedy", "random"] = Field("greedy", description="how mask samples are chosen (random: the ablation)")
        mask_count: int | None = Field(None, ge=1, description="mask samples to choose; null: ceil(ratio x mask set)")
        ratio: float = Field(0.1, gt=0, le=1, description="share of the mask set to choose, where mask_count is null")
        random_count: int | None = Field(None, ge=1, description="mask samples of the random selection; null: as greedy's")
        search: Search = Field(
            "full", description="greedy where no sample is allowed: full takes the closest one, best stops (released code)"
        )
        scaling: Literal["optimised", "fixed"] = Field("optimised", description="the mask's: equation 6, or `scale` as it is")
        scale: float = Field(1.0, ge=0, le=1, description="scale of the mask while selecting, and after it if fixed; no unit")
        infeasible: Literal["closest", "poison", "cover", "skip"] = Field(
            "closest",
            description="what to send where the bound cannot be kept: the least deviant scale of the mask with the poison, "
            "the poison bare (released code), the mask alone (its random ablation), or honest updates",
        )
        labels: Draw = Field("uniform", description=ABOUT_DRAW)

    knowledge = "own"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]."""
        assert knowledge.own is not None  # granted from level "own" on
        benign = unit_rows(benign_rows(knowledge))
        if len(benign) < 2:
            return self._no_bound(knowledge, knowledge.own)
        knowledge.memory["bounded"] = True
        poison = knowledge.step(knowledge.x, wrong_labels(knowledge, self.params.labels))
        updates = knowledge.sample_steps(knowledge.mask_x, knowledge.mask_y)
        masks, bound = Masks.of(updates, poison, benign), least_cosine(products(benign, benign))
        chosen = self._select(masks, bound, knowledge.rng)
        cover = updates[chosen].mean(dim=0) if chosen else torch.zeros_like(poison)
        segment, infeasible = masks.segment(chosen), self.params.infeasible
        scale = self._scale(segment, bound)
        if scale is None and infeasible == "skip":
            return knowledge.own
        if scale is None and infeasible == "cover":
            return copies(cover, knowledge, self.params.jitter)
        if scale is None:
            closest = closest_scale(segment) if self.params.scaling == "optimised" else self.params.scale
            scale = 0.0 if infeasible == "poison" else closest
        return copies(scale * cover + poison, knowledge, self.params.jitter)

    @staticmethod
    def _no_bound(knowledge: Knowledge, honest: torch.Tensor) -> torch.Tensor:
        """[m, P] ``honest``; raises ``SkipCell`` where no round had a bound or ever will: nothing would be poisoned."""
        hopeless = knowledge.federation.participation >= 1 or knowledge.round == knowledge.federation.rounds
        if hopeless and "bounded" not in knowledge.memory:
            raise SkipCell("it needs two benign rows to compare: more malicious clients, or full knowledge of more others")
        return honest

    def _select(self, masks: Masks, bound: float, rng: np.random.Generator) -> list[int]:
        p, n = self.params, len(masks.poison)
        count = min(n, p.mask_count or math.ceil(p.ratio * n))
        if p.selection == "random":
            return [int(i) for i in rng.permutation(n)[: p.random_count or count]]
        return greedy(masks, bound, count, p.scale, p.objective, p.search)

    def _scale(self, segment: Segment, bound: float) -> float | None:
        """The scale to send with; None where the bound cannot be kept."""
        p = self.params
        if p.scaling == "optimised":
            return optimal_scale(segment, bound, p.objective)
        return p.scale if segment.least_cosine(np.array([p.scale]))[0] >= bound - SLACK else None
