"""The fixture of the benchmarks: ways to do the same, timed in turn by pytest-benchmark."""

from __future__ import annotations

import time

import pytest
from workloads import quotients


@pytest.fixture
def beside(benchmark, request):
    """Time several ways in turn and keep their ratios in the benchmark's ``extra_info``.

    pytest-benchmark times the last way; the rounds' set-up, which it does not time, runs the
    earlier ones, so that a drift of the machine's speed meets all. A first turn warms up.
    """
    timer = request.node.get_closest_marker("benchmark").kwargs.get("timer", time.perf_counter)

    def measure(ways, rounds=9, times=1):
        """``ways``: name -> function, ``times`` calls of it a round."""
        *peers, last = ways
        seconds = {name: [] for name in peers}

        def repeated(way):
            for _ in range(times):
                way()

        def peers_turn():
            for name in peers:
                began = timer()
                repeated(ways[name])
                seconds[name].append(timer() - began)

        benchmark.pedantic(
            lambda: repeated(ways[last]), setup=peers_turn, rounds=rounds, warmup_rounds=1
        )
        if benchmark.enabled:
            durations = benchmark.stats.stats.data
            benchmark.extra_info["ratios"] = {
                f"{name} / {last}": quotients(seconds[name][1:], durations) for name in peers
            }

    return measure
