"""`fedbench show`: one record, or a cell's history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbench.core.cli import complete
from fedbench.core.cli.options import examples, json_option, results_argument
from fedbench.core.cli.output import clipped, opened, say, say_json, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.words import by_nearness

if TYPE_CHECKING:
    from fedbench.core.store.reading import LoadedRecord
    from fedbench.core.store.record import Record


@click.command(
    epilog=examples(
        "fedbench show results/partial_defense                      every record",
        "fedbench show results/partial_defense cofedmid--fedmia-ii  all with the text in their "
        "name",
        "fedbench show results/partial_defense 4f21c0 --history     a key's first letters will do",
        "fedbench show results/partial_defense 4f21c0 --json        of several, an array",
    )
)
@results_argument
@click.argument("cell", required=False, shell_complete=complete.cells)
@click.option(
    "--history",
    is_flag=True,
    help="The cell's rounds: accuracy and training loss of the global model.",
)
@json_option
def command(results: Path, cell: str | None, history: bool, as_json: bool) -> None:
    """Show the record of CELL (part of its name, or of its key) in RESULTS; of several, a line
    each.
    """
    found = find(results.absolute(), cell)
    if as_json:
        records = [json.loads(loaded.record.model_dump_json()) for loaded in found]
        say_json(records if len(records) > 1 else records[0])
    elif len(found) == 1:
        _print(found[0])
        if history:
            rows = [
                (row.round, f"{row.accuracy:.4f}", _number(row.train_loss))
                for row in found[0].record.history
            ]
            show_table(("round", "test accuracy", "training loss"), rows)
    elif history:
        raise UserError(
            f"--history shows one cell, but {len(found)} contain '{cell or ''}': name one of them"
        )
    else:
        _list(found)


def find(root: Path, cell: str | None) -> list[LoadedRecord]:
    """The records with ``cell`` in their name or, if there are none, at the start of their key.
    Raises ``UserError`` for none.
    """
    from fedbench.core.store.reading import load_records

    everything = load_records(opened(root).root, arrays=False)  # only the records are shown
    found = [r for r in everything if cell is None or cell in r.stem]
    found = found or [r for r in everything if r.record.key.startswith(cell or "")]
    if not found:
        near = ", ".join(by_nearness(cell or "", [r.stem for r in everything])[:3])
        raise UserError(
            f"no record in {root} has '{cell}' in its name or key; the nearest are {near}"
        )
    return found


def _list(found: list[LoadedRecord]) -> None:
    """A line per cell."""
    rows = []
    for loaded in found:
        mix = loaded.record.pooled.get("mix")
        scores = (
            ("", "") if mix is None else (_number(mix.value("auc")), _number(mix.value("tf01")))
        )
        rows.append([loaded.record.outcome, *scores, loaded.stem, clipped(loaded.record.reason)])
    show_table(["outcome", "AUC", "TF01 %", "cell", "reason"], rows)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _print(loaded: LoadedRecord) -> None:
    from fedbench.core.metrics.registry import METRICS

    record = loaded.record
    lines = [
        loaded.stem,
        *([f"imported from the bundle {loaded.bundle}"] if loaded.bundle else []),
        f"{record.outcome} {record.reason}".rstrip(),
        f"key {record.key}",
        f"run {record.run_key}",
        f"defense {record.defense.label} {record.defense.params}",
        f"attack  {record.attack.label} {record.attack.params} (view: {record.view})",
        f"setting {record.setting}, coalition {record.coalition} {_members(record)}, seed "
        f"{record.seed}",
    ]
    if record.utility:
        last = f"{record.utility.accuracy:.4f} after the last round, n={record.utility.n_test}"
        lines.append(f"test accuracy {record.accuracy:.4f} ({last})")
    _say(lines + [f"note: {note}" for note in record.notes])
    scores = [(str(t.target), t.groups) for t in record.targets] + [("pooled", record.pooled)]
    rows = [
        (target, group, *(_number(s.value(m.name)) for m in METRICS), s.n_members, s.n_nonmembers)
        for target, groups in scores
        for group, s in groups.items()
    ]
    if rows:
        names = [f"{m.title} {m.unit}".rstrip() for m in METRICS]
        show_table(("target", "group", *names, "members", "non-members"), rows)
    _say(
        [
            *(f"fact {name}: {value}" for name, value in record.facts.items()),
            *_findings(record),
            *_origin(record),
        ]
    )


def _members(record: Record) -> str:
    """Of several coalitions, each one's."""
    several = record.described.get("coalitions")
    return (
        ", ".join(map(str, several.values())) if isinstance(several, dict) else str(record.members)
    )


def _findings(record: Record) -> list[str]:
    """A line a number; of an array, its name."""
    lines = []
    for label, found in record.analyses.items():
        for name, n in found.numbers.items():
            error = "" if n.error is None else f" (standard error {_number(n.error)})"
            lines.append(f"{label} {name}: {_number(n.value)} {n.unit}".rstrip() + error)
        lines += [
            f"{label} {name}: an array, {unit or 'without unit'}"
            for name, unit in found.arrays.items()
        ]
    return lines


def _origin(record: Record) -> list[str]:
    m, p = record.measured, record.provenance
    commit = f"{(p.git_commit or 'wheel')[:12]}{' dirty' if p.git_dirty else ''}"
    return [
        f"measured {m.started}: wall {m.wall_s} s, CPU {m.cpu_s} s (training {m.train_cpu_s}, "
        f"signals {m.signals_cpu_s}, "
        f"attack {m.attack_cpu_s}), peak {m.peak_memory_mb} MB",
        f"fedbench {p.fedbench} ({commit}), Python {p.python}, torch {p.torch}, {p.cpu}, "
        f"{p.device}, {p.dtype}, "
        f"{p.threads} thread",
    ]


def _say(lines: list[str]) -> None:
    for line in lines:
        say(clipped(line, 10_000))
