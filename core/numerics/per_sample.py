"""Per-sample gradients: by `vmap(grad)`, or one backward pass a sample where a model leaves no other way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.contract.errors import BatchStatistics
from fedbench.core.words.explain import named, one_line

# model -> mode (training or not) -> why `vmap` cannot go through it: found out once
_refusals: WeakKeyDictionary[nn.Module, dict[bool, str]] = WeakKeyDictionary()


def per_sample_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradients of each sample's cross-entropy at the model's current parameters, in the model's current mode.

    ``x``: [B, *input]; ``y``: [B]. Returns [B, P], P over the trainable ``model.parameters()`` in their order.
    A model that `vmap` cannot go through (recurrent layers, values that decide what is computed) gets one backward pass a
    sample: same result, slower; :func:`why_one_by_one` says so afterwards.
    Raises ``ValueError`` where batch statistics make a per-sample gradient undefined, ``RuntimeError`` where the model gives none
    for a sample alone.
    """
    refuse_batch_statistics(model)
    if len(x) == 0:  # vmap refuses an empty batch
        return x.new_zeros(0, sum(p.numel() for p in _trainable(model)), dtype=next(model.parameters()).dtype)
    refused = _refusals.setdefault(model, {})
    if model.training not in refused:
        before = random_state(x.device)
        try:
            return _at_once(model, x, y)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = one_line(named(error), 120)
        set_random_state(before)  # the attempt leaves no trace: what is drawn later does not depend on who asked first
        gradients = _one_by_one(model, x, y)
        refused[model.training] = why
        return gradients
    return _one_by_one(model, x, y)


def why_one_by_one(model: nn.Module, training: bool) -> str:
    """A sentence on why the model's per-sample gradients in this mode were taken one by one; empty where they were not."""
    why = _refusals.get(model, {}).get(training, "")
    mode = "training" if training else "eval"
    return why and f"per-sample gradients in {mode} mode were taken one by one: vmap cannot go through the model ({why})"


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _at_once(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(params: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, params, (sample.unsqueeze(0),))
        return cross_entropy(logits, label.unsqueeze(0))

    grads = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(params, x, y)
    return torch.cat([grads[name].flatten(1) for name in params], dim=1)


def _one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    trainable = _trainable(model)
    out = trainable[0].new_empty(len(x), sum(p.numel() for p in trainable))
    with torch.enable_grad(), _differentiable(model, x.device):
        for row, sample, label in zip(out, x.split(1), y.split(1), strict=True):
            try:
                loss = cross_entropy(model(sample), label)
                grads = torch.autograd.grad(loss, trainable, allow_unused=True, materialize_grads=True)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise RuntimeError(f"the model gives no gradient for a sample alone: {named(error)}") from error
            row.copy_(torch.cat([g.flatten() for g in grads]))
    return out


@contextmanager
def _differentiable(model: nn.Module, device: torch.device) -> Iterator[None]:
    """cuDNN's recurrent layers have no backward pass in eval mode; torch's own kernels have one."""
    recurrent = any(isinstance(layer, nn.RNNBase) and not layer.training for layer in model.modules())
    if device.type == "cuda" and recurrent:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    else:
        yield


def by_batch_statistics(layer: nn.Module) -> bool:
    """Whether a layer normalises by statistics of the batch."""
    return isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)


def refuse_batch_statistics(model: nn.Module) -> None:
    """Raise ``ValueError`` if a layer normalises by statistics of the batch: a sample's gradient is then undefined."""
    for name, layer in model.named_modules():
        if by_batch_statistics(layer):
            raise BatchStatistics(
                f"layer '{name}' ({type(layer).__name__}) normalises by batch statistics, so no sample has a "
                "gradient of its own: use eval mode with running statistics, or GroupNorm"
            )


RandomState = tuple[torch.device, torch.Tensor, torch.Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """Of torch's generators that a model on ``device`` may draw from, for :func:`set_random_state`."""
    return device, torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def seed_random_state(device: torch.device, seed: int) -> None:
    """Seed the generators that :func:`random_state` looks at."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def set_random_state(state: RandomState) -> None:
    """Put torch's generators back."""
    device, cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)
