"""Data sampling: train on a part of the data each round."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from fedbench.core import Defense, MemberContext, Params, Selection


class DataSampling(Defense):
    """Stop every local epoch after floor(p * batches) of its shuffled batches, at least one.

    ``at_zero: all`` is that code's counter, which never reaches 0 batches: a fraction too small for one batch trains on
    everything.
    Source: Zhu et al. (FedMIA, CVPR 2025), A.2.2 "data sampling", p from .1 to 1.
    """

    class Params(Params):
        fraction: float = Field(0.5, gt=0, le=1, description="p, share of an epoch's batches trained on, 0 to 1")
        at_zero: Literal["one", "all"] = Field(
            "one", description="batches trained on where the share yields none; `all`: FedMIA's released code"
        )

    def select(self, ctx: MemberContext) -> Selection | None:
        usable = ctx.data.trainable
        size = ctx.federation.batch_size
        batches = math.ceil(len(usable) / size)
        keep = batches_kept(batches, self.params.fraction, self.params.at_zero)
        if keep == batches:
            return None
        return Selection(usable, batches=keep)


def batches_kept(batches: int, fraction: float, at_zero: Literal["one", "all"] = "one") -> int:
    """How many of an epoch's ``batches`` are trained on."""
    keep = int(fraction * batches + 1e-9)  # 0.29 * 100 is 28.999... in floating point
    if keep == 0:
        keep = batches if at_zero == "all" else min(1, batches)
    return keep
