"""What the command line prints goes out here: whatever a plugin, a suite or a record put into it, a terminal only shows it."""

from __future__ import annotations

import click

from fedbench.core.words import printable_lines


def say(text: str, err: bool = False) -> None:
    """Print a text and a line break; its own line breaks stay, whatever a terminal would act on or hide is its code."""
    click.echo(printable_lines(text), err=err)
