"""fedbench completion: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say

VARIABLE = "_FEDBENCH_COMPLETE"


@click.command(epilog=examples(
    "fedbench completion bash > ~/.local/share/bash-completion/completions/fedbench",
    "fedbench completion zsh > ~/.zfunc/_fedbench      a folder of $fpath",
    "fedbench completion fish > ~/.config/fish/completions/fedbench.fish",
))  # fmt: skip
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete fedbench's commands, options, suites, plugins and results folders."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # one of the choices, all of which click has
    # not `source()`: of bash it starts a shell to look at its version, and prints what it thinks of it
    script = made(ctx.find_root().command, {}, "fedbench", VARIABLE)
    say((script.source_template % script.source_vars()).strip())
