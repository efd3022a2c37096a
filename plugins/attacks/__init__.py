"""Built-in attacks."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.attacks"


@hookimpl
def fedbench_attacks():
    yield Component(
        "loss-series", f"{_HERE}.loss_series:LossSeries", "mean negative loss on the target's uploaded models",
        "Yeom et al., CSF 2018",
    )  # fmt: skip
