"""What claims name and no shipped suite has yet: delete an entry with the suite, or the part of one, that brings it."""

from __future__ import annotations

_PARTIAL = ("none", "grad-sparse", "grad-noise", "dp-sgd", "mixup", "relaxloss", "hamp", "cofedmid")
_ATTACKS = ("loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "seqmia")

# suite -> setting -> (coalitions, rows, attack -> view)
COMING = {
    "partial_defense": {"digits": (("uniform",), (), {})},
    "partial_defense_location30": {
        "location30": (("pair", "half", "uniform"), _PARTIAL, dict.fromkeys(_ATTACKS, "server")),
    },
    "cofedmid_ablations": {
        "digits": (
            ("half",),
            (
                "none", "cofedmid", "partition", "partition+compensation", "random-assignment", "decay-cosine",
                "decay-exponential", "decay-polynomial", "constant-min", "constant-mean", "constant-max", "recycle-random",
                "recycle-sequential",
                "no-confidence", "independent", "limit-5", "limit-20", "limit-30",
            ),
            {
                **dict.fromkeys(_ATTACKS, "server"),
                **dict.fromkeys(
                    ("loss-series-coalition", "fedmia-ii-coalition", "fta-c-coalition", "seqmia-coalition"), "coalition"
                ),
            },
        ),
    },
}  # fmt: skip
