"""Built-in datasets."""

from __future__ import annotations

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.datasets"


@hookimpl
def fedbench_datasets():
    yield Component(
        "digits",
        f"{_HERE}.handwriting:Digits",
        "1,797 handwritten digits, 8x8 grey, 10 classes; embedded, no download",
        "Alpaydin and Kaynak, UCI 1998",
    )
    yield Component(
        "cifar10",
        f"{_HERE}.cifar:Cifar10",
        "60,000 colour images 32x32, 10 classes; downloaded, or class folders",
        "Krizhevsky, technical report 2009",
    )
    yield Component(
        "cifar100",
        f"{_HERE}.cifar:Cifar100",
        "60,000 colour images 32x32, 100 classes; downloaded, or class folders",
        "Krizhevsky, technical report 2009",
    )
    yield Component(
        "mnist",
        f"{_HERE}.handwriting:Mnist",
        "70,000 handwritten digits 28x28, grey, 10 classes; downloaded",
        "LeCun et al., Proc. IEEE 1998",
    )
    yield Component(
        "fashion-mnist",
        f"{_HERE}.handwriting:FashionMnist",
        "70,000 pictures of clothes 28x28, grey, 10 classes; downloaded",
        "Xiao et al., arXiv 2017",
    )
    yield Component(
        "tiny-imagenet",
        f"{_HERE}.folders:TinyImageNet",
        "110,000 colour images 64x64, 200 classes; downloaded",
        "Le and Yang, CS 231N 2015",
    )
    yield Component(
        "dermnet",
        f"{_HERE}.folders:DermNet",
        "19,500 photographs of skin diseases at 64x64, 23 classes; brought by you",
        "Dermnet; FedMIA's version, CVPR 2025",
    )
    yield Component(
        "image-folder",
        f"{_HERE}.folders:ImageFolder",
        "any folder of class folders, resized and split by seed",
    )
    yield Component(
        "table",
        f"{_HERE}.columns:Table",
        "any CSV, npz or Parquet file with a column for the class and, if you like, the client",
    )
    yield Component(
        "texas100",
        f"{_HERE}.tabular:Texas100",
        "67,330 hospital stays, 6,169 binary features, 100 classes; downloaded",
        "Shokri et al., IEEE S&P 2017",
    )
    yield Component(
        "purchase100",
        f"{_HERE}.tabular:Purchase100",
        "197,324 customers' purchases, 600 binary features, 100 classes; downloaded",
        "Shokri et al., IEEE S&P 2017",
    )
    yield Component(
        "location30",
        f"{_HERE}.tabular:Location30",
        "5,010 people's check-ins in Bangkok, 446 binary features, 30 classes; downloaded",
        "Shokri et al., IEEE S&P 2017",
    )
    yield Component(
        "stl10",
        f"{_HERE}.cifar:Stl10",
        "13,000 labelled colour images 96x96, 10 classes; downloaded (2.6 GB)",
        "Coates et al., AISTATS 2011",
    )
    yield Component(
        "fer2013",
        f"{_HERE}.tables:Fer2013",
        "35,887 faces 48x48, grey, 7 expressions; brought by you",
        "Goodfellow et al., ICONIP 2013",
    )
    yield Component(
        "femnist",
        f"{_HERE}.handwriting:Femnist",
        "814,255 handwritten digits and letters 28x28, grey, 62 classes; EMNIST, downloaded",
        "Caldas et al., arXiv 2018; Cohen et al., IJCNN 2017",
    )
    yield Component(
        "femnist-writers",
        f"{_HERE}.handwriting:WritersFemnist",
        "LEAF's FEMNIST with its writers as clients, 62 classes; brought by you",
        "Caldas et al., arXiv 2018",
    )
    yield Component(
        "ch-mnist",
        f"{_HERE}.tables:ChMnist",
        "5,000 tiles of colorectal tissue at 64x64, grey, 8 classes; downloaded, or Kaggle's table "
        "brought by you",
        "Kather et al., Scientific Reports 2016",
    )
