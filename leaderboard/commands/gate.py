"""The commands `fedbench baseline` and `compare`: what changed since a baseline or is above a
ceiling, as an exit status, a table for a pull request and JUnit XML.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbench.core import UserError
from fedbench.core.cli.options import examples, results_argument
from fedbench.core.cli.output import opened, say

if TYPE_CHECKING:
    from fedbench.leaderboard.comparison.compare import Side

_CHANGES = ("refuted", "worse", "better", "missing", "not-comparable", "moved", "new")
_ANY = "any-change"
_METRICS = ("accuracy", "auc", "loss", "tf01", "utility")


def _verdicts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:  # an unset variable of a workflow would be a gate that never fails
        raise click.BadParameter("names no verdict; a gate that only prints is --fail-on nothing")
    if "nothing" in names and len(names) > 1:
        raise click.BadParameter(f"'{value}': nothing goes with no other verdict")
    for name in names:
        if name not in (*_CHANGES, _ANY, "nothing"):
            raise click.BadParameter(
                f"'{name}' is none of {', '.join((*_CHANGES, _ANY, 'nothing'))}"
            )
    return tuple(v for v in _CHANGES if v in names or _ANY in names)


def _numbers(names: Sequence[str], value: Sequence[str], example: str) -> dict[str, float]:
    """Read ``NAME=NUMBER`` of an option that may be given several times."""
    values = {}
    for text in value:
        name, _, number = text.partition("=")
        if name not in names:
            raise click.BadParameter(f"'{name}' is none of {', '.join(names)}")
        try:
            values[name] = float(number)
        except ValueError:
            raise click.BadParameter(f"'{text}' is not NAME=NUMBER, like {example}") from None
        if not 0 <= values[name] < float("inf"):
            raise click.BadParameter(f"'{text}': expected 0 or more")
    return values


def _floors(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, float]:
    return _numbers(_METRICS, value, "auc=0.02")


def _ceilings(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, float]:
    if not value:
        return {}
    from fedbench.leaderboard.gate.ceilings import NAMES

    return _numbers(NAMES, value, "worst_auc=0.6")


def _require_other_files(results: Path, baseline: Path | None, *written: Path | None) -> None:
    """Refuse to write over what is compared."""
    used = [baseline.resolve()] if baseline else []
    for path in (p for p in written if p is not None):
        if path.resolve() in used or path.resolve().is_relative_to(results.resolve() / "records"):
            raise UserError(
                f"{path}: is what is compared, or is written twice; nothing was written - name "
                "another file"
            )
        used.append(path.resolve())


@click.command(
    name="compare",
    short_help="What changed since a baseline, or is above a ceiling; exit status 1.",
    epilog=examples(
        "fedbench compare results/partial_defense baseline.json",
        "fedbench compare results/partial_defense baseline.json --fail-on any-change",
        "fedbench compare results/partial_defense baseline.json --for attack --floor auc=0.02",
        "fedbench compare results/partial_defense baseline.json --output gate.md --json gate.json",
        "fedbench compare results/partial_defense --max worst_auc=0.6 --max tf01=2 --junit a.xml",
    )
    + "\n\n\b\nExit status: 0 fine, 1 a cell has a verdict of --fail-on, no number could "
    "be\ncompared, or one is not below its ceiling, 2 your mistake.",
)
@results_argument
@click.argument("baseline", required=False, type=click.Path(path_type=Path))
@click.option(
    "--max",
    "most",
    multiple=True,
    callback=_ceilings,
    metavar="NAME=NUMBER",
    help="The most that a number of each defense may be, by the upper end of its 95 % interval: "
    "worst_auc, mean_auc, tf01 (in %), runtime (over plain training), epsilon_lower (seeds of one "
    "pool; the bound itself). Without an interval it is not known, and fails: one seed, too few "
    "non-members, an attack without scores. Of a folder without a defense, the undefended row is "
    "judged. May be given several times; needs no BASELINE.",
)
@click.option(
    "--for",
    "side",
    type=click.Choice(["defense", "attack"]),
    default="defense",
    show_default=True,
    help="Who reads it: an AUC that rises is worse for a defense, one that falls is worse for an "
    "attack. A loss of test accuracy, or of another task's utility, is worse for both.",
)
@click.option(
    "--fail-on",
    callback=_verdicts,
    default="refuted,worse,missing,not-comparable",
    show_default=True,
    metavar="VERDICT,...",
    help=f"What exits with 1: {', '.join(_CHANGES)}; {_ANY} is all of them, nothing is none.",
)
@click.option(
    "--floor",
    "floors",
    multiple=True,
    callback=_floors,
    metavar="NAME=NUMBER",
    help="The smallest change that counts: auc (0.01), tf01 (1, in %), accuracy (0.01), "
    "another task's utility (0.001), or loss (0.001) where a lower one is better. May be given "
    "several times.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the table to this file.",
)
@click.option(
    "--junit",
    "as_junit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write JUnit XML to this file: a test case a defense and ceiling, and one a compared "
    "cell.",
)
@click.option(
    "--json",
    "as_json",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write everything to this file, for programs; without one print it instead.",
)
def compare_command(
    results: Path,
    baseline: Path | None,
    most: dict[str, float],
    side: Side,
    fail_on: tuple[str, ...],
    floors: dict[str, float],
    output: Path | None,
    as_junit: Path | None,
    as_json: Path | None,
) -> None:
    """Compare RESULTS with the file that `fedbench baseline` wrote: every number is identical (the
    scores are the same bits), moved (within its tolerance), better or worse; every cell may be
    missing, new or not comparable, where data, split or protocol changed. On another type of
    machine, where bits cannot agree, same stands for moved. Prints Markdown.

    Seeds that both have are compared in pairs. A change counts when it is larger than the floor and
    than its interval, which is corrected for the number of comparisons, so that an unchanged tree
    stays green.

    With --max, numbers are held against ceilings, too; BASELINE may then be left out.
    """
    from fedbench.core.store.files import write_atomically
    from fedbench.leaderboard.comparison.compare import compare
    from fedbench.leaderboard.gate.ceilings import ceilings_of
    from fedbench.leaderboard.gate.file import read_baseline, snapshot_in
    from fedbench.leaderboard.gate.junit import junit
    from fedbench.leaderboard.gate.report import Gate, markdown
    from fedbench.leaderboard.gate.report import as_json as json_of

    if baseline is None and not most:
        raise UserError(
            "nothing to compare RESULTS with: name a BASELINE, or a ceiling such as --max "
            "worst_auc=0.6"
        )
    _require_other_files(results, baseline, output, as_json, as_junit)
    comparison = None
    if baseline is not None:
        old = read_baseline(baseline)
        new = snapshot_in(opened(results).root)
        comparison = compare(new, old, side=side, floors=floors)
    ceilings = ceilings_of(opened(results).root, most) if most else []
    gate = Gate(comparison=comparison, fail_on=fail_on, ceilings=tuple(ceilings))
    table, document = markdown(gate), json_of(gate)
    printed = as_json is not None and str(as_json) == "-"
    say((document if printed else table).rstrip("\n"))
    if output is not None:
        write_atomically(output.absolute(), table.encode())
    if as_junit is not None:
        write_atomically(as_junit.absolute(), junit(gate))
    if as_json is not None and not printed:
        write_atomically(as_json.absolute(), document.encode())
    if gate.failed:
        raise click.exceptions.Exit(1)


@click.command(
    name="baseline",
    short_help="Keep what results say in a small file for `compare`.",
    epilog=examples(
        "fedbench baseline results/partial_defense -o baseline.json",
        "fedbench baseline results/partial_defense -o baseline.json --force    renew it when a "
        "change is meant",
    ),
)
@results_argument
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write: JSON of one line a cell, made for git.",
)
@click.option("--force", is_flag=True, help="Replace FILE where it exists.")
def baseline_command(results: Path, file: Path, force: bool) -> None:
    """Write the values of every cell in RESULTS to a file, with what makes them comparable.

    Every number is counted again from the scores first. Cells that an attack does not apply to, or
    that diverged, are left out; with cells that failed nothing is written.
    """
    from fedbench.core.words import bounded
    from fedbench.leaderboard.comparison.cells import failures
    from fedbench.leaderboard.gate.file import snapshot_in, write_baseline

    root = opened(results).root
    snapshot = snapshot_in(root)
    if failed := failures(snapshot):
        remedy = "a baseline needs its scores: `fedbench run SUITE --rerun failed`"
        raise UserError(*bounded(f"{root}: {cell}; {remedy}" for cell in failed))
    if not snapshot.cells:
        raise UserError(
            f"{root}: no cell has scores, so there is nothing to compare with later; nothing was "
            "written"
        )
    write_baseline(file, snapshot, force)
    left_out = sum(map(len, snapshot.unscored.values()))
    rest = f", without {left_out} that were skipped or diverged" if left_out else ""
    say(f"{file}: {len(snapshot.cells)} cells on {len(snapshot.seeds)} seeds{rest}")
