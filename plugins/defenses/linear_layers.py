"""The fully connected layers of a model, for what acts on the last of them."""

from __future__ import annotations

from torch import nn

from fedbench.core import UserError


def last_linear(model: nn.Module, count: int | None, who: str) -> list[nn.Linear]:
    """The last ``count`` linear layers in the order in which the model names them; None: all.

    Raises ``UserError``, in the name of ``who``, where the model has none or fewer.
    """
    found = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if len(found) < (count or 1):
        has = f"only {len(found)}" if found else "none"
        raise UserError(
            f"{who} acts on {f'the last {count}' if count else 'all'} fully connected layers (torch.nn.Linear); the model "
            f"{type(model).__name__} has {has}: " + (f"use layers: {len(found)}" if found else "choose another model or defense")
        )
    return found if count is None else found[-count:]
