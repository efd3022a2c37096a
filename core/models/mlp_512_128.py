"""The fully connected network of the poisoning papers."""

from __future__ import annotations

from torch import nn

from fedbench.core.contract.model import Model
from fedbench.core.models.mlp import MLP


class MLP512x128(Model):
    """Flatten, Linear to 512, ReLU, Linear to 128, ReLU, Linear to the classes; torch's default initialisation.

    What FedPoisonMIA's released code trains on Texas100, Purchase100 and Location30 (docs/methods/federation.md#models); its text
    says "fully connected models" (Appendix E). 3,237,604 parameters for Texas100.
    """

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return MLP(hidden=(512, 128)).build(input_shape, n_classes)
