"""What a model plugin builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.core.contract.params import Configured

if TYPE_CHECKING:
    from torch import nn


class Model(Configured):
    """Base of a model plugin: an architecture by name."""

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """A fresh module: [B, *input_shape] -> logits [B, n_classes].

        The engine seeds torch's generator before the call, so ordinary initialisers are reproducible.
        Raises ``UserError`` when the architecture does not fit the input.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement build(input_shape, n_classes)")
