"""A fair fight: every defense at the strength that other seeds choose for it, at matched accuracy and at its best."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from fedbench.core import Analysis, Block, Note, Params, Section, Strengths, Words
from fedbench.plugins.analyses.tuned_figure import tuned_figure
from fedbench.plugins.analyses.tuned_tables import chosen_table, comparison, strengths_table


class Tuned(Analysis):
    """Chooses a strength of each defense on the suite's ``tuning_seeds`` and reports it on its ``seeds``; asks nothing of a run.

    Rows of one defense that differ in their parameters (a ``grid``) are its strengths. *Matched*: the most private one whose
    mean accuracy on the tuning seeds lies at most ``within`` points below the undefended run's. *Best*: the one of largest
    (1 - advantage) x accuracy there, with the advantage 2 AUC - 1 of the worst case.
    """

    by_default = False
    needs_tuning_seeds = True
    place = "costs"

    class Params(Params):
        within: float = Field(1.0, ge=0, le=100, description="accuracy that a matched strength may lose, percentage points")
        compared: str | None = Field(None, description="the defense whose choices are compared with every other one's")

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """What was chosen and by what, what it is worth on the reported seeds, and the plane of privacy and utility."""
        if not section.families():
            return
        if section.tuning is None:
            yield Note(Words("No run of a tuning seed has a record here, so no strength can be chosen."))
            return
        within, found = self.params.within, Strengths.chosen(section.tuning, self.params.within)
        found += [Strengths.unknown(f.name) for f in section.families() if f.name not in {c.family for c in found}]
        for at in ("matched", "best"):
            yield chosen_table(section, found, at, within)
        if self.params.compared is not None:
            yield comparison(section, found, self.params.compared)
        yield strengths_table(section.tuning, found)
        if figure := tuned_figure(section, found, within):
            yield figure
