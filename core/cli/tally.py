"""What a run of a plan has come to: counted from what an executor tells, for whatever shows it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from fedbench.core.cli.standings import Standings
from fedbench.core.execution.cost import Work, expected_cost
from fedbench.core.execution.forecast import Forecast, Left
from fedbench.core.experiment.cache import cache_path
from fedbench.core.experiment.job import Cell, Job

_ANY = Work(samples=10_000, flops=1e6)  # where nobody planned: other than rounds and clients, all settings count alike
_MOMENT_S = 2.0
_SOON_S = 15.0  # so long nothing is said of the time left: processes start, data load


@dataclass
class Running:
    """A run that a worker is at: how many rounds are done, how many of its cells, and whose attack is at work."""

    job: Job
    round: int = 0
    judged: int = 0
    attack: str = ""


@dataclass(kw_only=True)
class Failure:
    """Cells of one run that ended alike, the last of them at ``heard``; ``wanted``: as an adversary inside wanted."""

    job: Job
    heard: float
    outcome: str
    reason: str
    wanted: bool
    cells: list[Cell] = field(default_factory=list)


class Tally:
    """Of these ``jobs``, in their order. ``work``: what a sample costs in each setting, where it is known; ``before``: cells that
    had a record already; ``now`` everywhere: seconds of any clock."""

    def __init__(
        self, jobs: Sequence[Job], work: Mapping[str, Work], now: float, before: int = 0, floors: Collection[str] = ()
    ) -> None:
        self.began, self.before = now, before
        self.runs, self.cells = len(jobs), sum(len(job.cells) for job in jobs)
        self.runs_done = self.done = self.failed = self.skipped = 0
        self.running: dict[str, Running] = {}
        self.standings = Standings(floors)
        self._cells_of = {job.run_key: len(job.cells) for job in jobs}
        self._done_of = dict.fromkeys(self._cells_of, 0)
        self._aucs: dict[str, dict[str, float]] = {}
        self._failures: dict[Hashable, Failure] = {}
        costs = (expected_cost(job, work.get(job.setting.name, _ANY)) for job in jobs)
        self._forecast = Forecast({job.run_key: (cost, _levels(job)) for job, cost in zip(jobs, costs, strict=True)})

    def started(self, job: Job, now: float) -> None:
        """A worker begins with it, or with what is left of it."""
        self.running[job.run_key] = Running(job, judged=self._done_of[job.run_key])
        self._forecast.started(job.run_key, now)

    def advanced(self, job: Job, round: int, now: float) -> None:
        """So many of its rounds are done."""
        if (run := self.running.get(job.run_key)) is not None:
            run.round = round
            self._forecast.trained(job.run_key, round / job.setting.federation.rounds, now)

    def judging(self, job: Job, key: str, now: float) -> None:
        """The attack of this cell begins."""
        if (run := self.running.get(job.run_key)) is not None:
            run.attack = _cell(job, key).attack.label
            self._judged(job, now)

    def cell(self, job: Job, key: str, outcome: str, reason: str, wanted: bool, auc: float | None, now: float) -> None:
        """The cell has its record."""
        cell, run_key = _cell(job, key), job.run_key
        self.done += 1
        self._done_of[run_key] += 1
        if run_key in self.running:
            self.running[run_key].judged = self._done_of[run_key]
        if outcome != "ok":
            self.failed += outcome != "skipped" and not wanted
            self.skipped += outcome == "skipped"
            new = Failure(job=job, heard=now, outcome=outcome, reason=reason, wanted=wanted)
            failure = self._failures.setdefault((run_key, outcome, reason), new)
            failure.heard = now
            failure.cells.append(cell)
        if auc is not None:
            self._aucs.setdefault(run_key, {})[cell.attack.label] = auc
        self._judged(job, now)
        if self._complete(job):
            self.runs_done += 1
            self.standings.add(job, self._aucs.pop(run_key, {}))
            if run_key not in self.running:  # no worker took it
                self._forecast.ended(run_key, now, complete=True)

    def finished(self, job: Job, now: float) -> None:
        """Its process is gone; where cells are left, it is started again."""
        self.running.pop(job.run_key, None)
        self._forecast.ended(job.run_key, now, self._complete(job))

    def failures(self, now: float) -> list[Failure]:
        """Those since this was asked last; of a run that goes on, a moment later, since more cells may end alike."""
        over = {at: f for at, f in self._failures.items() if f.job.run_key not in self.running or now - f.heard >= _MOMENT_S}
        self._failures = {at: failure for at, failure in self._failures.items() if at not in over}
        return list(over.values())

    def left(self, now: float) -> Left | None:
        """Until the end; None where nothing honest can be said yet."""
        return None if now - self.began < _SOON_S and self.done < self.cells else self._forecast.left(now)

    def _judged(self, job: Job, now: float) -> None:
        self._forecast.judged(job.run_key, self._done_of[job.run_key] / self._cells_of[job.run_key], now)

    def _complete(self, job: Job) -> bool:
        return self._done_of[job.run_key] >= self._cells_of[job.run_key]


def _levels(job: Job) -> tuple[Hashable, ...]:
    """What makes runs cost alike: setting (and whether only attacks are left), defense (and who attacks from inside), both."""
    trained = job.attacker is None and cache_path(job).exists()
    setting, row = (job.setting.name, trained), (job.defense.label, job.attacker.label if job.attacker else "")
    return setting, row, (setting, row)


def _cell(job: Job, key: str) -> Cell:
    return next(cell for cell in job.cells if cell.key == key)
