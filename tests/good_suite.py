"""A suite without a mistake, as a file, and what becomes of it by small changes of its text."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
schema: 1
name: small
seeds: [0, 1]
settings:
  - name: digits
    dataset: digits
    partition: iid
    federation:
      clients: 4
      rounds: 10
      batch_size: 20
      optimizer: {name: sgd, lr: 0.1}
    audit: {every: 5}
coalitions: [pair, half]
defenses:
  - none
  - {name: grad-noise, params: {sigma: 0.01}}
attacks:
  - loss-series
floors: []
"""


def write(folder: Path, text: str | bytes) -> Path:
    """The text as suite.yaml in ``folder``."""
    path = folder / "suite.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def edited(*edits: tuple[str, str]) -> str:
    """GOOD with these replacements, each of a text that stands there once."""
    text = GOOD
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
