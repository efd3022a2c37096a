"""Purchase100: what customers bought."""

from __future__ import annotations

from fedbench.plugins.datasets.records import Shape
from fedbench.plugins.datasets.tabular import MOST_BYTES, TabularSet, remote


class Purchase100(TabularSet):
    """197,324 customers, 600 binary features (a product bought or not), 100 clusters as classes; half to train on.

    Shokri et al., IEEE S&P 2017, from Kaggle's "Acquire Valued Shoppers" challenge. No published checksum: the content
    is verified. Read from ``dataset_purchase``, or from ``dataset_purchase.tgz`` (downloaded).
    """

    name = "purchase100"
    n_classes = 100
    shape = Shape(197_324, 600, 100)
    files = ("dataset_purchase",)
    remote = remote("dataset_purchase.tgz", MOST_BYTES, "https://www.comp.nus.edu.sg/~reza/files/dataset_purchase.tgz")
    size_mb = 100.0  # at most; the exact size is not published
    licence = "the rules of Kaggle's challenge; none stated with the derived set"
    citation = "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against machine learning " \
        "models. IEEE S&P, 2017; Kaggle: Acquire valued shoppers challenge, 2014"  # fmt: skip
