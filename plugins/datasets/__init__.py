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
    yield Component(
        "cifar10", f"{_HERE}.cifar:Cifar10", "60,000 colour images 32x32, 10 classes; downloaded, or class folders",
        "Krizhevsky, technical report 2009",
    )  # fmt: skip
    yield Component(
        "cifar100", f"{_HERE}.cifar:Cifar100", "60,000 colour images 32x32, 100 classes; downloaded, or class folders",
        "Krizhevsky, technical report 2009",
    )  # fmt: skip
    yield Component(
        "mnist", f"{_HERE}.mnist:Mnist", "70,000 handwritten digits 28x28, grey, 10 classes; downloaded",
        "LeCun et al., Proc. IEEE 1998",
    )  # fmt: skip
    yield Component(
        "fashion-mnist", f"{_HERE}.mnist:FashionMnist", "70,000 pictures of clothes 28x28, grey, 10 classes; downloaded",
        "Xiao et al., arXiv 2017",
    )  # fmt: skip
    yield Component(
        "tiny-imagenet", f"{_HERE}.tiny_imagenet:TinyImageNet", "110,000 colour images 64x64, 200 classes; downloaded",
        "Le and Yang, CS 231N 2015",
    )  # fmt: skip
    yield Component(
        "dermnet", f"{_HERE}.dermnet:DermNet", "19,500 photographs of skin diseases at 64x64, 23 classes; brought by you",
        "Dermnet; FedMIA's version, CVPR 2025",
    )  # fmt: skip
    yield Component(
        "image-folder", f"{_HERE}.image_folder:ImageFolder", "any folder of class folders, resized and split by seed",
    )  # fmt: skip
