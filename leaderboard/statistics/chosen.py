"""What an adversary has to choose, chosen on folds that are not judged: the sign of an attack, and the attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedbench.leaderboard.statistics.sheet import Key, Part
from fedbench.leaderboard.statistics.spread import plain_mean


@dataclass(frozen=True)
class Choice:
    """The ``attack`` and its ``sign``: +1, or -1 where low scores mean members."""

    attack: str
    sign: int


def picked_most(picks: Mapping[int, Choice]) -> str:
    """The attack of most folds; of several, the first."""
    names = [choice.attack for choice in picks.values()]
    return max(dict.fromkeys(names), key=names.count)


def leans(parts: Sequence[Part], key: Key) -> dict[int, float]:
    """Fold -> mean AUC minus one half over its parts, of those that have one."""
    found: dict[int, list[float]] = {}
    for part in parts:
        if key in part.own:
            found.setdefault(part.fold, []).append(part.own[key].auc - 0.5)
    return {fold: plain_mean(values) for fold, values in found.items()}


def signs(parts: Sequence[Part], key: Key) -> dict[int, int]:
    """Fold -> the sign that the other folds ask for; +1 where there are none, or where they lean nowhere."""
    own = leans(parts, key)
    return {fold: _sign(_elsewhere(own, fold)) for fold in own}


def strongest(parts: Sequence[Part], row: str, attacks: Sequence[str]) -> dict[int, Choice]:
    """Fold -> the attack, with its sign, that leans furthest from one half on the other folds; a tie goes to the first.

    Chosen on the judged scores themselves this would be a maximum of noisy numbers, above one half without any leak
    (docs/method.md#worst-case).
    """
    own = {attack: leans(parts, (row, attack)) for attack in attacks}
    folds = sorted({part.fold for part in parts})
    found: dict[int, Choice] = {}
    for fold in folds:
        there = [a for a in attacks if fold in own[a]]
        if there:
            best = max(there, key=lambda a: abs(_elsewhere(own[a], fold)))
            found[fold] = Choice(best, _sign(_elsewhere(own[best], fold)))
    return found


def _elsewhere(own: Mapping[int, float], fold: int) -> float:
    others = [value for other, value in own.items() if other != fold]
    return plain_mean(others) if others else 0.0


def _sign(lean: float) -> int:
    return -1 if lean < 0 else 1
