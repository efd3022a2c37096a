"""Architectures by name; announced through the same entry points as anybody's."""

from __future__ import annotations

from fedbench.core.contract.hooks import Component, hookimpl

_HERE = "fedbench.core.models"


@hookimpl
def fedbench_models():
    yield Component("mlp", f"{_HERE}.mlp:MLP", "fully connected network with ReLU on the flattened input")
    yield Component("cnn-small", f"{_HERE}.cnn_small:SmallCNN", "two 3x3 convolutions with GroupNorm, one hidden layer")
    yield Component(
        "resnet18", f"{_HERE}.resnet18:ResNet18", "ResNet18 with a 3x3 stem and GroupNorm, as in FedMIA",
        "He et al., CVPR 2016",
    )  # fmt: skip
    yield Component(
        "wrn-16-4", f"{_HERE}.wrn_16_4:WideResNet16x4", "Wide ResNet 16-4 with GroupNorm and ReLU before norm",
        "De et al., arXiv 2204.13650, 2022; Aerni et al., CCS 2024",
    )  # fmt: skip
    yield Component(
        "alexnet", f"{_HERE}.alexnet:AlexNet", "five convolutions, global max-pool, as in FedMIA",
        "Krizhevsky et al., NeurIPS 2012",
    )  # fmt: skip
    yield Component(
        "mlp-512-128", f"{_HERE}.mlp_512_128:MLP512x128", "two hidden layers of 512 and 128, as in FedPoisonMIA",
        "FedPoisonMIA's released code",
    )  # fmt: skip
    yield Component(
        "resnet20", f"{_HERE}.resnet20:ResNet20", "ResNet-20 for small images (16, 32, 64 channels), BatchNorm or GroupNorm",
        "He et al., CVPR 2016",
    )  # fmt: skip
    yield Component(
        "leaf-cnn", f"{_HERE}.leaf_cnn:LeafCNN", "two 5x5 convolutions and a hidden layer of 2048, LEAF's for FEMNIST",
        "Caldas et al., arXiv 1812.01097, 2018",
    )  # fmt: skip
