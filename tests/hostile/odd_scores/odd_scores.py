import numpy as np

from fedbench.core import Attack, Component, hookimpl


class Honest(Attack):
    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return -observations.of_target("loss")[-1]


class Complex(Honest):
    def score(self, observations, audit):
        return super().score(observations, audit) + 0j


class Text(Honest):
    def score(self, observations, audit):
        return np.array(["0.25"] * len(audit.ids))


class Masked(Honest):
    def score(self, observations, audit):
        return np.ma.masked_greater(super().score(observations, audit), 0)


@hookimpl
def fedbench_attacks():
    for name in ("Complex", "Text", "Masked"):
        yield Component(name.lower(), f"odd_scores:{name}", "no numbers")
