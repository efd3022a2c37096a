"""`fedbench show`: one record, or a line for each of several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import examples, json_option, results_argument
from fedbench.core.cli.output import clipped, opened, say, say_json, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.discovery import of_leaderboard
from fedbench.core.words import DOCS, by_nearness

if TYPE_CHECKING:
    from fedbench.core.store.reading import LoadedRecord

MOST_VULNERABLE = 20
"""candidates of a row"""


@click.command(
    epilog=examples(
        "fedbench show results/partial_defense                      every record",
        "fedbench show results/partial_defense cofedmid--fedmia-ii  all with the text in their "
        "name",
        "fedbench show results/partial_defense 4f21c0 --json        a key's first letters will do",
        "fedbench show results/auditors digits--uniform--none --vulnerable",
    )
)
@results_argument
@click.argument("cell", required=False)
@click.option(
    "--vulnerable",
    is_flag=True,
    help="List the candidates of the rows of CELL that the strongest attack finds most often, "
    f"where seeds are federations of one pool ({DOCS}/auditing.md).",
)
@json_option
def command(results: Path, cell: str | None, vulnerable: bool, as_json: bool) -> None:
    """Show the record of CELL (part of its name, or of its key) in RESULTS; of several, a line
    each.
    """
    records = find(results.absolute(), cell or "")
    if vulnerable:
        stems = {loaded.stem for loaded in records}
        lines = of_leaderboard("vulnerable")(results.absolute(), stems, MOST_VULNERABLE)
        if as_json:
            say_json(lines)
        else:
            _print_vulnerable(lines)
    elif as_json:
        documents = [json.loads(loaded.record.model_dump_json()) for loaded in records]
        say_json(documents if len(documents) > 1 else documents[0])
    elif len(records) == 1:
        _print(records[0])
    else:
        _list(records)


def find(root: Path, text: str) -> list[LoadedRecord]:
    """Return the records with ``text`` in their name, or else at the start of their key.

    Raises:
        UserError: where there are none.
    """
    from fedbench.core.store.reading import load_records

    loaded = load_records(opened(root).root, arrays=False)  # only the records are shown
    matching = [r for r in loaded if text in r.stem]
    matching = matching or [r for r in loaded if r.record.key.startswith(text)]
    if not matching:
        near = ", ".join(by_nearness(text, [r.stem for r in loaded])[:3])
        raise UserError(
            f"no record in {root} has '{text}' in its name or key; the nearest are {near}"
        )
    return matching


def _print_vulnerable(lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        if "reason" in line:
            say(f"{line['section']}, {line['defense']}: {line['reason']}")
        else:
            share = f"{line['found']} of {line['federations']}"
            candidate = line["target"], line["sample"], share, f"{line['deviation']:.2f}"
            rows.append([line["section"], line["defense"], line["attack"], *candidate])
    if rows:
        header = "section,defense,attack,target,sample,found in,deviation"
        show_table(header.split(","), rows)


def _list(records: list[LoadedRecord]) -> None:
    """Print a line per cell."""
    rows = []
    for loaded in records:
        record = loaded.record
        auc = ""
        tf01 = ""
        if "mix" in record.pooled:
            auc, tf01 = (_number(record.pooled["mix"].value(name)) for name in ("auc", "tf01"))
        rows.append([record.outcome, auc, tf01, loaded.stem, clipped(record.reason)])
    show_table(["outcome", "AUC", "TF01 %", "cell", "reason"], rows)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _print(loaded: LoadedRecord) -> None:
    from fedbench.core.metrics.registry import METRICS

    _say(_heading(loaded))
    record = loaded.record
    scores = [(str(t.target), t.groups) for t in record.targets] + [("pooled", record.pooled)]
    rows = []
    for target, groups in scores:
        for group, s in groups.items():
            values = [_number(s.value(metric.name)) for metric in METRICS]
            rows.append((target, group, *values, s.n_members, s.n_nonmembers))
    if rows:
        names = [f"{metric.title} {metric.unit}".rstrip() for metric in METRICS]
        show_table(("target", "group", *names, "members", "non-members"), rows)
    _say(_details(loaded))


def _heading(loaded: LoadedRecord) -> Iterator[str]:
    """Yield lines on what was run, and how it ended."""
    record = loaded.record
    yield loaded.stem
    if loaded.bundle:
        yield f"imported from the bundle {loaded.bundle}"
    yield f"{record.outcome} {record.reason}".rstrip()
    yield f"key {record.key}"
    yield f"run {record.run_key}"
    yield f"defense {record.defense.label} {record.defense.params}"
    known = f", against {', '.join(record.against)}" if record.against else ""
    yield f"attack  {record.attack.label} {record.attack.params} (view: {record.view}{known})"
    members: Any = record.members
    several = record.described.get("coalitions")
    if isinstance(several, dict):
        members = ", ".join(map(str, several.values()))
    yield (f"setting {record.setting}, coalition {record.coalition} {members}, seed {record.seed}")
    if utility := record.utility:
        last = f"{utility.accuracy:.4f} after the last round, n={utility.n_test}"
        mean = f"{record.accuracy:.4f} {utility.unit}".rstrip()
        yield f"test {utility.name} {mean} ({last})"
    for note in record.notes:
        yield f"note: {note}"


def _details(loaded: LoadedRecord) -> Iterator[str]:
    """Yield lines on facts, findings and origin."""
    record = loaded.record
    for name, value in record.facts.items():
        yield f"fact {name}: {value}"
    for label, findings in record.analyses.items():
        for name, n in findings.numbers.items():
            error = "" if n.error is None else f" (standard error {_number(n.error)})"
            yield f"{label} {name}: {_number(n.value)} {n.unit}".rstrip() + error
        for name, unit in findings.arrays.items():
            yield f"{label} {name}: an array, {unit or 'without unit'}"
    m = record.measured
    p = record.provenance
    yield (
        f"measured {m.started}: wall {m.wall_s} s, CPU {m.cpu_s} s (training {m.train_cpu_s}, "
        f"signals {m.signals_cpu_s}, attack {m.attack_cpu_s}), peak {m.peak_memory_mb} MB"
    )
    commit = f"{(p.git_commit or 'wheel')[:12]}{' dirty' if p.git_dirty else ''}"
    yield (
        f"fedbench {p.fedbench} ({commit}), Python {p.python}, torch {p.torch}, {p.cpu}, "
        f"{p.device}, {p.dtype}, {p.threads} thread"
    )


def _say(lines: Iterator[str]) -> None:
    for line in lines:
        say(clipped(line, 10_000))
