"""How long the rest of a plan takes: what its runs should cost, corrected by what finished ones of each kind really took."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

Levels = tuple[Hashable, ...]
"""Of a run, from the coarsest to the finest: what makes runs cost alike beyond their expected cost (setting, defense, ...)"""

_PRIOR = 0.15  # how many runs of the expected cost speak against what one kind of runs took
_TRAINING = 0.7  # of a run, where none has finished yet
_SINGLY = 300  # so many runs that wait are put on workers one by one; of more, the sum says as much
_UNSEEN = (0.6, 1.7)  # what a kind of which nothing is known yet may cost, against what it should


@dataclass(frozen=True)
class Left:
    """Seconds until the end, and the ends of a range that is as wide as much of the rest is of kinds not seen yet."""

    seconds: float
    low: float
    high: float


@dataclass
class _Seen:
    """Runs of one kind: what they should cost, and the seconds that they took."""

    cost: float = 0.0
    seconds: float = 0.0
    runs: float = 0.0


@dataclass(kw_only=True)
class _Run:
    cost: float
    levels: Levels
    began: float | None = None
    heard: float = 0.0
    """when it last got further"""
    spent: float = 0.0
    """in earlier tries"""
    trained: float = 0.0
    judged: float = 0.0
    training_s: float | None = None

    @property
    def seconds(self) -> float:
        """Until it was last heard of."""
        return self.spent + (0.0 if self.began is None else self.heard - self.began)


class Forecast:
    """Of runs by their keys, each (expected cost in any unit, levels); ``now`` is any clock's seconds.

    Nothing but news (a start, progress, an end) raises what it says; between news it counts down, and never below zero.
    """

    def __init__(self, expected: Mapping[str, tuple[float, Levels]]) -> None:
        self._runs = {key: _Run(cost=cost, levels=levels) for key, (cost, levels) in expected.items()}
        self._running: dict[str, _Run] = {}
        self._seen: dict[Levels, _Seen] = defaultdict(_Seen)
        self._waiting: dict[Levels, float] = defaultdict(float)  # expected costs
        for run in self._runs.values():
            self._waiting[run.levels] += run.cost
        self._training = [_TRAINING, 1.0]  # shares of runs, and how many
        self._workers = 1
        self._rates: _Rates | None = None

    def started(self, key: str, now: float) -> None:
        """A run begins, for the first time or again."""
        run = self._runs[key]
        if key not in self._running:
            self._waiting[run.levels] -= run.cost
        run.began = run.heard = now
        self._running[key] = run
        self._workers = max(self._workers, len(self._running))

    def trained(self, key: str, share: float, now: float) -> None:
        """So much of its training is done."""
        if (run := self._running.get(key)) is not None:
            run.trained, run.heard = max(run.trained, min(share, 1.0)), now
            run.training_s = run.seconds
            self._rates = None

    def judged(self, key: str, share: float, now: float) -> None:
        """So many of its cells are done; it has been trained."""
        if (run := self._running.get(key)) is not None:
            run.trained, run.judged, run.heard = 1.0, max(run.judged, min(share, 1.0)), now
            self._rates = None

    def ended(self, key: str, now: float, complete: bool) -> None:
        """Its process is gone; ``complete``: with all that was asked of it. Of one that never ran, it is given up."""
        if (run := self._running.pop(key, None)) is None:
            if complete and (run := self._runs.pop(key, None)) is not None:
                self._waiting[run.levels] -= run.cost
            return
        run.heard = now
        run.spent, run.began = run.seconds, None
        self._rates = None
        if not complete:
            self._waiting[run.levels] += run.cost
            return
        seen = self._seen[run.levels]
        seen.cost, seen.seconds, seen.runs = seen.cost + run.cost, seen.seconds + run.spent, seen.runs + 1
        if run.training_s is not None and run.spent > 0:
            self._training = [self._training[0] + run.training_s / run.spent, self._training[1] + 1]
        del self._runs[key]

    def left(self, now: float) -> Left | None:
        """Until the last run ends; None where nothing is known of any run's speed yet."""
        rates = self._rates = self._rates or self._learnt()
        if rates is None:
            return None
        busy = [self._rest_of(run, rates, now) for run in self._running.values()]
        waiting = {levels: cost * rates.of(levels) for levels, cost in self._waiting.items() if cost > 0}
        total = sum(busy) + sum(waiting.values())
        seconds = self._scheduled(busy, rates, sum(waiting.values()))
        unseen = sum(s for levels, s in waiting.items() if not rates.knows(levels)) / total if total else 0.0
        low, high = (1 + unseen * (factor - 1) for factor in _UNSEEN)
        return Left(seconds, seconds * low, seconds * high)

    def _rest_of(self, run: _Run, rates: _Rates, now: float) -> float:
        """What it took so far counts the more, the further it is."""
        done = self._share(run)
        total = (1 - done) * run.cost * rates.of(run.levels) + run.seconds
        return max(total * (1 - done) - (now - run.heard), 0.0)

    def _share(self, run: _Run) -> float:
        training = self._training[0] / self._training[1]
        return training * run.trained + (1 - training) * run.judged

    def _scheduled(self, busy: list[float], rates: _Rates, waiting: float) -> float:
        """When the last ends, if every worker takes the next run as soon as it is free."""
        free = [0.0] * (self._workers - len(busy)) + sorted(busy)
        if len(self._runs) - len(self._running) > _SINGLY:
            return max((sum(free) + waiting) / len(free), free[-1])
        heapq.heapify(free)
        for key, run in self._runs.items():
            if key not in self._running:
                heapq.heapreplace(free, free[0] + run.cost * rates.of(run.levels))
        return max(free)

    def _learnt(self) -> _Rates | None:
        seen = {levels: _Seen(s.cost, s.seconds, s.runs) for levels, s in self._seen.items()}
        for run in self._running.values():
            if (share := self._share(run)) > 0 and run.seconds > 0:
                one = seen.setdefault(run.levels, _Seen())
                one.cost, one.seconds, one.runs = one.cost + share * run.cost, one.seconds + run.seconds, one.runs + share
        return _Rates(seen) if seen else None


