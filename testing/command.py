"""fedbench check: does a component keep the contract?"""

from __future__ import annotations

from pathlib import Path

import click

from fedbench.core.cli import complete
from fedbench.core.cli.options import debug_option, examples
from fedbench.core.cli.say import say
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.kinds import KINDS


@click.command(epilog=examples(
    "fedbench check update-noise",
    "fedbench check my-attack my-signal --markdown report.md",
    "fedbench check grad-noise --param sigma=0.5",
    "fedbench check --list",
))  # fmt: skip
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete.components)
@click.option("--kind", type=click.Choice(KINDS), help="Which kind of component, where several have the name.")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE",
              help="A parameter's value, in YAML; may be given several times.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report to this file.")
@click.option("--list", "list_", is_flag=True, help="What is checked, of which kinds of component; nothing is run.")
@debug_option
def command(names: tuple[str, ...], kind: str | None, params: tuple[str, ...], markdown: Path | None, list_: bool) -> None:
    """Check that components keep the contract.

    NAME is what an installed package announces. Every check runs in a process apart; the report is Markdown. Exit status 1 when
    a check failed.
    """
    if markdown is not None and not markdown.absolute().parent.is_dir():
        raise UserError(f"{markdown}: the folder {markdown.absolute().parent} does not exist; make it first")
    from fedbench.core.store.files import write_atomically
    from fedbench.testing.running import listed, report_of, values

    if list_:
        say(listed())
        return
    if not names:
        raise click.UsageError("name a component to check, or use --list")
    reports = report_of(names, kind, values(params))
    text = "\n".join(report.markdown() for report in reports)
    say(text.rstrip("\n"))
    if markdown is not None:
        write_atomically(markdown.absolute(), text.encode())
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(1)
