"""Federations that were trained elsewhere: their data, their model and their rounds, as a data set,
a model and a source of rounds.
"""

from __future__ import annotations

from fedbench.core.contract.hooks import Component, hookimpl

_HERE = "fedbench.core.recorded.components"


@hookimpl
def fedbench_datasets():
    yield Component(
        "recorded",
        f"{_HERE}:RecordedDataset",
        "a federation that was trained elsewhere, a folder of files; see `fedbench audit`",
    )


@hookimpl
def fedbench_models():
    yield Component(
        "recorded",
        f"{_HERE}:RecordedModel",
        "what a function of your own returns; see `fedbench audit`",
    )
