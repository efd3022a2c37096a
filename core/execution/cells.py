"""The cells of a run with their keys. Of the many that a plan has, what they have in common is made, hashed and kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedbench.core.contract.attack import Attack
from fedbench.core.execution.misspelt import Misspelt
from fedbench.core.execution.needs import Signals
from fedbench.core.execution.rows import stem_of
from fedbench.core.experiment.job import Cell, Job, Look, cell_identity, identity
from fedbench.core.registry.use import ComponentUse
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.store.canonical import canonical, key_of


class Cells:
    """Makes the cells of one run after another, with ``signals`` and notes of what is ``misspelt``."""

    def __init__(self, signals: Signals, misspelt: Misspelt) -> None:
        self._signals, self._misspelt = signals, misspelt
        self._kept: dict[str, Any] = {}
        self._notes: dict[tuple[int, ...], tuple[str, ...]] = {}
        self._uses: dict[int, ComponentUse] = {}  # a number is not given again while its component is kept

    def of(self, base: Job, attacks: Sequence[tuple[ComponentUse, Attack]], read: set[str], said: Sequence[str]) -> Job:
        """The job with its key and a cell for each attack. ``read``: signals that its analyses read; ``said``: remarks on its
        row."""
        run = {name: self._shared(value) for name, value in identity(base).items()}
        job, cells = replace(base, run_key=key_of(run)), []
        signals = self._signals.uses
        for use, made in attacks:
            named = ((n, n.removesuffix(PRE_DEFENSE)) for n in sorted({*made.needs, *read}))
            used = {n: signals[own] for n, own in named if own in signals}
            added = {name: self._shared(value) for name, value in cell_identity(job, use, used, run).items() if name != "run"}
            notes = (*self._odd([job.dataset, job.model, job.defense, use, *job.analyses, *used.values()]), *said)
            key = key_of({**added, "run": job.run_key})
            cells.append(Cell(
                key=key, stem=stem_of(job, use, key), attack=use, look=self._look(made), identity={"run": run, **added},
                notes=notes,
            ))  # fmt: skip
        return replace(job, cells=tuple(cells))

    def _shared(self, value: Any) -> Any:
        """The same value, of which there is one however many runs have it."""
        return self._kept.setdefault(canonical(value), value) if isinstance(value, dict | list) else value

    def _look(self, made: Attack) -> Look:
        look = Look.of(made)
        return self._kept.setdefault(repr(look), look)

    def _odd(self, uses: Sequence[ComponentUse]) -> tuple[str, ...]:
        """The notes on these components."""
        which = tuple(map(id, uses))
        if which not in self._notes:
            self._uses |= dict(zip(which, uses, strict=True))
            self._notes[which] = tuple(self._misspelt.of(uses))
        return self._notes[which]
