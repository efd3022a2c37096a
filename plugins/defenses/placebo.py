"""Placebo: members that train plainly, in another order."""

from __future__ import annotations

import torch

from fedbench.core import Defense, MemberContext, Selection


class Placebo(Defense):
    """Plain local training with the samples in another order: what a defense that does nothing scores by chance.

    Its differences to the undefended federation are the noise of training, which every claimed difference must exceed.
    """

    def select(self, ctx: MemberContext) -> Selection | None:
        """All samples that are not held out, shuffled once more before the standard loop shuffles them."""
        usable = ctx.data.trainable
        return Selection(usable[torch.randperm(len(usable), generator=ctx.generator).to(usable.device)])
