"""The Python API: run a suite, load results of any origin, and read them as tables."""

from __future__ import annotations

import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.discovery import of_leaderboard

if TYPE_CHECKING:
    from fedbench.core.contract.attack import Attack
    from fedbench.core.store.reading import Candidates, LoadedRecord
    from fedbench.core.store.scores import TargetScores

Table = Any
"""A ``pandas.DataFrame``; a list of dicts where pandas is not installed."""
Texts = str | Sequence[str]

_MARKS = ("floor", "undefended", "complete", "front", "claims", "trust")
_CELL = (
    "suite",
    "setting",
    "coalition",
    "defense",
    "attack",
    "view",
    "seed",
    "outcome",
    "reason",
    "auc",
    "tf01",
    "accuracy",
    "train_cpu_s",
    "key",
)


def run(
    suite: str | PathLike[str],
    *,
    results: str | PathLike[str] | None = None,
    set: Texts = (),
    only: Texts = (),
    seeds: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    rerun: str = "missing",
    plots: bool = True,
) -> Results:
    """Train and judge what is missing of a suite, write its board, and load the results: `fedbench
    run`.

    ``suite``: a file, or the name of a shipped suite; ``results``: the folder, by default
    ``results/SUITE``; ``set``: changes such as ``"seeds=[0]"``; ``only``: parts such as
    ``"defense=none"``; ``seeds``: only the first so many; ``workers``: runs side by side, by
    default the cores. A cell that fails raises nothing: its ``outcome`` says so. Raises
    ``UserError`` for a mistake in the suite or an argument.
    """
    from fedbench.core.cli.run import run_suite

    folder, _ = run_suite(
        str(suite),
        _texts(set),
        _texts(only),
        Path(results) if results else None,
        seeds=seeds,
        workers=workers,
        device=device,
        rerun=rerun,
        plots=plots,
    )
    return load(folder)


def plan(suite: str | PathLike[str], *, set: Texts = (), only: Texts = ()) -> Table:
    """Return the cells of a suite, one a row, with the number of rounds and targets of their run;
    computes nothing. Raises ``UserError`` as :func:`run`.
    """
    from fedbench.core.cli.run import plan_part

    jobs = plan_part(str(suite), _texts(set), _texts(only))[1].jobs
    return _table(
        {
            "suite": job.suite,
            "setting": job.setting.name,
            "coalition": job.coalition,
            "defense": job.defense.label,
            "attack": cell.attack.label,
            "view": cell.request.view,
            "seed": job.seed,
            "rounds": job.setting.federation.rounds,
            "targets": len(job.targets),
            "key": cell.key,
        }
        for job in jobs
        for cell in job.cells
    )


def load(source: str | PathLike[str]) -> Results:
    """Load a results folder, a bundle of `fedbench export`, which is checked as `fedbench import`
    does, or a board's ``board.json``. Raises ``UserError`` for anything else.
    """
    return Results(Path(source))


