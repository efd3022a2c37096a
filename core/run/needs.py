"""Signals and rows that a run measures for its attacks and analyses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.attack import Attack, View
from fedbench.core.contract.components import Signal
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.process.ask import ask_apart
from fedbench.core.process.channel import pass_on_interrupt
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.run.job import Job, SignalRequest
from fedbench.core.run.process import log_failure
from fedbench.core.signals.measure import GRADIENT_SIGNALS, PRE_DEFENSE, rows_of
from fedbench.core.words import describe_error, explain


class Signals:
    """Signals that the attacks and analyses of a suite may ask for.

    ``uses``: every installed signal that a plugin measures, by name, with the suite's parameters
    where it gives some. Those of the gradient are the engine's own code, part of every run's key.
    """

    def __init__(
        self,
        registry: Registry,
        named: Mapping[str, ComponentUse],
    ) -> None:
        use = UseMaker()
        installed = {c.name: use(c, {}, c.name) for c in registry.components("signal")}
        uses = installed | dict(named)
        self.uses = {name: u for name, u in uses.items() if name not in GRADIENT_SIGNALS}
        self._registry = registry
        self._checked: set[str] = set()

    def require(self, party: str, names: Iterable[str]) -> None:
        """Raise ``UserError`` for a signal that is not installed, or that cannot be made with its
        parameters.
        """
        problems = []
        for name in sorted({*names} - self._checked):
            try:
                self._check(name)
                self._checked.add(name)
            except UserError as error:
                problems += [f"{party}: its needs: {message}" for message in error.messages]
        if problems:
            raise UserError(*problems)

    def _check(self, name: str) -> None:
        base_name = name.removesuffix(PRE_DEFENSE)
        self._registry.get("signal", base_name)
        if base_name in self.uses:
            use = self.uses[base_name]
            ask_apart(f"signal {use}", use.distributions, lambda: _require_vector(use))
        elif base_name != name:
            raise UserError(
                f"'{name}': signals of the gradient are measured of what was uploaded alone; "
                f"write '{base_name}'"
            )


def _require_vector(use: ComponentUse) -> None:
    """Raise ``UserError`` for a signal that cannot be made, or with no valid ``vector``."""
    try:
        vector = use.make()[0].vector
    except BaseException as error:  # a plugin's constructor
        pass_on_interrupt(error)
        remedy = "a suite sets its parameters under `signals:`"
        raise UserError(f"signal {use} cannot be made: {explain(error)}; {remedy}") from error
    if type(vector) is not bool:
        raise UserError(f"signal {use}: its vector is {vector!r:.60}, expected True or False")


def make_signals(job: Job, names: Iterable[str]) -> tuple[dict[str, Signal], dict[str, str]]:
    """Return (signals to ask of each model, by name; why each other one cannot be made)."""
    signals = {}
    failed = {}
    for name in sorted(names):
        use = job.signals.get(name.removesuffix(PRE_DEFENSE))
        if use is None:
            continue
        try:
            signals[name] = use.make()[0]
        except BaseException as error:  # a plugin's constructor
            pass_on_interrupt(error)
            log_failure(error)
            failed[name] = f"signal {use}: {describe_error(error)}"
    return signals, failed


# --- what a run measures --------------------------------------------------------------------------

Requests = Sequence[Attack | SignalRequest]


def measured_signals(job: Job, attacks: Requests) -> set[str]:
    """Return the names of the signals that the attacks and the job's analyses need, of those that
    the run can measure.
    """
    names = set[str]().union(*(request.needs for request in (*attacks, *job.requests.values())))
    before_defense = {f"{name}{PRE_DEFENSE}" for name in job.signals}
    return names & (GRADIENT_SIGNALS | job.signals.keys() | before_defense)


def require_use(
    refused: Mapping[str, str], requests: Iterable[Attack | Analysis | SignalRequest]
) -> None:
    """Raise ``UserError`` where signals were refused before training, and each attack and analysis
    needs one of them: the training would answer nothing.

    Args:
        refused: name -> reason.
    """
    if refused and all(request.needs & refused.keys() for request in requests):
        raise UserError(*(refused[name] for name in sorted(refused)))


def shared_view(view: View) -> View:
    """Return the view through which a colluder of an attack sees the pool: the global models as the
    attack does; its own rows where the attack looks at a client's, or at the coalition, of which no
    colluder has a row.
    """
    return view if view in ("client", "external") else "server"


def colluders_first(job: Job) -> list[int]:
    """Return the clients in the order in which they collude: those outside the coalition first, the
    highest ids first.
    """
    members = set(job.averaged)
    return sorted(range(job.clients), key=lambda k: (k in members, -k))


def compared(job: Job, client: int | None, view: View) -> list[int]:
    """Return the ids of the clients with uploads that ``view`` shows of a target or a colluder: its
    own and, of the rest of the view, the first ``audit.references`` of the run's permutation; of
    many clients together (None), all in the view.
    """
    visible = [row for row in rows_of({view}, job.clients, job.averaged) if row >= 0]
    if job.references is None or client is None:
        return visible
    order = numpy_rng(job.seed, "references").permutation(job.clients)
    rest = order[np.isin(order, visible) & (order != client)][: job.references]
    return sorted({*rest.tolist(), client} & {*visible})


def needed_rows(job: Job, n_models: int, attacks: Requests) -> list[int]:
    """Return the ids of the rows that the attacks and analyses of a run with so many global models
    look at.
    """
    of_analyses: set[View] = set()
    for request in job.requests.values():
        if request.needs:
            of_analyses |= {request.view, *request.also}
    of_colluders = {shared_view(attack.view) for attack in attacks if attack.colluders}
    views = {attack.view for attack in attacks} | of_analyses | of_colluders
    rows = rows_of(views, job.clients, job.averaged, n_models, len(job.coalitions))
    if job.references is None:
        return rows
    clients = _compared_by(job, attacks)
    for view in of_analyses:  # an analysis sees all clients
        clients.update(compared(job, None, view))
    return [row for row in rows if row < 0 or row in clients]


def _compared_by(job: Job, attacks: Requests) -> set[int]:
    """Return the clients that attacks compare a target or a colluder with."""
    clients: set[int] = set()
    for attack in attacks:
        for target in job.targets:
            clients.update(compared(job, target.client, attack.view))
        if attack.colluders:
            # a target of one client is not its own colluder, so that one more can be asked
            for k in colluders_first(job)[: attack.colluders + 1]:
                clients.update(compared(job, k, shared_view(attack.view)))
    return clients
