"""Built-in datasets."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.datasets"


@hookimpl
def fedbench_datasets():
    yield Component(
        "digits", f"{_HERE}.digits:Digits", "1,797 handwritten digits, 8x8 grey, 10 classes; embedded, no download",
        "Alpaydin and Kaynak, UCI 1998",
    )  # fmt: skip
