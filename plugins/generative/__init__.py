"""A generative federation: clients share embeddings of classes for a frozen diffusion model.

FedMIA (Zhu et al., CVPR 2025), Table 1, last rows, and Figure 3; FedEmbedding is Liang et al. (ECCV
2024).
"""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.generative"
_PAPER = "Liang et al., ECCV 2024; Zhu et al., FedMIA, CVPR 2025"


@hookimpl
def fedbench_datasets() -> Iterator[Component]:
    yield Component(
        "denoising",
        f"{_HERE}.images:DenoisingImages",
        "images of ten classes to be denoised, with a public part; of an installed image set",
        _PAPER,
    )


@hookimpl
def fedbench_models() -> Iterator[Component]:
    yield Component(
        "denoiser-mlp",
        f"{_HERE}.denoisers:MLPDenoiser",
        "two hidden layers on image, time and class embedding; pretrained, embeddings are trained",
        _PAPER,
    )
    yield Component(
        "denoiser-unet",
        f"{_HERE}.denoisers:UNetDenoiser",
        "small U-Net on image, time and class embedding; pretrained, embeddings are trained",
        f"{_PAPER}; Ho et al., NeurIPS 2020",
    )


@hookimpl
def fedbench_signals() -> Iterator[Component]:
    yield Component(
        "generated",
        f"{_HERE}.generated:Generated",
        "image sampled from a model's embedding of a sample's class, and the sample",
        "Song et al., ICLR 2021",
    )


@hookimpl
def fedbench_analyses() -> Iterator[Component]:
    yield Component(
        "generated-images",
        f"{_HERE}.generated:GeneratedImages",
        "images from uploaded embeddings beside members that an attack names; accuracy by classes",
        "Zhu et al., FedMIA, CVPR 2025, Figure 3",
    )
