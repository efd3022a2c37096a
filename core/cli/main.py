"""The command `fedbench`: commands are imported when they are called, so help and errors are quick."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import click
from click.shell_completion import CompletionItem

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
    "schema": ("fedbench.core.cli.suites:schema", "The JSON schema of suites, for editors."),
    "completion": (
        "fedbench.core.cli.machine:completion",
        "A shell's script: complete commands, options, names.",
    ),
    "new": (
        "fedbench.core.cli.plugins:new",
        "Write a package of your own: defense, attack, dataset and more.",
    ),
    "clean": ("fedbench.core.cli.machine:clean", "Remove caches, never results."),
}

# how the help lists them; what is in no section follows them
SECTIONS = {
    "Measure": ("list", "validate", "run", "show", "leaderboard"),
    "Watch for changes": ("baseline", "compare"),
    "Share results": ("export", "import", "reproduce", "judge", "merge"),
    "Plugins of your own": ("new", "check", "plugins"),
    "This machine": ("doctor", "schema", "completion", "clean"),
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


# a folder that cannot be read or written: for the user to fix, not a defect of fedbench
_OF_THE_MACHINE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EIO,
}


@cache
def commands() -> dict[str, str]:
    """Name -> "module:attribute" of every command: those of core, then those of the group
    ``fedbench.commands`` of fedbench's own distribution. Other packages announce reports instead:
    their code never runs in the user's process.
    """
    announced = sorted(
        distribution(DISTRIBUTION).entry_points.select(group="fedbench.commands"),
        key=lambda point: point.name,
    )
    found = {name: where for name, (where, _) in COMMANDS.items()} | {
        point.name: point.value for point in announced
    }
    return {name: found[name] for names in sections(found).values() for name in names}


def sections(found: Iterable[str]) -> dict[str, list[str]]:
    """Heading -> commands of ``found``, as the help lists them."""
    named = {name for names in SECTIONS.values() for name in names}
    listed = {heading: [n for n in names if n in found] for heading, names in SECTIONS.items()}
    listed["Other commands"] = [n for n in found if n not in named]
    return {heading: names for heading, names in listed.items() if names}


class LazyGroup(click.Group):
    """Commands by name and one-line help; a command that cannot be imported leaves the others
    working.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in commands():
            return None
        module, _, attribute = commands()[cmd_name].partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ImportError as exc:
            raise UserError(f"the command '{cmd_name}' cannot be loaded: {exc}") from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, commands()))
        for heading, names in sections(commands()).items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.summary(ctx, name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands without importing them, and this group's own options."""
        names = [
            CompletionItem(n, help=COMMANDS.get(n, ("", None))[1])
            for n in commands()
            if n.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def summary(self, ctx: click.Context, name: str) -> str:
        """One line of help; a command that cannot be loaded says so in its place."""
        if name in COMMANDS:
            return COMMANDS[name][1]
        try:
            command = self.get_command(ctx, name)
        except UserError as exc:
            return exc.messages[0]
        return command.get_short_help_str(100) if command else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in commands() and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'{did_you_mean(args[0], commands()) or '.'}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as exc:
            for message in exc.messages:
                say(message, err=True)
            raise click.exceptions.Exit(2) from None
        except BrokenPipeError:
            # for what its buffer still holds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            say(
                "standard output was closed before all was printed; for all of it: fedbench ... > "
                "FILE",
                err=True,
            )
            raise click.exceptions.Exit(2) from None
        except MemoryError:
            say(
                "not enough memory: free some, raise the limit (`ulimit -v`), or name fewer "
                "results",
                err=True,
            )
            raise click.exceptions.Exit(2) from None
        except OSError as exc:
            if exc.errno not in _OF_THE_MACHINE:
                raise
            say(f"{exc.filename or 'a file'}: {exc.strerror}", err=True)
            raise click.exceptions.Exit(2) from None


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


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals that ask the command to end raise ``KeyboardInterrupt``; an ignored one (`nohup`)
    stays ignored.
    """
    before = {s: signal.getsignal(s) for s in _ASK_TO_END}
    ours = [s for s in _ASK_TO_END if before[s] == signal.SIG_DFL]
    for s in ours:
        signal.signal(s, signal.default_int_handler)
    try:
        yield
    finally:
        for s in ours:
            signal.signal(s, before[s])


@cache
def intruders() -> list[str]:
    """Distributions other than fedbench's own that installed files in ``fedbench/`` or the command
    `fedbench`.
    """
    found: set[str] = set()
    for record in (
        record for folder in sys.path for record in Path(folder).glob("*.dist-info/RECORD")
    ):
        files = record.read_bytes()
        if files.startswith(b"fedbench/") or b"\nfedbench/" in files or b"/bin/fedbench," in files:
            found.add(record.parent.name.partition("-")[0].replace("_", "-"))
    return sorted(found - {DISTRIBUTION})


def _obstacle() -> str | None:
    """Return why no command can work in this process, with the remedy."""
    if sys.stdout is None:
        return "standard output is closed: redirect it, for example with > /dev/null"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE:
        return (
            f"`ulimit -v` allows {limit >> 20:,} MiB of address space, and numpy and torch map up "
            "to "
            f"{_ADDRESS_SPACE >> 20:,}: raise it with `ulimit -v unlimited`"
        )
    if names := " ".join(intruders()):
        return (
            "other packages have files in fedbench/ or its command, so that this may be their "
            "code: "
            f"{names}; run `pip uninstall {names}`, then "
            f"`pip install --force-reinstall --no-deps {DISTRIBUTION}`"
        )
    return None


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status. A user's mistake is a message, never a traceback."""
    if obstacle := _obstacle():
        say(obstacle, err=True)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that has no letter for "±" shows a question mark
            stream.reconfigure(errors="replace")
    try:
        with interruptible():
            status = cli.main(args=args, prog_name="fedbench", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return 130
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    raise SystemExit(main())