class Results:
    """The results in a folder, a bundle or a board. Everything is read when it is first asked for.
    ``folder``: where they are, of a bundle a temporary folder.

    The methods raise ``UserError`` for records that cannot be used, for a cell that is not there,
    and for what a board lacks: scores and observations.
    """

    def __init__(self, source: Path) -> None:
        from fedbench.core.cli.output import opened

        self.source = source
        self.folder = source.absolute()
        if not source.is_file():
            opened(source)
        elif source.suffix != ".json":
            # lasts as long as this object
            self._aside = tempfile.TemporaryDirectory(prefix="fedbench-")
            self.folder = Path(self._aside.name) / "results"
            of_leaderboard("merge")([source], self.folder)

    def __repr__(self) -> str:
        return f"Results({str(self.source)!r})"

    @cached_property
    def cells(self) -> Table:
        """One attack on one run a row: suite, setting, coalition, defense, attack, view, seed,
        outcome, reason, auc, tf01 (in percent), accuracy, train_cpu_s, key.

        ``auc`` and ``tf01`` are means over the targets, against outside non-members where there are
        any. Of a folder the cells of its last plan, with those of tuning seeds; of a board those it
        shows, with rounded numbers and short keys.
        """
        if self.folder.is_file():
            return _table(_cells_of(self.board()))
        return _table(map(_cell, self._records))

    @cached_property
    def rows(self) -> Table:
        """The ranked rows of the board, one a defense in each setting, coalition and view:
        ``worst``, ``mean`` (AUC), ``tf01`` (percent), ``delta`` (test accuracy against the
        undefended run, a fraction), ``accuracy``, ``contribution`` and ``runtime`` with the ends of
        their 95 % intervals in ``worst_low``, ``worst_high`` and so on, the ranks that the tests
        leave open from ``rank`` to ``rank_last``, and in ``front`` whether no other row is better
        in both ``accuracy`` and the leakage that ``front_of`` names, ``worst`` or ``tf01``.
        """
        rows = (row_of(self.board(), row) for row in self.board()["rows"])
        return _table(rows, integers=("rank", "rank_last"))

    def board(self) -> dict[str, Any]:
        """The whole board as the JSON document that ``leaderboard/site/SCHEMA.md`` describes."""
        return self._board

    def scores(self, cell: str | Mapping[str, Any]) -> dict[int, Candidates]:
        """Target -> its candidates, of a row of :attr:`cells` or a key, of which the first letters
        will do: ``scores`` [n], ``kind`` [n] (``fedbench.core.MEMBER``, ``OFL``, ``IFL``,
        ``EXCLUDED``), ``ids``, ``in_mix``, ``canary``.
        """
        key = cell if isinstance(cell, str) else cell["key"]
        records = [loaded for loaded in self._records if loaded.record.key.startswith(key)]
        if len(records) != 1:
            raise UserError(
                f"{self.source}: {len(records)} cells with the key '{key}', expected one"
            )
        return records[0].candidates_of([target.target for target in records[0].record.targets])

    def judge(self, attack: Attack) -> Table:
        """Scores of any attack, such as a class in a notebook, on every run that observations are
        kept of: a row a run, with the columns of :attr:`cells`. Trains nothing and stores nothing.

        It runs in this process, without limits. Raises ``UserError`` where no run has the signals
        that the attack needs.
        """
        from fedbench.core.cli.run import plan_part
        from fedbench.core.store.stored_suites import suite_files

        runs = {loaded.path.stem: loaded for loaded in self._records}
        rows = []
        for stored in self._store.marker()["plans"][-1:]:
            suite = suite_files(self.folder, stored)[-1]
            for job in plan_part(str(suite), (), (), self.folder)[1].jobs:
                if run := runs.get(job.stem):
                    folder = str(run.path.parents[1])
                    provenance = run.record.provenance
                    job = replace(job, results=folder, provenance=provenance)
                    rows.append(_judged(job, attack))
        if not any(rows):
            raise UserError(
                f"{self.source}: no run keeps observations, of the code and data that are here, "
                f"with the signals that {type(attack).__name__} needs"
            )
        return _table(filter(None, rows))

    @cached_property
    def _board(self) -> dict[str, Any]:
        return dict(of_leaderboard("board")(self.folder).model_dump(mode="json"))

    @cached_property
    def _records(self) -> list[LoadedRecord]:
        from fedbench.core.store.reading import load_records

        return self._store.planned(load_records(self.folder))[0]

    @property
    def _store(self) -> Any:
        from fedbench.core.store.results import Results as Store

        if self.folder.is_file():
            raise UserError(
                f"{self.source}: a board has neither scores nor observations; load the results "
                "folder"
            )
        return Store(self.folder)


def _judged(job: Any, attack: Attack) -> dict[str, Any] | None:
    """Return the row of one run; None where its observations are not kept, or lack a signal."""
    from fedbench.core.metrics import run_accuracy
    from fedbench.core.run.job import SignalRequest
    from fedbench.core.run.scoring import ask
    from fedbench.core.run.trained_run import cached, made_of
    from fedbench.core.run.verdict import verdict

    name = type(attack).__name__
    use = job.cells[0].attack.model_copy(update={"name": name, "label": name})
    cell = replace(job.cells[0], attack=use, request=SignalRequest.of(attack))
    job = replace(job, cells=(cell,), analyses=(), requests={})
    packed, shadows = cached(job)
    if packed is None:
        return None
    run = made_of(job, packed, shadows)
    done = run.trained
    scored = verdict(run, cell, ask(run, attack))
    accuracy = run_accuracy([row["accuracy"] for row in done.history])
    names = (job.suite, job.setting.name, job.coalition, job.defense.label, name, attack.view)
    numbers = (*_means(scored.targets), accuracy, done.measured["train_cpu_s"])
    return _cells(*names, job.seed, "ok", "", *numbers, "")


