"""The signals that a suite's attacks and analyses need: their parameters, and what a run measures
for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.attack import Attack, View
from fedbench.core.contract.components import Signal
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.process.ask import ask_apart
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.run.job import Job, Look
from fedbench.core.run.process import log_failure
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, rows_of
from fedbench.core.words import describe_error, explain


class Signals:
    """``uses``: every installed signal that a plugin measures, by name, with the suite's parameters
    where it gives some.

    Those of the gradient are not among them: they are the engine's own code, which is part of every
    run's key.
    """

    def __init__(self, registry: Registry, named: Mapping[str, ComponentUse]) -> None:
        use = UseMaker()
        found = {c.name: use(c, {}, c.name) for c in registry.components("signal")} | dict(named)
        self.uses = {name: made for name, made in found.items() if name not in GRADIENT_SIGNALS}
        self._registry = registry
        self._sound: set[str] = set()

    def require(self, who: str, names: Iterable[str]) -> None:
        """Raise ``UserError`` for a signal that is not installed, or that cannot be made with its
        parameters.
        """
        problems: list[str] = []
        for name in sorted({*names} - self._sound):
            try:
                self._check(name)
                self._sound.add(name)
            except UserError as error:
                problems += [f"{who}: its needs: {message}" for message in error.messages]
        if problems:
            raise UserError(*problems)

    def _check(self, name: str) -> None:
        own = name.removesuffix(PRE_DEFENSE)
        self._registry.get("signal", own)
        if own not in self.uses:
            if own != name:
                raise UserError(
                    f"'{name}': signals of the gradient are measured of what was uploaded alone; "
                    f"write '{own}'"
                )
            return
        use = self.uses[own]
        ask_apart(f"signal {use}", use.distributions, lambda: _require_vector(use))


def _require_vector(use: ComponentUse) -> None:
    """Raise ``UserError`` for a signal that cannot be made, or does not say whether it is a
    vector.
    """
    try:
        vector = use.make()[0].vector
    except BaseException as error:  # a plugin's constructor
        pass_on_interrupt(error)
        remedy = "a suite sets its parameters under `signals:`"
        raise UserError(f"signal {use} cannot be made: {explain(error)}; {remedy}") from error
    if type(vector) is not bool:
        raise UserError(f"signal {use}: its vector is {vector!r:.60}, expected True or False")


# --- what a run measures --------------------------------------------------------------------------


def needed_signals(
    attacks: Sequence[Attack | Look], analyses: Iterable[Analysis | Look] = ()
) -> set[str]:
    """The union over the attacks and analyses of a run, or what is known of them."""
    return set().union(*(a.needs for a in attacks), *(a.needs for a in analyses))


def measurable(job: Job, signals: set[str]) -> set[str]:
    """Those that a run can measure: no plan has an attack that needs others."""
    return signals & (
        GRADIENT_SIGNALS | job.signals.keys() | {f"{n}{PRE_DEFENSE}" for n in job.signals}
    )


def views_of(
    attacks: Sequence[Attack | Look], analyses: Iterable[Analysis | Look] = ()
) -> set[View]:
    """The views that a run measures: those of its attacks and analyses, and what colluding clients
    share.
    """
    views = {a.view for a in attacks} | {
        view for a in analyses if a.needs for view in (a.view, *a.also)
    }
    return views | {shared_view(a.view) for a in attacks if a.colluders}


def shared_view(view: View) -> View:
    """Through which view a colluder of an attack sees the pool: as the attack does the global
    models; its own rows where the attack looks at a client's, or at the coalition, of which no
    colluder has a row.
    """
    return view if view in ("client", "external") else "server"


def colluders_first(job: Job) -> list[int]:
    """Clients in the order in which they collude: those outside the coalition first, the highest
    ids first.
    """
    members = set(job.averaged)
    return sorted(range(job.clients), key=lambda k: (k in members, -k))


def compared(job: Job, client: int | None, view: View) -> list[int]:
    """Ids of the clients with uploads that ``view`` shows of a target or a colluder: its own and,
    of the others in the view, the first ``audit.references`` of the run's permutation; of many
    clients together (None), all in the view.
    """
    there = [row for row in rows_of({view}, job.clients, job.averaged) if row >= 0]
    if job.references is None or client is None:
        return there
    order = numpy_rng(job.seed, "references").permutation(job.clients)
    others = order[np.isin(order, there) & (order != client)][: job.references]
    return sorted({*others.tolist(), client} & {*there})


def needed_rows(job: Job, n_models: int, attacks: Sequence[Attack | Look]) -> list[int]:
    """Ids of the rows that the attacks and analyses of a run with so many global models look at."""
    views = views_of(attacks, job.looks.values())
    rows = rows_of(views, job.clients, job.averaged, n_models, len(job.coalitions))
    if job.references is None:
        return rows
    # a target of one client is not its own colluder, so that one more can be asked; an analysis
    # sees all clients
    pairs = {(target.client, a.view) for a in attacks for target in job.targets}
    pairs |= {
        (k, shared_view(a.view))
        for a in attacks
        if a.colluders
        for k in colluders_first(job)[: a.colluders + 1]
    }
    pairs |= {(None, view) for view in views_of((), job.looks.values())}
    clients = set().union(*(compared(job, k, view) for k, view in pairs))
    return [row for row in rows if row < 0 or row in clients]


def require_use(refused: Mapping[str, str], looks: Iterable[Attack | Analysis | Look]) -> None:
    """Raise ``UserError`` where signals were refused before training, and each attack and analysis
    needs one of them: nothing would be told of the training. ``refused``: name -> why.
    """
    if refused and all(look.needs & refused.keys() for look in looks):
        raise UserError(*(refused[name] for name in sorted(refused)))


def models_of(defense: Defense, clients: int) -> int:
    """How many global models there are."""
    return defense.n_models or clients


def signals_of(job: Job, wanted: set[str]) -> tuple[dict[str, Signal], dict[str, str]]:
    """(the signals to ask of each model, by name; why one cannot be made)."""
    made: dict[str, Signal] = {}
    failed: dict[str, str] = {}
    for name in sorted(wanted):
        if (use := job.signals.get(name.removesuffix(PRE_DEFENSE))) is not None:
            try:
                made[name] = use.make()[0]
            except BaseException as error:  # a plugin's constructor
                pass_on_interrupt(error)
                log_failure(error)
                failed[name] = f"signal {use}: {describe_error(error)}"
    return made, failed
