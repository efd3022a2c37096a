"""Time left, by a simulated clock: honest after a minute, never negative, rising for a reason alone."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics

import pytest

from fedbench.core.execution.forecast import Forecast, Left, in_words

ROUNDS, CELLS, TRAINING = 20, 5, 0.8
TEN_MINUTES = 600.0


class World:
    """Runs of ``took`` seconds each on so many workers, in the order given; tells a forecast what a display is told."""

    def __init__(self, expected, took, workers) -> None:
        self.forecast = Forecast(expected)
        self.events: list[tuple[float, int, str, str, float]] = []
        waiting, free, n = list(took), [0.0] * workers, 0
        for key in waiting:
            began = heapq.heappop(free)
            self.events.append((began, n, "started", key, 0.0))
            news = [(TRAINING * r / ROUNDS, "trained", r / ROUNDS) for r in range(1, ROUNDS + 1)]
            news += [(TRAINING + (1 - TRAINING) * c / CELLS, "judged", c / CELLS) for c in range(1, CELLS + 1)]
            self.events += [(began + at * took[key], n + 1, kind, key, share) for at, kind, share in news]
            self.events.append((began + took[key], n + 2, "ended", key, 0.0))
            heapq.heappush(free, began + took[key])
            n += 3
        self.events.sort()
        self.end = max(free)
        self.at = 0

    def until(self, now: float) -> bool:
        """Tell what happened until then; whether anything did."""
        before = self.at
        while self.at < len(self.events) and self.events[self.at][0] <= now:
            when, _, kind, key, share = self.events[self.at]
            if kind == "started":
                self.forecast.started(key, when)
            elif kind == "ended":
                self.forecast.ended(key, when, complete=True)
            else:
                getattr(self.forecast, kind)(key, share, when)
            self.at += 1
        return self.at > before


def plan(seed: int, defenses: int, seeds: int, settings: int = 1, wrong: float = 2.0, noise: float = 0.1):
    """(expected, took) of a plan in the order in which runs are started: expected costs are wrong by up to ``wrong`` for each
    defense, and settings by as much; scaled to ten minutes on two workers."""
    draw = random.Random(seed)

    def off() -> float:
        return wrong ** draw.uniform(-1, 1)

    of_setting = {s: (10 ** draw.uniform(0, 0.7), off()) for s in range(settings)}
    of_defense = {d: off() for d in range(defenses)}
    expected, took = {}, {}
    for n in range(seeds):
        for s, (cost, slower) in of_setting.items():
            for d, factor in of_defense.items():
                key = f"{s}-{d}-{n}"
                expected[key] = (cost, (s, d, (s, d)))
                took[key] = cost * slower * factor * draw.uniform(1 - noise, 1 + noise)
    scale = 2 * TEN_MINUTES / sum(took.values())
    return expected, {key: seconds * scale for key, seconds in took.items()}


def off_by(world: World, now: float) -> float:
    """How many times too long or too short the forecast is."""
    world.until(now)
    said = world.forecast.left(now).seconds
    truth = world.end - now
    return max(said / truth, truth / said)


def by_rounds(world: World, runs: int, now: float) -> float:
    """The same of counting rounds, which takes every run for as long as any other."""
    done = {}
    for when, _, kind, key, share in world.events:
        if kind == "trained" and when <= now:
            done[key] = share
    said, truth = now * (runs / sum(done.values()) - 1), world.end - now
    return max(said / truth, truth / said)


def test_after_a_minute_of_ten_it_is_within_a_factor_of_1_4_where_several_seeds_are_run():
    worlds = [World(*plan(seed, defenses=10, seeds=5), workers=2) for seed in range(200)]
    off = sorted(off_by(world, 60.0) for world in worlds)
    print(f"5 seeds: median {statistics.median(off):.3f}, 95 % {off[190]:.3f}, largest {off[-1]:.3f}")
    assert off[190] < 1.4 and off[-1] < 1.6
    later = sorted(off_by(world, 180.0) for world in worlds)
    print(f"5 seeds, after three minutes: 95 % {later[190]:.3f}, largest {later[-1]:.3f}")
    assert later[-1] < 1.15


def test_after_a_minute_of_ten_it_is_within_a_factor_of_2_where_most_defenses_were_not_seen_yet():
    worlds = [World(*plan(seed, defenses=40, seeds=1), workers=2) for seed in range(200)]
    off = sorted(off_by(world, 60.0) for world in worlds)
    print(f"1 seed: median {statistics.median(off):.3f}, 95 % {off[190]:.3f}, largest {off[-1]:.3f}")
    assert off[190] < 1.5 and off[-1] < 2.0
    held = [left.low <= world.end - 60 <= left.high for world in worlds for left in [world.forecast.left(60.0)]]
    print(f"within the range: {sum(held)} of {len(held)}")
    assert sum(held) > 190


def test_several_settings_of_unlike_cost_and_runs_longer_than_the_minute():
    worlds = [World(*plan(seed, defenses=5, seeds=3, settings=3), workers=2) for seed in range(200)]
    counted = sorted(by_rounds(world, 45, 90.0) for world in worlds)
    off = sorted(off_by(world, 90.0) for world in worlds)
    long = [off_by(World(*plan(seed, defenses=4, seeds=1), workers=2), 60.0) for seed in range(200)]
    print(f"settings: median {statistics.median(off):.3f}, 95 % {off[190]:.3f}, largest {off[-1]:.3f}")
    print(f"counting rounds: median {statistics.median(counted):.3f}, 95 % {counted[190]:.3f}; long runs: {max(long):.3f}")
    assert off[190] < 1.7 and max(long) < 2.5
    assert statistics.median(off) - 1 < 0.7 * (statistics.median(counted) - 1) and off[190] < 0.9 * counted[190]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_never_negative_rises_only_with_news_and_ends_at_nothing(seed):
    world = World(*plan(seed, defenses=6, seeds=2), workers=3)
    before = None
    for second in range(int(world.end) + 2):
        news = world.until(float(second))
        left = world.forecast.left(float(second))
        if left is None:
            continue
        assert 0 <= left.low <= left.seconds <= left.high
        if before is not None and not news:
            assert left.seconds <= before + 1e-9
        before = left.seconds
    assert before == 0.0


def test_where_costs_are_as_expected_it_does_not_rise_at_all_and_is_right():
    expected, took = plan(1, defenses=6, seeds=4, wrong=1.0, noise=0.0)
    world = World(expected, took, workers=2)
    said = []
    for second in range(60, int(world.end)):
        world.until(float(second))
        said.append((world.end - second, world.forecast.left(float(second)).seconds))
    assert all(abs(truth - left) < 0.1 * truth for truth, left in said)
    assert all(later <= earlier + 3 for (_, earlier), (_, later) in itertools.pairwise(said))


def test_nothing_is_known_before_anything_moved_and_a_lost_run_is_run_again():
    forecast = Forecast({"a": (1.0, ("s", "d", "sd")), "b": (1.0, ("s", "d", "sd"))})
    assert forecast.left(0.0) is None
    forecast.started("a", 0.0)
    assert forecast.left(5.0) is None
    forecast.trained("a", 1.0, 70.0)
    forecast.judged("a", 1.0, 100.0)
    forecast.ended("a", 100.0, complete=True)
    assert forecast.left(100.0).seconds == pytest.approx(100)
    forecast.started("b", 100.0)
    assert forecast.left(150.0).seconds == pytest.approx(50)
    assert forecast.left(400.0).seconds == 0
    forecast.ended("b", 150.0, complete=False)
    assert forecast.left(150.0).seconds == pytest.approx(100)
    forecast.started("b", 150.0)
    forecast.ended("b", 260.0, complete=True)
    assert forecast.left(300.0).seconds == 0


def test_a_run_that_is_given_up_is_waited_for_no_more():
    forecast = Forecast({name: (1.0, ("s", "d", "sd")) for name in "abc"})
    forecast.started("a", 0.0)
    forecast.judged("a", 1.0, 100.0)
    forecast.ended("a", 100.0, complete=True)
    assert forecast.left(100.0).seconds == pytest.approx(200)
    forecast.ended("c", 100.0, complete=True)
    assert forecast.left(100.0).seconds == pytest.approx(100)


def test_a_plan_of_ten_thousand_runs_is_summed_up():
    expected, took = plan(3, defenses=50, seeds=200)
    world = World(expected, took, workers=8)
    world.until(world.end / 10)
    assert world.forecast.left(world.end / 10).seconds == pytest.approx(0.9 * world.end, rel=0.05)


@pytest.mark.parametrize(("left", "words"), [
    (Left(0, 0, 0), "less than a minute left"), (Left(59, 30, 200), "less than a minute left"),
    (Left(61, 60, 62), "about 1 minute left"), (Left(430, 430, 430), "about 7 minutes left"),
    (Left(840, 800, 900), "about 15 minutes left"), (Left(600, 360, 900), "about 6 to 15 minutes left"),
    (Left(3600, 3000, 7200), "about 50 minutes to 2 hours left"), (Left(9000, 9000, 9000), "about 2.5 hours left"),
    (Left(40000, 40000, 40000), "about 11 hours left"), (Left(200000, 200000, 200000), "about 2.5 days left"),
])  # fmt: skip
def test_words_are_no_finer_than_what_is_known(left, words):
    assert in_words(left) == words
