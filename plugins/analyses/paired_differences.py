"""Two defenses side by side: by how much one leaks more, and is more accurate, than the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from fedbench.core import Analysis, Block, Column, Duel, Params, Section, Table, Words, value


class PairedDifferences(Analysis):
    """The first defense of each pair minus the second, on the same candidates and test samples of the same seeds.

    Reads scores and accuracies alone; asks nothing of a run. Verdicts are for all pairs of a section together (Holm).
    """

    by_default = False
    place = "costs"

    class Params(Params):
        pairs: list[tuple[str, str]] = Field([], max_length=50, description="labels of two defenses: the first minus the second")

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a pair; a pair of which a defense is not in the section is left out."""
        found = section.duels(self.params.pairs)
        if found:
            yield _table(found)


def _table(found: Sequence[Duel]) -> Table:
    columns = (
        Column(name=Words("pair"), align="left"), Column(name=Words("worst case AUC"), direction="lower", signed=True),
        Column(name=Words("the first leaks"), align="left"),
        Column(name=Words("accuracy"), unit="pp", direction="higher", digits=2, scale=100, signed=True),
    )  # fmt: skip
    rows = tuple(((d.first, Words(" minus "), d.second), value(d.worst), Words(verdict(d)), value(d.accuracy)) for d in found)
    caption = Words(
        ", the first minus the second, on the same candidates and seeds; verdicts at 95 % for all pairs of the section together "
        "(Holm)"
    )
    return Table(title="Pairs compared", caption=caption, columns=columns, rows=rows)


def verdict(duel: Duel) -> str:
    """Whether the first is told from the second, and leaks less or more."""
    if duel.worst is None:
        return "n/a"
    if not duel.shown:
        return "no difference shown"
    return "less" if duel.worst.mean < 0 else "MORE"
