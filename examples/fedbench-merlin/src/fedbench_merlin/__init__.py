"""Announces the attack 'merlin' and the signal 'loss-rises' that it reads."""

from fedbench.core import Component, hookimpl

_PAPER = "Jayaraman et al., PoPETs 2021"


@hookimpl
def fedbench_signals():
    yield Component(
        name="loss-rises",
        target="fedbench_merlin.loss_rises:LossRises",
        summary="how often noise on the input raises the loss",
        paper=_PAPER,
    )


@hookimpl
def fedbench_attacks():
    yield Component(
        name="merlin",
        target="fedbench_merlin.merlin:Merlin",
        summary="how often the loss rises around the sample, averaged over rounds",
        paper=_PAPER,
    )
