"""The n behind the numbers of a section, and who its targets are, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.board import Note, Part, Text, Words
from fedbench.core.population.target import EVERYBODY, Target
from fedbench.leaderboard.statistics.counts import Counts, count
from fedbench.leaderboard.statistics.rows import group_names
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import joined, spanned

MAX_IDS = 20


def counts_note(section: Section) -> Note:
    """Seeds x targets, candidates of a target, targets."""
    found = count(section)
    runs = f"{found.seeds} {'seed' if found.seeds == 1 else 'seeds'} x targets"
    line = f"n = {found.units} a cell ({runs}) unless it says otherwise{_candidates(found)}. Targets: "
    return Note((Words(line), *joined(_targets(found, group_names(section.records)), "; "), Words(".")))


def _candidates(found: Counts) -> str:
    mix, ofl, ifl = (found.nonmembers.get(group) for group in ("mix", "ofl", "ifl"))
    said = ""
    if found.members and mix:
        said += f"; per target {spanned(found.members).text} members and {spanned(mix).text} non-members"
    said += f", {spanned(ofl).text} from outside the federation" if ofl else ""
    return said + (f", {spanned(ifl).text} from other clients" if ifl else "")


def _targets(found: Counts, names: Sequence[str]) -> list[Text]:
    if len(found.targets) == 1:
        return [whose(targets, names) for targets in found.targets]
    return [
        (*whose(targets, names), Words(f" (seed {_listed(seeds)})")) for targets, seeds in found.targets.items()
    ]


def whose(targets: Sequence[int], names: Sequence[str]) -> tuple[Part, ...]:
    """Targets in words: clients, all honest clients, or groups by ``names``."""
    if tuple(targets) == (EVERYBODY.code,):
        return (Words("all honest clients together"),)
    clients = [t for t in targets if t >= 0]
    groups = sorted(t.index for t in map(Target.of, targets) if t.kind == "group")
    shown: list[Text] = [(Words("group "), names[g] if g < len(names) else str(g)) for g in groups]
    if clients or not shown:
        shown.append(Words(f"clients {_listed(clients)}"))
    return joined(shown)


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:MAX_IDS]))
    return shown if len(values) <= MAX_IDS else f"{shown}, … ({len(values)})"
