"""Self-distillation: upload a student that learnt from a teacher as well as from the labels."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch.nn.functional import log_softmax

from fedbench.core import Batch, Defense, MemberContext, Params


class SelfDistillation(Defense):
    """Each round train a teacher from the received model, then a student from the received model with the teacher's help.

    The student's loss is (1 - alpha) CE + alpha T^2 KL(teacher || student), both softened by the temperature T, means over
    the batch (Hinton et al. 2015, section 2). Teacher and student train all local epochs, on the same samples, each in an
    order of its own; the student alone is uploaded. The teacher answers what the student is shown, after all transforms.
    Source: the KD baseline of MemberShield (section 7.3), after Shejwalkar & Houmansadr, AAAI 2021; its T: 10, and 3 for
    Purchase100. Its code hands the divergence its arguments in the other order (``divergence: student-teacher``).
    """

    class Params(Params):
        alpha: float = Field(0.5, ge=0, le=1, description="weight of the divergence; the cross-entropy has the rest")
        temperature: float = Field(10.0, gt=0, description="T, by which logits are divided before the softmax")
        divergence: Literal["teacher-student", "student-teacher"] = Field(
            "teacher-student", description="KL(teacher || student), or the other way round (released code)"
        )

    def local_train(self, ctx: MemberContext) -> None:
        ctx.train()
        tensors = (*ctx.model.named_parameters(), *ctx.model.named_buffers())
        ctx.memory["teacher"] = {name: t.detach().clone() for name, t in tensors}
        ctx.restart()
        ctx.train()
        del ctx.memory["teacher"]  # of this round's received model

    def loss(self, logits: torch.Tensor, batch: Batch, ctx: MemberContext) -> torch.Tensor:
        of_labels = super().loss(logits, batch, ctx)
        if "teacher" not in ctx.memory:
            return of_labels
        p = self.params
        taught = distillation(logits, self._teacher(batch.x, ctx), p.temperature, p.divergence == "student-teacher")
        return (1 - p.alpha) * of_labels + p.alpha * taught

    def _teacher(self, x: torch.Tensor, ctx: MemberContext) -> torch.Tensor:
        """[B, C] logits in eval mode, constants."""
        was_training = ctx.model.training
        ctx.model.eval()
        try:
            with torch.no_grad():
                answer: torch.Tensor = torch.func.functional_call(ctx.model, ctx.memory["teacher"], (x,))
                return answer
        finally:
            ctx.model.train(was_training)


def distillation(student: torch.Tensor, teacher: torch.Tensor, temperature: float, reverse: bool = False) -> torch.Tensor:
    """T^2 KL(teacher || student) of logits [B, C], the mean over the batch; ``reverse``: T^2 KL(student || teacher).

    The factor keeps the gradient's size as T grows (Hinton et al. 2015, section 2.1)."""
    p, q = log_softmax(teacher / temperature, 1), log_softmax(student / temperature, 1)
    if reverse:
        p, q = q, p
    return temperature**2 * (p.exp() * (p - q)).sum(1).mean()