class _Rates:
    """Seconds a unit of expected cost takes: overall, times a factor of each level, in turn of what the coarser ones leave."""

    def __init__(self, seen: dict[Levels, _Seen]) -> None:
        self._overall = sum(s.seconds for s in seen.values()) / sum(s.cost for s in seen.values())
        depth = len(next(iter(seen)))
        predicted = {levels: s.cost * self._overall for levels, s in seen.items()}
        prior = _PRIOR * sum(predicted.values()) / max(sum(s.runs for s in seen.values()), 1.0)
        self._factors: list[dict[Hashable, float]] = []
        for level in range(depth):
            sums: dict[Hashable, list[float]] = defaultdict(lambda: [prior, prior])
            for levels, s in seen.items():
                sums[levels[level]][0] += s.seconds
                sums[levels[level]][1] += predicted[levels]
            factors = {name: took / expected for name, (took, expected) in sums.items()}
            predicted = {levels: p * factors[levels[level]] for levels, p in predicted.items()}
            self._factors.append(factors)

    def of(self, levels: Levels) -> float:
        """Of a run of these levels; one that was not seen costs as the coarser ones say."""
        rate = self._overall
        for name, factors in zip(levels, self._factors, strict=True):
            rate *= factors.get(name, 1.0)
        return rate

    def knows(self, levels: Levels) -> bool:
        """Whether a run of each of these was seen, but for all of them together."""
        return all(name in factors for name, factors in zip(levels[:-1], self._factors[:-1], strict=True))


def in_words(left: Left) -> str:
    """``about 7 minutes left``; a range where that is what is known."""
    low, high = _rounded(left.low), _rounded(left.high)
    if left.seconds < 60:
        return "less than a minute left"
    if left.high > 1.3 * left.low and low != high:
        return f"about {low[0]} to {_text(high)} left" if low[1] == high[1] else f"about {_text(low)} to {_text(high)} left"
    return f"about {_text(_rounded(left.seconds))} left"


def _rounded(seconds: float) -> tuple[str, str]:
    """Number and unit, no finer than a forecast is good for."""
    minutes = seconds / 60
    if minutes < 90:
        step = 1 if minutes < 10 else 5
        return str(max(round(minutes / step) * step, 1)), "minute"
    hours = minutes / 60
    if hours < 36:
        return f"{round(2 * hours) / 2:g}" if hours < 5 else str(round(hours)), "hour"
    return f"{round(2 * hours / 24) / 2:g}", "day"


def _text(rounded: tuple[str, str]) -> str:
    return f"{rounded[0]} {rounded[1]}{'' if rounded[0] == '1' else 's'}"