# -- tables ----------------------------------------------------------------------------------------


def _table(rows: Iterable[dict[str, Any]], integers: Sequence[str] = ()) -> Table:
    """Return a data frame; ``integers``: columns of integers, or none."""
    try:
        import pandas
    except ImportError:
        return list(rows)
    frame = pandas.DataFrame(list(rows))
    return frame.astype({name: "Int64" for name in integers if name in frame})


def _cells(*values: Any) -> dict[str, Any]:
    """Return a row of :attr:`Results.cells`."""
    return dict(zip(_CELL, values, strict=True))


def _cell(loaded: LoadedRecord) -> dict[str, Any]:
    r = loaded.record
    names = (r.suite, r.setting, r.coalition, r.defense.label, r.attack.label, r.view)
    numbers = (*_means(r.targets), r.utility and r.accuracy, r.measured.train_cpu_s)
    return _cells(*names, r.seed, r.outcome, r.reason, *numbers, r.key)


def _means(targets: Sequence[TargetScores]) -> Iterator[float | None]:
    """Yield AUC and TF01 over the targets, against those non-members that boards compare."""
    group = "ofl" if all("ofl" in t.groups for t in targets) else "mix"
    for name in ("auc", "tf01"):
        yield _mean(t.groups[group].value(name) for t in targets if group in t.groups)


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _cells_of(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the cells that a board shows, from its columns."""
    runs = board["runs"]
    cells = board["cells"]
    labels = [use["label"] for use in board["uses"]]
    views: dict[int, str] = {}
    for row in board["rows"]:
        for entry in row["entries"]:
            views |= dict.fromkeys(entry["cells"], board["sections"][row["section"]]["view"])
    for i, run in enumerate(cells["run"]):
        setting = board["settings"][runs["setting"][run]]
        yield _cells(
            setting["suite"],
            setting["name"],
            runs["coalition"][run],
            labels[runs["defense"][run]],
            labels[cells["attack"][i]],
            views[i],
            runs["seed"][run],
            board["outcomes"][cells["outcome"][i]],
            board["reasons"][cells["reason"][i]],
            _mean(_unpacked(cells["auc"][i])),
            _mean(cells["tf01"][i]),
            runs["accuracy"][run],
            runs["times"][run][0],
            cells["key"][i],
        )


def _unpacked(text: str) -> Iterator[float | None]:
    """Yield numbers of three base-64 digits each, in steps of 1e-5; the largest stands for none."""
    for i in range(0, len(text), 3):
        value = int.from_bytes(urlsafe_b64decode("A" + text[i : i + 3]))
        yield value / 100_000 if value < 64**3 - 1 else None


def row_of(board: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a board's document as a row of :attr:`Results.rows`."""
    section = board["sections"][row["section"]]
    setting = board["settings"][section["setting"]]
    first, last = row["rank"] or (None, None)
    worst_attack = front_of = None
    if row["worst_attack"] >= 0:
        worst_attack = board["uses"][section["attacks"][row["worst_attack"]]]["label"]
    if row["front"] is not None:
        rows = [board["rows"][i] for i in section["rows"]]
        ranked = [r["numbers"]["tf01"] for r in rows if r["complete"] and not r["floor"]]
        front_of = "tf01" if all(ranked) else "worst"
    values = {
        "suite": setting["suite"],
        "setting": setting["name"],
        "coalition": section["coalition"],
        "view": section["view"],
        "rank": first,
        "rank_last": last,
        "defense": row["label"],
        "worst_attack": worst_attack,
    }
    values |= {name: row[name] for name in _MARKS} | {"front_of": front_of}
    for column in board["columns"]:
        name = column["key"]
        names = (name, f"{name}_low", f"{name}_high")
        values |= dict(zip(names, row["numbers"].get(name) or (None,) * 3, strict=True))
    return values


def _texts(texts: Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)
