"""The built-in architectures, announced through the same hook as any plugin's."""

from __future__ import annotations

from fedbench.core.contract.hooks import Component, hookimpl

_HERE = "fedbench.core.models"


@hookimpl
def fedbench_models():
    yield Component(
        "mlp", f"{_HERE}.sequential:MLP", "fully connected network with ReLU on the flattened input"
    )
    yield Component(
        "cnn-small",
        f"{_HERE}.sequential:SmallCNN",
        "two 3x3 convolutions with GroupNorm, one hidden layer",
    )
    yield Component(
        "resnet18",
        f"{_HERE}.residual:ResNet18",
        "ResNet18 with a 3x3 stem and GroupNorm, as in FedMIA",
        "He et al., CVPR 2016",
    )
    yield Component(
        "wrn-16-4",
        f"{_HERE}.residual:WideResNet16x4",
        "Wide ResNet 16-4 with GroupNorm and ReLU before norm",
        "De et al., arXiv 2204.13650, 2022; Aerni et al., CCS 2024",
    )
    yield Component(
        "alexnet",
        f"{_HERE}.sequential:AlexNet",
        "five convolutions, global max-pool, as in FedMIA",
        "Krizhevsky et al., NeurIPS 2012",
    )
    yield Component(
        "mlp-512-128",
        f"{_HERE}.sequential:MLP512x128",
        "two hidden layers of 512 and 128, as in FedPoisonMIA",
        "FedPoisonMIA's released code",
    )
    yield Component(
        "resnet20",
        f"{_HERE}.residual:ResNet20",
        "ResNet-20 for small images (16, 32, 64 channels), BatchNorm or GroupNorm",
        "He et al., CVPR 2016",
    )
    yield Component(
        "leaf-cnn",
        f"{_HERE}.sequential:LeafCNN",
        "two 5x5 convolutions and a hidden layer of 2048, LEAF's for FEMNIST",
        "Caldas et al., arXiv 1812.01097, 2018",
    )
    paper = "Ahmed et al., MemberShield, Neural Networks 2025"
    yield Component(
        "membershield-cnn2",
        f"{_HERE}.sequential:MemberShieldCNN2",
        "two 5x5 convolutions (20, 50) and a hidden layer of 500, MemberShield's for CIFAR-10",
        paper,
    )
    yield Component(
        "membershield-cnn3",
        f"{_HERE}.sequential:MemberShieldCNN3",
        "three convolutions (128, 64, 64) and hidden layers of 256, 64, 32, MemberShield's for "
        "CH-MNIST",
        paper,
    )
    yield Component(
        "membershield-mlp4",
        f"{_HERE}.sequential:MemberShieldMLP4",
        "hidden layers of 1024, 512, 256, 128 with tanh, MemberShield's for Purchase100",
        paper,
    )
    yield Component(
        "vgg16",
        f"{_HERE}.sequential:VGG16",
        "VGG16 for small images: 13 convolutions, two hidden layers of 4096, no norm",
        "Simonyan and Zisserman, ICLR 2015",
    )
    yield Component(
        "vgg19",
        f"{_HERE}.sequential:VGG19",
        "VGG19 for small images: 16 convolutions, two hidden layers of 4096, no norm",
        "Simonyan and Zisserman, ICLR 2015",
    )
    yield Component(
        "torchvision",
        f"{_HERE}.vision:TorchvisionModel",
        "any classification architecture of torchvision by its name, BatchNorm or GroupNorm",
    )
