"""Results folders as commands open them: what the user should know of one is said on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.core.cli.say import say

if TYPE_CHECKING:
    from fedbench.core.store.results import Results


def opened(root: Path) -> Results:
    """An existing results folder, for reading. Raises ``UserError`` for one that is not fedbench's."""
    from fedbench.core.store.results import Results

    return told(Results.open(root.absolute()))


def told(store: Results) -> Results:
    """The same folder, its notes said."""
    for note in store.notes:
        say(note, err=True)
    return store
