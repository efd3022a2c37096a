"""The undefended federation and the two floors: members that upload nothing, members that train in another order."""

from __future__ import annotations

import torch

from fedbench.core import Defense, MemberContext, Selection


class NoDefense(Defense):
    """Plain FedAvg; the baseline of every delta."""


class FreeRider(Defense):
    """Every member's update is zero: nothing of its own can leak, and nothing of it is learnt.

    The floor of privacy on every board, and of the members' contribution: a defense that does no better than this in
    accuracy protects by not taking part. The server still counts the members' weights, as it would for honest zeros.
    """

    def local_train(self, ctx: MemberContext) -> None:
        """Not at all: the update is what was received minus what was received."""


class Placebo(Defense):
    """Plain local training with the samples in another order: what a defense that does nothing scores by chance.

    Its differences to the undefended federation are the noise of training, which every claimed difference must exceed.
    """

    def select(self, ctx: MemberContext) -> Selection | None:
        """All samples that are not held out, shuffled once more before the standard loop shuffles them."""
        usable = ctx.data.trainable
        return Selection(usable[torch.randperm(len(usable), generator=ctx.generator).to(usable.device)])
