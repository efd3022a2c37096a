"""Per-sample gradients as rows: along a chain of layers, by `vmap(grad)`, or sample by sample."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.contract.errors import BatchStatistics
from fedbench.core.contract.task import DEFAULT_TASK, Task
from fedbench.core.numerics.chain import unfilled, walked
from fedbench.core.numerics.layers import affine_rows, padded
from fedbench.core.numerics.sums import per_row_weights
from fedbench.core.words import error_text, one_line

# model -> mode (training or not) -> why `vmap` does not support it
_refusals: WeakKeyDictionary[Module, dict[bool, str]] = WeakKeyDictionary()


def per_sample_gradients(
    model: Module,
    x: Tensor,
    y: Tensor,
    task: Task = DEFAULT_TASK,
) -> Tensor:
    """Gradients [B, P] of the loss of each row at the model's current parameters, in its current
    mode.

    ``x``: [B, *input]; ``y``: [B, ...] target; P over the trainable ``model.parameters()`` in their
    order. A model that `vmap` does not support (recurrent layers, data-dependent control flow)
    takes one backward pass a sample: same result, slower; :func:`why_one_by_one` then gives the
    reason.
    Raises ``ValueError`` where batch statistics make a per-sample gradient undefined,
    ``RuntimeError`` where the model gives none for a sample alone.
    """
    refuse_batch_statistics(model)
    if len(x) == 0:  # vmap refuses an empty batch
        trainable = trainable_of(model)
        return trainable[0].new_zeros(0, sum(p.numel() for p in trainable))
    refused = _refusals.setdefault(model, {})
    if model.training not in refused:
        before = random_state(x.device)
        try:
            return _at_once(model, x, y, task)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = one_line(error_text(error), 120)
        set_random_state(before)  # later draws must not depend on this attempt
        gradients = _one_by_one(model, x, y, task)
        refused[model.training] = why
        return gradients
    return _one_by_one(model, x, y, task)


def why_one_by_one(model: Module, training: bool) -> str:
    """A sentence on why the model's per-sample gradients in this mode were taken one by one; empty
    where they were not.
    """
    why = _refusals.get(model, {}).get(training, "")
    if not why:
        return ""
    mode = "training" if training else "eval"
    return (
        f"per-sample gradients in {mode} mode were taken one by one: vmap cannot go through the "
        f"model ({why})"
    )


def trainable_of(model: Module) -> list[nn.Parameter]:
    """Parameters in their order, without frozen ones."""
    return [p for p in model.parameters() if p.requires_grad]


def _at_once(
    model: Module,
    x: Tensor,
    y: Tensor,
    task: Task,
) -> Tensor:
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(params: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(model, params, (sample.unsqueeze(0),))
        return task.loss(outputs, label.unsqueeze(0))

    gradients_of = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    grads = gradients_of(params, x, y)
    return torch.cat([grads[name].flatten(1) for name in params], dim=1)


def _one_by_one(
    model: Module,
    x: Tensor,
    y: Tensor,
    task: Task,
) -> Tensor:
    trainable = trainable_of(model)
    out = trainable[0].new_empty(len(x), sum(p.numel() for p in trainable))
    # cuDNN's recurrent layers have no backward pass in eval mode; torch's own kernels have one
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for row, sample, label in zip(out, x.split(1), y.split(1), strict=True):
            try:
                loss = task.loss(model(sample), label)
                grads = torch.autograd.grad(
                    loss, trainable, allow_unused=True, materialize_grads=True
                )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise RuntimeError(
                    f"the model gives no gradient for a sample alone: {error_text(error)}"
                ) from error
            row.copy_(torch.cat([g.flatten() for g in grads]))
    return out


def refuse_batch_statistics(model: Module) -> None:
    """Raise ``ValueError`` if a layer normalises by statistics of the batch: a sample's gradient is
    then undefined.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise BatchStatistics(
                f"layer '{name}' ({type(layer).__name__}) normalises by batch statistics, so no "
                "sample has a gradient of its own: use eval mode with running statistics, or "
                "GroupNorm"
            )


RandomState = tuple[torch.device, Tensor, Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """State of the generators that a model on ``device`` may use, for :func:`set_random_state`."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return device, torch.get_rng_state(), cuda


def set_random_state(state: RandomState) -> None:
    """Restore torch's generators."""
    device, cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


# --- along a chain of layers ----------------------------------------------------------------------


@torch.no_grad()
def gradient_rows(
    model: Module,
    x: Tensor,
    y: Tensor,
    task: Task = DEFAULT_TASK,
) -> Tensor:
    """Per-sample gradients [B, P] of ``x`` [B, *input] and ``y`` [B, ...], to rounding those of
    ``per_sample_gradients``, to which models that are no chain of layers are left.

    For a small model ``vmap`` takes several times as long to trace the model as to compute, in
    every call, and what it imports before the first one a second.
    """
    with unfilled():  # every element is written: a chain reaches all parameters
        layers = None
        if len(x):
            layers = walked(model, x, y, task=task)
        if layers is None:
            return per_sample_gradients(model, x, y, task)
        sizes = [p.numel() for p in model.parameters()]
        out = x.new_empty(len(x), sum(sizes), dtype=layers[0][2].dtype)
        parts = out.split(sizes, dim=1)
        into = {id(p): part for p, part in zip(model.parameters(), parts, strict=True)}
        for layer, a, b in layers:
            _fill_weight(layer, a, b, into[id(layer.weight)])
            if layer.bias is not None:
                bias = b if b.dim() == 2 else b.flatten(2).sum(2)
                into[id(layer.bias)].copy_(bias)
        return out


def _fill_weight(
    layer: Any,
    a: Tensor,
    b: Tensor,
    weight: Tensor,
) -> None:
    if isinstance(layer, nn.Linear):
        torch.mul(b[:, :, None], a[:, None], out=weight.unflatten(1, layer.weight.shape))
    elif isinstance(layer, nn.Conv2d):
        weight.copy_(per_row_weights(layer, padded(layer, a), b))
    else:
        weight.copy_(affine_rows(layer, a, b)[0])
