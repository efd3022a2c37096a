"""A defense whose batches are replayed trains as it does step by step."""

from __future__ import annotations

import torch

from fedbench.core.contract.defense import CAPTURABLE, declared_capturable, overrides
from fedbench.core.federation.captured import CapturedSteps
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.replay import CpuOperations
from fedbench.testing.results import Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials.defense import run
from fedbench.testing.trials.trial import reference


def replays_the_same(subject: Subject) -> None:
    """What it declares capturable is a phase of a batch that it has, and gives the same bits when recorded and replayed."""
    made = subject.make()
    names = sorted(map(str, made.capturable))
    if not names:
        raise Skipped("it declares no phase capturable")
    if idle := [n for n in names if n not in CAPTURABLE or not (overrides(made, n) and declared_capturable(made, n))]:
        raise subject.failed(f"capturable names {', '.join(idle)}; expected phases that it overrides, of {', '.join(CAPTURABLE)}")
    reference(subject)
    begun: list[CapturedSteps] = []

    def recorded(setup: Setup) -> Training:
        training = Training(setup)
        begun.append(CapturedSteps(setup, training.trainer.optimizer, CpuOperations()))
        training.trainer.captured = begun[-1]
        return training

    wanted, found = run(made), run(subject.make(), kind=recorded)
    if begun[-1].note:
        raise subject.failed(f"{begun[-1].note}; expected that its {' and '.join(names)} can be recorded: drop the declaration")
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor) and not torch.equal(value, found[name]):
            raise subject.failed(
                f"replayed, {name} has other bits; expected that {' and '.join(names)} use their arguments alone, and nothing "
                "that changes from step to step"
            )
