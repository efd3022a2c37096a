"""FedMIA's extension property: any measurement can be lifted to its test."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedbench.plugins.attacks.fedmia import FedMIA
from fedbench.plugins.attacks.measures import MEASURES, Measure, measure_of


class LiftedFedMIA(FedMIA):
    """FedMIA on the measurement ``measure``: one of the built-in ones, or any installed signal by its name.

    Built-in measurements already point the right way (a higher one speaks for a member); of a signal, ``sign`` says
    which way it points. ``grad-norm`` reads the global model alone and can be lifted only where the clients hold
    different ones. Source: Zhu et al. (CVPR 2025), section 3.3, remark 3.
    """

    class Params(FedMIA.Params):
        measure: str = Field(
            "grad-cosine",
            pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$",
            description=f"what is tested: {', '.join(MEASURES)}, or the name of an installed signal",
        )
        sign: Literal[1, -1] = Field(1, description="-1 where a LOWER value of the signal speaks for a member")

    @property
    def lifted(self) -> Measure:
        return measure_of(self.params.measure, self.params.sign)
