"""`fedbench show`: one record, or a cell's history."""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.contract.errors import UserError
from fedbench.core.nearest import by_nearness


@click.command(epilog="""\b
Examples:
  fedbench show results/partial_defense                        the records there are
  fedbench show results/partial_defense cofedmid--fedmia-ii    every record whose name contains the text
  fedbench show results/partial_defense 4f21c0 --history       a key's first letters will do
  fedbench show results/partial_defense 4f21c0 --json""")
@click.argument("results", type=click.Path(path_type=Path))
@click.argument("cell", required=False)
@click.option("--history", is_flag=True, help="The cell's rounds: accuracy and training loss of the global model.")
@click.option("--json", "as_json", is_flag=True, help="The record as it is on disk.")
def command(results: Path, cell: str | None, history: bool, as_json: bool) -> None:
    """Show the record of CELL (part of its file name, or of its key) in RESULTS."""
    from fedbench.core.store.results import Results

    store = Results.open(results.absolute())
    stems = sorted(p.stem for p in store.records.glob("*.json"))
    found = [s for s in stems if cell is None or cell in s] or [s for s in stems if _key_matches(store, s, cell)]
    if not found:
        near = ", ".join(by_nearness(cell or "", stems)[:3]) or "none"
        raise UserError(f"no record in {store.records} contains '{cell}'; the nearest are {near}")
    if len(found) > 1:
        for stem in found:
            record = store.read(stem)
            assert record is not None
            click.echo(f"{record.outcome:9}{_headline(record):32}{stem}")
        return
    if as_json:
        click.echo(store.path(found[0]).read_text())
        return
    _print(store.read(found[0]), found[0], history)


def _key_matches(store, stem: str, cell: str | None) -> bool:
    record = store.read(stem)
    return cell is not None and record is not None and record.key.startswith(cell)


def _headline(record) -> str:
    mix = record.pooled.get("mix")
    if mix is None:
        return record.reason[:30]
    tf01 = "n/a" if mix.tf01 is None else f"{mix.tf01:.2f} %"
    return f"AUC {mix.auc:.3f}  TF01 {tf01}"


def _print(record, stem: str, history: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{stem}\n{record.outcome} {record.reason}".rstrip())
    console.print(f"key {record.key}\nrun {record.run_key}")
    console.print(f"defense {record.defense.label} {record.defense.params}")
    console.print(f"attack  {record.attack.label} {record.attack.params} (view: {record.view})")
    console.print(f"setting {record.setting}, coalition {record.coalition} {record.members}, seed {record.seed}")
    if record.utility:
        console.print(f"test accuracy {record.utility.accuracy:.4f} (n={record.utility.n_test})")
    for note in record.notes:
        console.print(f"note: {note}")
    table = Table("target", "group", "AUC", "TF01 %", "advantage", "members", "non-members")
    rows = [(str(t.target), t.groups) for t in record.targets] + [("pooled", record.pooled)]
    for target, groups in rows:
        for group, s in groups.items():
            values = [s.auc, s.tf01, s.advantage]
            shown = ["n/a" if v is None else f"{v:.4g}" for v in values]
            table.add_row(target, group, *shown, str(s.n_members), str(s.n_nonmembers))
    if record.targets:
        console.print(table)
    if history:
        rounds = Table("round", "test accuracy", "training loss")
        for row in record.history:
            rounds.add_row(str(row.round), f"{row.accuracy:.4f}", "n/a" if row.train_loss is None else f"{row.train_loss:.4f}")
        console.print(rounds)
    m, p = record.measured, record.provenance
    console.print(
        f"measured {m.started}: wall {m.wall_s} s, CPU {m.cpu_s} s (training {m.train_cpu_s}, signals {m.signals_cpu_s}, "
        f"attack {m.attack_cpu_s}), peak {m.peak_memory_mb} MB"
    )
    console.print(
        f"fedbench {p.fedbench} ({(p.git_commit or 'wheel')[:12]}{' dirty' if p.git_dirty else ''}), Python {p.python}, "
        f"torch {p.torch}, {p.cpu}, {p.device}, {p.dtype}, {p.threads} thread"
    )
