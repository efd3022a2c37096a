"""Texas100: hospital stays."""

from __future__ import annotations

from fedbench.plugins.datasets.records import Shape
from fedbench.plugins.datasets.tabular import MOST_BYTES, TabularSet, remote


class Texas100(TabularSet):
    """67,330 hospital stays, 6,169 binary features, the 100 most frequent procedures as classes; half of them to train on.

    Shokri et al., IEEE S&P 2017, from the Texas hospital discharge data. FedPoisonMIA (Appendix B) writes 6,170
    features; the published file has 6,169, and so has the paper's code. No published checksum: the content is verified.
    Read from ``texas/100/feats`` and ``texas/100/labels``, or from ``dataset_texas.tgz`` (downloaded). Float32 features
    of the default splits take 1.7 GB of memory; ``train``, ``test`` and ``holdout`` take fewer.
    """

    name = "texas100"
    n_classes = 100
    shape = Shape(67_330, 6_169, 100)
    files = ("texas/100/feats", "texas/100/labels")
    remote = remote("dataset_texas.tgz", MOST_BYTES, "https://www.comp.nus.edu.sg/~reza/files/dataset_texas.tgz")
    size_mb = 100.0  # at most; the exact size is not published
    licence = "Texas DSHS's terms for its public use data file; none stated with the derived set"
    citation = "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against machine learning " \
        "models. IEEE S&P, 2017; Texas DSHS: hospital discharge data public use data file"  # fmt: skip
