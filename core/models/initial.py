"""Initial weights by name, for models whose papers and code disagree on them."""

from __future__ import annotations

from typing import Literal

from torch import nn

Initial = Literal["default", "normal-0.01", "glorot"]
INITIAL = "initial weights. normal-0.01: all of them N(0, 0.01^2); glorot: Glorot and Bengio's uniform, biases zero; default: "


def initialise(module: nn.Module, how: Initial) -> nn.Module:
    """``module`` itself, with the weights and biases of its convolutions and linear layers drawn anew, or left (default)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            if how == "normal-0.01":
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.normal_(layer.bias, std=0.01)
            elif how == "glorot":
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    return module
