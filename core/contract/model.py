"""What a model plugin builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.core.contract.params import Configured

if TYPE_CHECKING:
    from torch import nn


class Model(Configured):
    """Base of a model plugin: an architecture by name.

    Samples first: row i of the logits is sample i's. In eval mode it depends on no other sample and on no random number, so that
    two samples that are swapped swap their rows, and one that is changed, left out or alone changes no other row; the input is
    not written to. All of it is checked on samples of the data set before anything is trained. A module may turn the axes
    inside; a recurrent or attention layer that gets [B, T, d] as it is needs ``batch_first=True``.

    Per-sample gradients (the signals of the gradient, dp-sgd) are then right for any architecture, fastest for chains of linear,
    convolutional, normalising and embedding layers with the samples on the first axis of each. Where `vmap` cannot go through
    it, as with recurrent layers, they take one backward pass a sample, and the records say so.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """A fresh module: [B, *input_shape] -> logits [B, n_classes].

        The engine seeds torch's generator before the call, so ordinary initialisers are reproducible.
        Raises ``UserError`` when the architecture does not fit the input.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement build(input_shape, n_classes)")
