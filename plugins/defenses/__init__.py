"""Built-in defenses."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.defenses"


@hookimpl
def fedbench_defenses():
    yield Component("none", f"{_HERE}.none:NoDefense", "plain FedAvg: nobody defends", "McMahan et al., AISTATS 2017")
