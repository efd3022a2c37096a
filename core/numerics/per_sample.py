"""Per-sample gradients by `vmap(grad)`: exact for any model, slow; the reference of every shortcut."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.core.contract.errors import BatchStatistics


def per_sample_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradients of each sample's cross-entropy at the model's current parameters, in the model's current mode.

    ``x``: [B, *input]; ``y``: [B]. Returns [B, P], P over the trainable ``model.parameters()`` in their order.
    Raises ``ValueError`` where batch statistics make a per-sample gradient undefined.
    """
    refuse_batch_statistics(model)
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if len(x) == 0:  # vmap refuses an empty batch
        return torch.cat([p.new_zeros(0, p.numel()) for p in params.values()], dim=1)

    def loss(params: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, params, (sample.unsqueeze(0),))
        return cross_entropy(logits, label.unsqueeze(0))

    grads = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(params, x, y)
    return torch.cat([grads[name].flatten(1) for name in params], dim=1)


def refuse_batch_statistics(model: nn.Module) -> None:
    """Raise ``ValueError`` if a layer normalises by statistics of the batch: a sample's gradient is then undefined."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise BatchStatistics(
                f"layer '{name}' ({type(layer).__name__}) normalises by batch statistics, so no sample has a "
                "gradient of its own: use eval mode with running statistics, or GroupNorm"
            )
