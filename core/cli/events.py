"""Events for listeners of other packages. Each listener has a process of its own that reads events
from a file, so that a slow or broken one neither delays nor changes a run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pluggy

from fedbench.core.cli.output import say
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.events import (
    BoardWritten,
    CellFinished,
    Event,
    RoundFinished,
    RunFinished,
    RunInfo,
    RunStarted,
    Scores,
)
from fedbench.core.contract.hooks import PROJECT, Hooks
from fedbench.core.process.ask import plugin_limits
from fedbench.core.process.channel import Channel, TimeLimits, at_work, pass_on_interrupt
from fedbench.core.process.child import Child, Lines
from fedbench.core.registry.discovery import PluginStatus
from fedbench.core.run.executor import Watcher
from fedbench.core.run.job import Job
from fedbench.core.store.record import Record
from fedbench.core.store.results import Results
from fedbench.core.words import explain

_NICE = 10
"""of listeners, as of boards: runs share cores with them"""
_PAUSE_S = 0.2
_END = "end"


class Events(AbstractContextManager["Events"]):
    """Hands what a watcher is told to the listeners; nothing where there is none. At the end of a
    command they are waited for, each call as long as a plugin's hook may take.
    """

    def __init__(self, listeners: Sequence[PluginStatus]) -> None:
        self._children: dict[str, Child] = {}
        self._lines = Lines(lambda text: say(text, err=True))
        if not listeners:
            return
        self._file = tempfile.NamedTemporaryFile("w", prefix="fedbench-events-")  # noqa: SIM115
        for listener in listeners:
            work = partial(_listen, Path(self._file.name), listener)
            child = Child(work, TimeLimits(), printed=self._lines.take)
            self._children[f"listener {listener}"] = child

    def watching(self, watcher: Watcher) -> Watcher:
        """Return the callbacks with those of this object after them."""
        if not self._children:
            return watcher
        audited: dict[str, list[float | None]] = {}

        def started(job: Job) -> None:
            watcher.started(job)
            self._write("started", asdict(_info(job)))

        def measured(job: Job, numbers: list[Any]) -> None:
            audited[job.stem] = numbers

        def advanced(job: Job, round: int) -> None:
            watcher.advanced(job, round)
            self._write("round", job.stem, round, *audited.pop(job.stem, []))

        def cell(job: Job, key: str, outcome: str, reason: str, by_adversary: bool) -> None:
            watcher.cell(job, key, outcome, reason, by_adversary)
            self._write("cell", job.stem, key)

        def finished(job: Job) -> None:
            watcher.finished(job)
            self._write("finished", job.stem)

        def tick() -> None:
            watcher.tick()
            self._poll()

        return replace(
            watcher,
            started=started,
            measured=measured,
            advanced=advanced,
            cell=cell,
            finished=finished,
            board=self.board,
            tick=tick,
        )

    def board(self, path: str, summary: Mapping[str, Any], provisional: bool = True) -> None:
        """Send a board that was written, with the fields of its summary."""
        texts = {name: summary[name] for name in ("headers", "rows", "headings")}
        self._write("board", {"path": path, "provisional": provisional, **texts})

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Wait for the listeners; end them where the command is interrupted."""
        self._write(_END)
        while self._children and kind is None:
            self._poll()
            time.sleep(_PAUSE_S / 4)
        for child in self._children.values():
            child.end()
        self._lines.end()

    def _write(self, kind: str, *values: Any) -> None:
        if self._children:
            self._file.write(json.dumps([kind, *values]) + "\n")
            self._file.flush()

    def _poll(self) -> None:
        """Take what the listeners print, and report those that ended too early."""
        for name, child in list(self._children.items()):
            reasons = [message.value for message in child.poll() if message.kind == "failed"]
            if not (child.ended or reasons):
                continue
            if child.ending:
                reasons.append(child.ending)
            if reasons:
                say(f"note: {name}: {reasons[0]}; it gets no more events", err=True)
            child.end()
            del self._children[name]


def _info(job: Job) -> RunInfo:
    return RunInfo(
        key=job.stem,
        suite=job.suite,
        setting=job.setting.name,
        coalition=job.coalition,
        defense=job.defense.label,
        adversary=job.attacker.label if job.attacker else "",
        seed=job.seed,
        rounds=job.setting.federation.rounds,
        cells=len(job.cells),
        results=job.results,
    )


# -- in the process of a listener ------------------------------------------------------------------


def _listen(path: Path, plugin: PluginStatus, out: Channel) -> None:
    """Call the hook with every event; say why, where it fails."""
    assert plugin.listener is not None
    party = f"listener {plugin}"
    os.nice(_NICE)
    try:
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Hooks)
        with at_work(party, plugin_limits()):
            manager.register(plugin.listener.load())
        reader = _Reader()
        for kind, *values in _lines(path):
            for event in reader.events(kind, *values):
                with at_work(party, plugin_limits()):
                    manager.hook.fedbench_events(event=event)
    except BaseException as error:  # of a listener it costs this process alone
        pass_on_interrupt(error)
        out.send("failed", explain(error))


def _lines(path: Path) -> Iterator[list[Any]]:
    """Yield the lines as they are written, up to the last one."""
    with path.open() as file:
        begun = ""
        while True:
            begun += file.readline()
            if not begun.endswith("\n"):
                time.sleep(_PAUSE_S)
                continue
            values = json.loads(begun)
            if values[0] == _END:
                return
            yield values
            begun = ""


class _Reader:
    """Makes typed events of lines; scores are read from the records."""

    def __init__(self) -> None:
        self._runs: dict[str, RunInfo] = {}
        self._with_rounds = set[str]()
        self._records: dict[str, Record] = {}

    def events(self, kind: str, *values: Any) -> Iterator[Event]:
        """Yield the events that a line stands for."""
        if kind == "board":
            yield BoardWritten(**values[0])
            return
        if kind == "started":
            run = RunInfo(**values[0])
            self._runs[run.key] = run
            yield RunStarted(run=run)
            return
        run = self._runs[values[0]]
        if kind == "round":
            self._with_rounds.add(run.key)
            names = ("round", "accuracy", "train_loss")
            yield RoundFinished(run=run, **dict(zip(names, values[1:], strict=False)))
        elif kind == "cell":
            yield from self._cell(run, values[1])
        else:
            del self._runs[run.key]
            yield RunFinished(run=run)

    def _cell(self, run: RunInfo, key: str) -> Iterator[Event]:
        """Yield the cell, after the rounds of a training that reported none: one of another
        machine, or of an earlier time.
        """
        record = self._record(run, key)
        if record is None:
            return
        if run.key not in self._with_rounds:
            self._with_rounds.add(run.key)
            for row in record.history:
                yield RoundFinished(
                    run=run,
                    round=row.round,
                    accuracy=row.accuracy,
                    train_loss=row.train_loss,
                )
        yield CellFinished(
            run=run,
            attack=record.attack.label,
            view=record.view,
            outcome=record.outcome,
            reason=record.reason,
            scores=_scores(record),
        )

    def _record(self, run: RunInfo, key: str) -> Record | None:
        """Return the record of a cell; None where it was removed meanwhile."""
        if key not in self._records:
            try:
                cells = Results(Path(run.results)).cells(run.key)
            except UserError:
                cells = []
            self._records = {loaded.record.key: loaded.record for loaded in cells}
        return self._records.get(key)


def _scores(record: Record) -> Scores:
    scores: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    for group, score in record.pooled.items():
        scores[group] = {name: (e.value, e.error) for name, e in score.values.items()}
    return scores
