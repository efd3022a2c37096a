"""Architectures by name; announced through the same entry points as anybody's."""

from __future__ import annotations

from fedbench.core.contract.hooks import Component, hookimpl

_HERE = "fedbench.core.models"


@hookimpl
def fedbench_models():
    yield Component("mlp", f"{_HERE}.mlp:MLP", "fully connected network with ReLU on the flattened input")
    yield Component("cnn-small", f"{_HERE}.cnn_small:SmallCNN", "two 3x3 convolutions with GroupNorm, one hidden layer")
