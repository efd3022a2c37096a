"""What a plan is made of: a row of the suite, and what is kept of its data - never the data themselves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from fedbench.core.apart.channel import at_work
from fedbench.core.contract.dataset import Data
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.plugin_checks import repeated_share, require_data, require_room
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.scene import make_scene
from fedbench.core.population.audit import split_digest
from fedbench.core.population.target import Target
from fedbench.core.registry.ask import long_patience
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.suite import Adversary, Setting
from fedbench.core.store.stems import stem

Answer = TypeVar("Answer")
Made = tuple[ComponentUse, Any]  # what a suite lists, and the component


@dataclass(frozen=True, kw_only=True)
class Row:
    """A defense in a coalition of a setting, with who judges it. ``i``: which setting; ``members`` of the coalition, and of each
    of several ``coalitions``; ``observed``: of an undefended row that stands beside a coalition's, the clients of that one."""

    i: int
    coalition: str
    members: tuple[int, ...]
    coalitions: tuple[tuple[int, ...], ...]
    use: ComponentUse
    defense: Defense
    attacks: list[Made]
    adversary: Adversary | None
    observed: tuple[int, ...] = ()

    def require_members(self) -> None:
        """Raise ``UserError`` for a coalition, or one of several, of fewer clients than the defense takes."""
        least = self.defense.least_members
        for group in self.coalitions or (self.members,):
            if 0 < len(group) < least:
                alone = f"client {group[0]} is" if len(group) == 1 else f"clients {', '.join(map(str, group))} are"
                raise UserError(
                    f"'{self.use.label}' takes {least} clients or more, and in the coalition '{self.coalition}' {alone} alone: "
                    "add clients to it, or choose a mode of the defense in which every member defends by itself"
                )


@dataclass(frozen=True)
class Loaded:
    """Data with what a job keeps of it: its digest, and which share of the hold-out repeats training samples."""

    data: Data
    digest: str
    repeated: float


def once(question: Callable[[], Answer]) -> Callable[[], Answer]:
    """Asks when it is first called, and then gives the same answer, or raises the same error, every time."""
    answers: list[Future[Answer]] = []

    def ask() -> Answer:
        if not answers:
            answers.append(Future())
            try:
                answers[0].set_result(question())
            except (Exception, SystemExit) as error:  # somebody's code
                answers[0].set_exception(error)
        return answers[0].result()

    return ask


def load_data(dataset: ComponentUse, seed: int) -> Loaded:
    """A data set of one seed, if it can be trained on; raises ``UserError``."""
    made = dataset.make()[0]
    with at_work(f"dataset {dataset}", long_patience()):
        data = require_data(made.load(seed), dataset.name)
    return Loaded(data, data.digest(), repeated_share(data, dataset.name))


def split_of(data: Data, setting: Setting, targets: tuple[Target, ...], seed: int, **who: Any) -> str:
    """The digest of who trains on what and of whom is asked about: all that is kept of a scene."""
    require_room(len(targets), setting, len(data.train_y), len(data.holdout_y))
    scene = make_scene(data, setting, targets, seed, **who)
    return split_digest(scene.split, scene.audits)


def stem_of(job: Job, attack: ComponentUse, key: str) -> str:
    """The name of a cell's files."""
    return stem(job.setting.name, job.coalition, job.defense.label, attack.label, job.seed, key)
