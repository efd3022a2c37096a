"""Which local model the loss attacks of FedMIA read: the uploaded one, or as it was before its protection."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedbench.core import Params
from fedbench.plugins.attacks.measures import MEASURES, Measure, signal


class LossOn(Params):
    """Parameter of ``loss-series``, ``blackbox-loss`` and ``fedmia-i``.

    ``pre_defense`` is the loss of the local model before the client protected its upload, which no server ever sees.
    FedMIA's released code reads it in all three under sparsification and quantisation, which change the uploaded copy
    alone. Noise it adds to the model itself before it measures: under ``perturb`` and ``grad-noise`` that code is
    ``uploaded``.
    """

    loss_on: Literal["uploaded", "pre_defense"] = Field(
        "uploaded", description="which local model: the uploaded one, or as it was before its protection (faithful)"
    )

    @property
    def negative_loss(self) -> Measure:
        """-CE on the chosen model, for every client."""
        return MEASURES["loss"] if self.loss_on == "uploaded" else signal("loss@pre-defense", -1)
