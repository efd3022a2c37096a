"""The command `fedbench`. Commands are imported when called, so help and errors are quick."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import click

from fedbench.core.cli.output import say
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.words import did_you_mean

COMMANDS = {
    "run": (
        "fedbench.core.cli.run:command",
        "Train and attack what a suite asks for; finish what is missing.",
    ),
    "validate": (
        "fedbench.core.cli.suites:validate",
        "Check suites without running them; all mistakes at once.",
    ),
    "audit": (
        "fedbench.core.cli.audit:command",
        "Judge a federation that was trained elsewhere.",
    ),
    "list": (
        "fedbench.core.cli.plugins:list_",
        "Defenses, attacks, analyses, datasets and more; suites.",
    ),
    "show": ("fedbench.core.cli.show:command", "Show the records of a result folder."),
    "leaderboard": (
        "fedbench.core.cli.leaderboard:command",
        "Turn results into a leaderboard or another report.",
    ),
    "judge": (
        "fedbench.core.cli.judge:command",
        "Score kept observations by another attack; no training.",
    ),
    "plugins": (
        "fedbench.core.cli.plugins:plugins",
        "Every installed plugin, and why one does not work.",
    ),
    "doctor": (
        "fedbench.core.cli.machine:doctor",
        "Versions, devices and data folder of this machine.",
    ),
    "schema": (
        "fedbench.core.cli.suites:schema",
        "JSON schemas: of suites, for editors, and of written files.",
    ),
    "new": (
        "fedbench.core.cli.plugins:new",
        "Write a package of your own: defense, attack, dataset and more.",
    ),
    "clean": ("fedbench.core.cli.machine:clean", "Remove caches, never results."),
}

# how the help lists them; what is in no section follows them
SECTIONS = {
    "Measure": ("list", "validate", "run", "audit", "show", "leaderboard"),
    "Watch for changes": ("baseline", "compare"),
    "Share results": ("export", "import", "reproduce", "judge", "merge"),
    "Plugins of your own": ("new", "check", "plugins"),
    "This machine": ("doctor", "schema", "clean"),
}

_EPILOG = """\b
Examples:
  fedbench list                        what can be benchmarked, with what
  fedbench list attacks --params       the attacks' parameters and ranges
  fedbench validate my_suite.yaml      check a suite before hours of training
  fedbench run partial_defense         run a shipped suite; again to resume
  fedbench run my_suite.yaml --set seeds=[0]

\b
Exit status: 0 success, 1 a cell failed, 2 a mistake in the command or suite,
130 interrupted.
"""


@cache
def commands() -> dict[str, str]:
    """Return name -> "module:attribute" of every command, in the order of the help.

    They are those of core, then those of the group ``fedbench.commands`` of fedbench's own
    distribution. Other packages announce reports: their code never runs in the user's process.
    """
    announced = distribution(DISTRIBUTION).entry_points.select(group="fedbench.commands")
    targets = {name: target for name, (target, _) in COMMANDS.items()}
    targets |= {point.name: point.value for point in sorted(announced, key=lambda p: p.name)}
    ordered = dict.fromkeys([*chain(*SECTIONS.values()), *targets])
    return {name: targets[name] for name in ordered if name in targets}


class LazyGroup(click.Group):
    """Commands by name and one-line help; one that cannot be imported leaves the others working."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in commands():
            return None
        module, _, attribute = commands()[cmd_name].partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ImportError as error:
            raise UserError(f"the command '{cmd_name}' cannot be loaded: {error}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: (f"{name:11}", self.summary(ctx, name)) for name in commands()}
        for heading, names in {**SECTIONS, "Other commands": tuple(rows)}.items():
            listed = [rows.pop(name) for name in names if name in rows]
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return one line of help; for a command that cannot be loaded, the reason."""
        if name in COMMANDS:
            return COMMANDS[name][1]
        try:
            command = self.get_command(ctx, name)
        except UserError as error:
            return error.messages[0]
        return command.get_short_help_str(100) if command else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in commands() and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'{did_you_mean(args[0], commands()) or '.'}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a user's mistake is printed and gives exit status 2."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            messages = error.messages
        except BrokenPipeError:
            # for what its buffer still holds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            messages = (
                "standard output was closed before all was printed; for all of it: "
                "fedbench ... > FILE",
            )
        except MemoryError:
            messages = (
                "not enough memory: free some, raise the limit (`ulimit -v`), or name fewer "
                "results",
            )
        except OSError as error:
            # a file that cannot be read or written, or a full disk, is for the user to fix
            if error.filename is None and error.errno != errno.ENOSPC:
                raise
            messages = (f"{error.filename or 'a file'}: {error.strerror}",)
        for message in messages:
            say(message, err=True)
        raise click.exceptions.Exit(2)


@click.group(
    cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name=DISTRIBUTION, message="fedbench %(version)s")
def cli() -> None:
    """Measure privacy leaks in federated learning: train federations under a defense, attack them,
    rank the results.

    A suite is a YAML file that names settings, defenses, attacks and seeds. Defenses, attacks and
    datasets are plugins.
    """


_ADDRESS_SPACE = 4 << 30  # bytes; with less, libraries hang or abort while they are imported
_ASK_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@cache
def intruders() -> list[str]:
    """Return other distributions with files in ``fedbench/`` or the command `fedbench`."""
    names: set[str] = set()
    for folder in sys.path:
        for record in Path(folder).glob("*.dist-info/RECORD"):
            files = b"\n" + record.read_bytes()
            if b"\nfedbench/" in files or b"/bin/fedbench," in files:
                names.add(record.parent.name.partition("-")[0].replace("_", "-"))
    return sorted(names - {DISTRIBUTION})


def _obstacle() -> str | None:
    """Return why no command can work in this process, with the remedy."""
    if sys.stdout is None:
        return "standard output is closed: redirect it, for example with > /dev/null"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE:
        return (
            f"`ulimit -v` allows {limit >> 20:,} MiB of address space, and numpy and torch map up "
            f"to {_ADDRESS_SPACE >> 20:,}: raise it with `ulimit -v unlimited`"
        )
    if names := " ".join(intruders()):
        return (
            "other packages have files in fedbench/ or its command, so that this may be their "
            f"code: {names}; run `pip uninstall {names}`, then "
            f"`pip install --force-reinstall --no-deps {DISTRIBUTION}`"
        )
    return None


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. A user's mistake is a message."""
    if obstacle := _obstacle():
        say(obstacle, err=True)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that has no letter for "±" shows a question mark
            stream.reconfigure(errors="replace")
    for number in _ASK_TO_END:
        if signal.getsignal(number) == signal.SIG_DFL:  # an ignored one (`nohup`) stays ignored
            signal.signal(number, signal.default_int_handler)
    try:
        status = cli.main(args=args, prog_name="fedbench", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    raise SystemExit(main())
