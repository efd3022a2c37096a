"""Fully connected network."""

from __future__ import annotations

from math import prod

from pydantic import Field, PositiveInt
from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.contract.params import Params as Base


class MLP(Model):
    """Flatten, then Linear + ReLU per hidden width, then Linear to the classes."""

    class Params(Base):
        hidden: tuple[PositiveInt, ...] = Field((256, 128), description="widths of the hidden layers, in units")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for hidden in self.params.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, n_classes))
