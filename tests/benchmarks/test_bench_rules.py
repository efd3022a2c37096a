"""Milliseconds a call of every aggregation rule, at 10 and 50 rows of a million entries. Reported, not asserted.

    pytest -m benchmark tests/benchmarks/test_bench_rules.py -s

One thread, CPU, float32 rows; f = 2. Fang and DeepSight also evaluate models, so they get a linear one of 130
parameters (the last ones of the million): their figures are what the rule costs beside its evaluations.
"""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from fedbench.core import Federation, Layer, MemberData, ServerContext
from fedbench.plugins.defenses.rules.atm import AngularTrimmedMean
from fedbench.plugins.defenses.rules.bulyan import Bulyan
from fedbench.plugins.defenses.rules.deepsight import DeepSight
from fedbench.plugins.defenses.rules.fang import Fang
from fedbench.plugins.defenses.rules.fedavg import FedAvg
from fedbench.plugins.defenses.rules.geometric_median import GeometricMedian
from fedbench.plugins.defenses.rules.krum import Krum, MultiKrum
from fedbench.plugins.defenses.rules.median import Median
from fedbench.plugins.defenses.rules.norm_clipping import NormClipping
from fedbench.plugins.defenses.rules.server_dp import ServerDP
from fedbench.plugins.defenses.rules.top_k import TopK
from fedbench.plugins.defenses.rules.trimmed_mean import TrimmedMean

pytestmark = pytest.mark.benchmark

P, CLASSES, WIDTH, REPEATS = 1_000_000, 10, 12, 5
TAIL = P - CLASSES * (WIDTH + 1)
LAYERS = (Layer("fc.weight", TAIL, P - CLASSES, (CLASSES, WIDTH)), Layer("fc.bias", P - CLASSES, P, (CLASSES,)))
RULES = {
    "fedavg": FedAvg(), "server-dp": ServerDP(), "top-k": TopK(), "median": Median(), "trimmed-mean": TrimmedMean(),
    "krum": Krum(), "multi-krum": MultiKrum(), "fang": Fang(), "deepsight": DeepSight(), "atm": AngularTrimmedMean(),
    "norm-clipping": NormClipping(), "geometric-median": GeometricMedian(), "bulyan": Bulyan(),
}  # fmt: skip


def linear(params: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x @ LAYERS[0].of(params).T + LAYERS[1].of(params)


def server(rows: int, f: int, g: torch.Generator) -> ServerContext:
    root = MemberData(torch.randn(100, WIDTH, generator=g), torch.randint(0, CLASSES, (100,), generator=g))
    facts = Federation(
        clients=rows,
        rounds=1,
        local_epochs=1,
        batch_size=1,
        participation=1.0,
        n_classes=CLASSES,
        n_params=P,
        assumed_malicious=f,
    )
    return ServerContext(
        key=0,
        device=torch.device("cpu"),
        federation=facts,
        round=1,
        params=torch.zeros(P),
        participants=tuple(range(rows)),
        memory={},
        model_index=0,
        assumed_malicious=f,
        layers=LAYERS,
        input_shape=(WIDTH,),
        root=root,
        logits=linear,
    )


def milliseconds(rule, updates: torch.Tensor, weights: torch.Tensor, ctx: ServerContext) -> float:
    began = time.perf_counter()
    rule.aggregate(updates, weights, ctx)
    return 1000 * (time.perf_counter() - began)


@pytest.mark.parametrize("rows", [10, 50])
def test_time_of_every_rule(benchmark, rows):
    g = torch.Generator().manual_seed(0)
    updates, weights = torch.randn(rows, P, generator=g), torch.full((rows,), 1 / rows)
    ctx = server(rows, 2, g)
    # bulyan needs 4f + 1 rows to be computed: ten are enough for f = 2, though not for its guarantee (4f + 3)
    taken = {name: [] for name in RULES}
    for _ in range(REPEATS + 1):  # in turn, so that a drift of the machine's speed meets all of them
        for name, rule in RULES.items():
            taken[name].append(milliseconds(rule, updates, weights, ctx))
    table = {name: sorted(times[1:]) for name, times in taken.items()}  # the first call warms up
    print(f"\nK = {rows}, P = {P:,}, one thread, n = {REPEATS}\n{'rule':18}{'median ms':>10}{'min':>10}{'max':>10}")
    for name, times in sorted(table.items(), key=lambda item: statistics.median(item[1])):
        print(f"{name:18}{statistics.median(times):10.1f}{times[0]:10.1f}{times[-1]:10.1f}")
        benchmark.extra_info[name] = {"median_ms": round(statistics.median(times), 1), "n": len(times)}
    benchmark.pedantic(lambda: None)
