"""Tasks: how a model's outputs are trained, and what they are worth. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from numpy import ndarray

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from fedbench.core.contract.components import Data

EVERY_TASK = frozenset({"*"})
CLASSIFICATION = frozenset({"classification"})

Purpose = Literal["train", "audit", "test"]


@dataclass(frozen=True, kw_only=True)
class Utility:
    """A measure of what a model is worth, one number a test sample."""

    name: str
    values: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(outputs and target of the rows of ``test``, y [n]) -> [n] float, or bool of a share"""
    unit: str = ""
    low: float = 0.0
    """smallest possible value"""
    high: float = 1.0
    direction: Literal["lower", "higher"] = "higher"
    """which values are better"""


class Task:
    """Base of a task, which a data set names. Classes take no arguments.

    A model sees rows: the samples themselves or, where ``rows`` says so, several of each sample,
    such as a noised image for each of some times. A loss compares outputs with the ``target``.
    """

    name: str
    utilities: tuple[Utility, ...]
    """boards rank by the first"""
    views: int = 1
    """rows of a sample in an audit, adjacent"""
    y_dtype = "float32"
    least_outputs = 1

    def rows(
        self, x: Tensor, y: Tensor, purpose: Purpose, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Model inputs and target of samples ``x``, ``y``: by default these.

        One row a sample to ``train``, with draws from ``generator``; ``views`` rows a sample to
        ``audit``, and any fixed number to ``test``, both without draws, so that all models of all
        rounds see the same. Rows of a sample depend on no other sample.
        """
        return x, y

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Loss [B] of each row."""
        raise NotImplementedError(f"{type(self).__name__} does not implement losses")

    def loss(
        self, outputs: Tensor, target: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """Scalar loss of a batch."""
        losses = self.losses(outputs, target)
        return losses.mean() if reduction == "mean" else losses.sum()

    def output_gradient(self, outputs: Tensor, target: Tensor, weight: float | Tensor) -> Tensor:
        """Gradient, at ``outputs``, of the sum of ``weight`` (a number, or [B]) times each loss."""
        import torch

        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            total = (self.losses(leaf, target) * weight).sum()
        return torch.autograd.grad(total, leaf)[0]

    def sample_losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Loss [n] of each sample, the mean over its ``views``."""
        losses = self.losses(outputs, target)
        return losses if self.views == 1 else losses.reshape(-1, self.views).mean(1)

    def predict(self, outputs: Tensor) -> Tensor:
        """Prediction of each row; of rows of a ``test``, it may be one of each sample."""
        raise NotImplementedError(f"{type(self).__name__} does not implement predict")

    def attribute(self, y: ndarray) -> ndarray:
        """[n] int: the attribute by which a skewed division divides samples; by default ``y``."""
        return y

    def missing_in_data(self, data: Data) -> str:
        """What the data lack for this task, as the end of a sentence; empty if nothing."""
        return ""

    def missing_in_model(self, module: nn.Module) -> str:
        """What a model lacks for this task, as the end of a sentence; empty if nothing."""
        return ""


class Classification(Task):
    """Classes by logits [B, C]; the target is labels [B] int64 or probabilities [B, C]."""

    name = "classification"
    y_dtype = "int64"
    least_outputs = 2
    utilities = (
        Utility(name="accuracy", values=lambda outputs, target, y: outputs.argmax(1) == y),
    )

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy [B]."""
        from torch.nn.functional import cross_entropy

        if target.is_floating_point():
            target = target.to(outputs)
        return cross_entropy(outputs, target, reduction="none")

    def loss(
        self, outputs: Tensor, target: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """Mean or summed cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, target, reduction=reduction)

    def output_gradient(self, outputs: Tensor, target: Tensor, weight: float | Tensor) -> Tensor:
        """Gradient [..., C] by autograd's own kernels; ``weight`` and a label each row [...].

        Raises ``RuntimeError`` for a label that is no class.
        """
        import torch

        with torch.no_grad():
            logs = torch._log_softmax(outputs, -1, False)
            if isinstance(weight, torch.Tensor):
                weight = weight[..., None]
            if target.is_floating_point():
                # the type of their product, and of its gradient
                wide = target.to(torch.promote_types(target.dtype, logs.dtype))
                g = (wide * -weight).to(logs.dtype)
            elif outputs.is_cuda and isinstance(weight, torch.Tensor):
                g = one_hot_product(logs, target, -weight)
            else:
                g = torch.zeros_like(logs).scatter_(-1, target[..., None], -weight)
            return torch._log_softmax_backward_data(g, logs, -1, outputs.dtype)

    def predict(self, outputs: Tensor) -> Tensor:
        """Class of the largest logit."""
        return outputs.argmax(1)


def one_hot_product(like: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """``weight`` [..., 1] at the label of each row of ``like`` [..., C], else 0. On a GPU
    ``scatter_`` of a tensor is not deterministic, that of a number is.
    """
    return like.new_zeros(like.shape).scatter_(-1, target[..., None], 1) * weight


DEFAULT_TASK = Classification()


def unserved(task: Task, tasks: frozenset[str], component: str) -> str:
    """Reason why a component that serves ``tasks`` does not serve ``task``; empty if it does."""
    if tasks & {task.name, *EVERY_TASK}:
        return ""
    return f"{component} serves {', '.join(sorted(tasks))}, and the data's task is {task.name}"
