"""Location30: check-ins in Bangkok."""

from __future__ import annotations

from fedbench.plugins.datasets.records import Shape
from fedbench.plugins.datasets.tabular import TabularSet, remote


class Location30(TabularSet):
    """5,010 people, 446 binary features (a region or kind of place visited or not), 30 clusters as classes; half to train on.

    Shokri et al., IEEE S&P 2017, from Foursquare check-ins in Bangkok. No published checksum: the content is verified.
    Read from ``bangkok`` or ``location30/bangkok``, or from ``dataset_location.tgz`` (downloaded).
    """

    name = "location30"
    n_classes = 30
    shape = Shape(5_010, 446, 30)
    files = ("bangkok",)
    remote = remote("dataset_location.tgz", 5_000_000)  # more than the 4,492,469 bytes it holds
    size_mb = 0.3
    licence = "none stated; the authors ask to be cited"
    citation = "R. Shokri, M. Stronati, C. Song, V. Shmatikov: Membership inference attacks against machine learning " \
        "models. IEEE S&P, 2017; D. Yang, D. Zhang, B. Qu: Participatory cultural mapping based on collective behavior " \
        "data in location-based social networks. ACM TIST, 2016"  # fmt: skip
