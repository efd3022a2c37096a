"""fedbench new: a whole package of one's own, to begin with."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say
from fedbench.core.contract.hooks import PROJECT

_KINDS = ("defense", "attack", "dataset", "model", "signal", "analysis")


@click.command(epilog=examples(
    "fedbench new defense my-defense",
    "fedbench new attack my-attack --into ~/work --author 'Jo Doe'",
    "fedbench new dataset my-data --dry-run",
))  # fmt: skip
@click.argument("kind", type=click.Choice(_KINDS), metavar=f"{{{'|'.join(_KINDS)}}}")
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=".", metavar="FOLDER",
              help="Write the package's folder into this one (default: here).")
@click.option("--author", help="Name in pyproject.toml and LICENSE (default: git's user.name).")
@click.option("--dry-run", is_flag=True, help="Only show which files would be written.")
def command(kind: str, name: str, into: Path, author: str | None, dry_run: bool) -> None:
    """Write a package of your own: an installable fedbench-NAME with a working method to replace.

    It holds the announcement, the method with its parameters, tests of the contract and of the method's property, a suite
    that shows it beside built-in ones in under a minute, a README, a licence note and a CI workflow. All of it works as
    written. An existing folder is never touched.
    """
    from fedbench.core.registry.components import Registry
    from fedbench.core.scaffold import author_of, names_of, package_files, refuse_existing, refuse_taken, write_folder

    names = names_of(kind, name)
    target = into.expanduser() / names.distribution
    written = package_files(names, author_of(author), version(PROJECT))
    refuse_existing(target)
    refuse_taken(names, Registry.discover())
    if not dry_run:
        write_folder(target, written)
    say(f"{'would write' if dry_run else 'wrote'} {target}, {len(written)} files:")
    for path in written:
        say(f"  {path}")
    say("next:")
    say(f"  cd {shlex.quote(str(target))}")
    say("  pip install -e '.[test]' && pytest")
    say(f"  fedbench run suites/{names.name}.yaml")
