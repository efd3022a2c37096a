"""Which faults of differential privacy audits find: the table of docs/auditing.md.

``python tests/benchmarks/detection.py`` runs all audits, writes ``detection.json`` beside this file
and the table into the document. The sizes were chosen after a first run, so a second has seeds of
its own. Trainings are the engine's: a linear model with a column of weights
for every canary, and DP-SGD, of which a fault takes the steps while the claim stays. A score is
the weight that a canary's gradient moves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))

from other_bounds import Decisions, clopper_pearson, gaussian_dp, gaussian_dp_of_run

from fedbench.core import Batch, Defense, MemberData
from fedbench.core.federation.compose import Composite
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.spec.federation import FederationSpec
from fedbench.leaderboard.statistics.epsilon import (
    ChosenBound,
    Coins,
    Guesses,
    approximate_dp,
    chosen_bound,
)
from fedbench.plugins.defenses.dp_accounting import epsilon
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.early_stopping import EarlyStopping

DELTA, CANARIES, FILLERS, SCALE = 1e-5, 1000, 63, 10.0
NULLS, FAULTS = 200, 40
"""audits of a mechanism that keeps its claim and of one that does not"""
TOGETHER = (1, 10)
"""audits of so many federations judged as one"""
FEDERATIONS = (100, 200, 400, 800, 1600)
ONE_RUN = {"one run": "", "one run, if Gaussian": ", if Gaussian"}
"""bounds by canaries in the record, and their words in the table"""
REPEATED = 10**7
"""first seed of the second run; the first run's end below"""
RECORD = Path(__file__).with_suffix(".json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "auditing.md"
START, END = "<!-- by tests/benchmarks/detection.py -->", "<!-- end -->"


class Faulty(DPSGD):
    """Claims what its parameters say and trains as ``steps`` does."""

    steps: DPSGD

    def select(self, ctx):
        selection = self.steps.select(ctx)
        super().select(ctx)
        return selection

    def local_step(self, batch, ctx):
        return self.steps.local_step(batch, ctx)


class Unsampled(DPSGD):
    """Claims sampled batches and takes all samples in every step."""

    def local_step(self, batch, ctx):
        data = ctx.data
        return super().local_step(Batch(data.x, data.y, torch.arange(len(data.y))), ctx)


class UndeclaredStopping(EarlyStopping):
    """Does not say that it uses private data, so an epsilon is claimed beside it."""

    private = ()


def faulty(claim: dict[str, Any], **steps: Any) -> Callable[[], Defense]:
    def make() -> Defense:
        defense = Faulty(**claim)
        defense.steps = DPSGD(**{**claim, **steps})
        return defense

    return make


@dataclass(frozen=True)
class Case:
    """A mechanism to audit."""

    name: str
    make: Callable[[], Defense] | None = None
    """None: the Gaussian mechanism itself"""
    keeps: bool = False
    """whether its claim is true"""
    gaussian: bool = True
    """whether the claim is that of a Gaussian mechanism"""
    federation: dict[str, int] = field(default_factory=dict)


STEPS, SIGMA = 4, 4.0
MU = STEPS**0.5 / SIGMA
PLAIN: dict[str, Any] = {"clip": 1.0, "sigma": SIGMA}
SAMPLED: dict[str, Any] = {"clip": 1.0, "sigma": 2.0, "sampling": "poisson", "accountant": "rdp"}
CASES = (
    Case("exact Gaussian mechanism", keeps=True),
    Case("DP-SGD", lambda: DPSGD(**PLAIN), keeps=True),
    Case("noise halved", faulty(PLAIN, sigma=SIGMA / 2)),
    Case("noise a quarter", faulty(PLAIN, sigma=SIGMA / 4)),
    Case("clipping off", faulty(PLAIN, clip=1e4, sigma=SIGMA / 1e4)),
    Case(
        "early stopping before DP-SGD, not declared",
        lambda: Composite([UndeclaredStopping(patience=1, validation=0.2), DPSGD(**PLAIN)]),
        federation={"rounds": 2, "local_epochs": 2},
    ),
    Case(
        "sampling claimed, all samples in every batch",
        lambda: Unsampled(**SAMPLED),
        gaussian=False,
        federation={"batches": 8},
    ),
    Case(
        "sampling claimed, batches shuffled",
        faulty(SAMPLED, sampling="shuffled"),
        gaussian=False,
        federation={"batches": 8},
    ),
)


def federation(case: Case, candidates: int, heads: np.ndarray, seed: int) -> tuple[np.ndarray, Any]:
    """Train on the candidates with ``heads`` [m] and on the fillers after them; return the scores
    [m] and the epsilon that is claimed.
    """
    if case.make is None:
        rng = numpy_rng(seed, "gaussian")
        return MU * heads + rng.standard_normal(len(heads)), epsilon(1 / MU, 1, DELTA)
    x = SCALE * torch.eye(candidates)
    present = np.ones(candidates, bool)
    present[: len(heads)] = heads
    x = x[torch.from_numpy(present)]
    module = nn.Linear(candidates, 2, bias=False)
    nn.init.zeros_(module.weight)
    flat = FlatModel(module, torch.device("cpu"))
    sizes = {"rounds": STEPS, "local_epochs": 1, "batches": 1} | case.federation
    batch = -(-candidates // sizes.pop("batches"))
    optimizer = {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    training = Training(
        Setup(
            config=FederationSpec(clients=1, batch_size=batch, optimizer=optimizer, **sizes),
            seed=seed,
            flat=flat,
            clients=[MemberData(x, torch.zeros(len(x), dtype=torch.int64))],
            n_classes=2,
            defense=case.make(),
            members=(0,),
            initial=flat.params[None].clone(),
        )
    )
    for _ in training.rounds():
        pass
    weights = training.models[0].reshape(2, candidates)[:, : len(heads)].double().numpy()
    # a batch divides by its number of samples, which is public
    return (weights[0] - weights[1]) * len(x), training.facts()["epsilon"]


@dataclass(frozen=True)
class Audit:
    """Coins of two federations, the first to choose by, and the largest epsilon that they claim."""

    halves: tuple[Coins, Coins]
    claim: float


def audited(case: Case, canaries: int, first: int) -> Audit:
    """Train two federations, of the seeds ``first`` and the next, with coins of their own."""
    halves, claims = [], []
    for seed in (first, first + 1):
        heads = numpy_rng(seed, f"coins of {case.name}").random(canaries) < 0.5
        scores, claim = federation(case, canaries, heads, seed)
        halves.append(Coins(scores, heads))
        claims.append(claim)
    return Audit((halves[0], halves[1]), max(claims))


def of_curve(mu: float) -> float:
    """Return the epsilon of a mu-GDP mechanism at ``DELTA``."""
    return epsilon(1 / mu, 1, DELTA) if mu > 1e-3 else 0.0


def of_any(guesses: Guesses) -> float:
    return approximate_dp(guesses, DELTA)


def if_gaussian(guesses: Guesses) -> float:
    return of_curve(gaussian_dp_of_run(guesses))


def together(audits: Sequence[Audit], bound: Callable[[Guesses], float]) -> ChosenBound:
    """Return the bound of several audits as one: their federations are one mechanism."""
    halves = []
    for coins in zip(*(audit.halves for audit in audits), strict=True):
        scores = np.concatenate([c.scores for c in coins])
        halves.append({"score": Coins(scores, np.concatenate([c.heads for c in coins]))})
    return chosen_bound(halves[0], halves[1], bound)


def pooled(
    audits: Sequence[Audit], claim: float, bound: Callable[[Guesses], float]
) -> dict[str, dict[str, Any]]:
    """Return bounds of one federation and of ten judged together, by the number of federations."""
    bounds_of = {}
    for n in TOGETHER:
        starts = range(0, len(audits) - n + 1, n)
        bounds = [together(audits[start : start + n], bound) for start in starts]
        values = [bound.epsilon for bound in bounds]
        bounds_of[str(n)] = {
            "audits": len(values),
            "above": sum(value > claim for value in values),
            "median": float(np.median(values)),
            "largest": max(values),
            "limit": max(bound.limit for bound in bounds),
        }
    return bounds_of


def decisions(scores: np.ndarray, heads: np.ndarray, threshold: float) -> Decisions:
    decided = scores > threshold
    hits, alarms = np.count_nonzero(decided & heads), np.count_nonzero(decided & ~heads)
    return Decisions(int(hits), int(heads.sum()), int(alarms), int((~heads).sum()))


def over_federations(scores: np.ndarray, heads: np.ndarray, gaussian: bool) -> dict[str, float]:
    """Return the bounds of one decision a federation, with the threshold that is best on the first
    half of the federations.
    """
    half = len(scores) // 2

    def judged(bound: Callable[[Decisions], float]) -> float:
        first = scores[:half], heads[:half]
        best = max(scores[:half], key=lambda threshold: bound(decisions(*first, threshold)))
        return bound(decisions(scores[half:], heads[half:], best))

    bounds = {"any": judged(lambda d: clopper_pearson(d, DELTA))}
    if gaussian:
        bounds["gaussian"] = of_curve(judged(gaussian_dp))
    return bounds


def measured(
    case: Case, canaries: int, audits: int, sizes: tuple[int, ...], first: int = 0
) -> dict[str, Any]:
    """Return a line of the record, of seeds from ``first`` on."""
    results = [audited(case, canaries, first + 2 * audit) for audit in range(audits)]
    claim = max(result.claim for result in results)
    most = sizes[-1]
    heads = numpy_rng(first, f"federations of {case.name}").random(most) < 0.5
    scores = np.empty(most)
    small = 1 if case.make is None else 1 + FILLERS
    for i in range(most):
        scores[i] = federation(case, small, heads[i : i + 1], first + 10**6 + i)[0][0]
    by_size = {n: over_federations(scores[:n], heads[:n], case.gaussian) for n in sizes}
    line = {
        "case": case.name,
        "claim": claim,
        "canaries": canaries,
        "one run": pooled(results, claim, of_any),
        "federations": {str(n): shown for n, shown in by_size.items()},
    }
    if case.gaussian:
        line["one run, if Gaussian"] = pooled(results, claim, if_gaussian)
    return line


def table(record: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown."""
    first = record[0]
    titles = ["mechanism", "claim"]
    for n in first["one run"]:
        titles += [f"{int(n) * first['canaries']:,} canaries", "if Gaussian"]
    most = list(first["federations"])[-1]
    titles += [f"{most} federations", "if Gaussian", "caught with", "on other seeds"]
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for line in record:
        cells = [line["case"], f"{line['claim']:.2f}"]
        for n in line["one run"]:
            for bound in ONE_RUN:
                one = line.get(bound, {}).get(n)
                above = one and f"{one['median']:.2f} ({one['above']} of {one['audits']})"
                cells.append(above or "n/a")
        last = line["federations"][most]
        curve = f"{last['gaussian']:.2f}" if "gaussian" in last else "n/a"
        cells += [f"{last['any']:.2f}", curve, caught(line), caught(line["repeated"])]
        yield f"| {' | '.join(cells)} |"


def caught(line: dict[str, Any]) -> str:
    """Return the smallest design that refutes the claim."""
    ways = []
    for bound, words in ONE_RUN.items():
        by_number = line.get(bound, {}).items()
        numbers = [int(n) for n, one in by_number if 2 * one["above"] > one["audits"]]
        if numbers:
            ways.append(f"{numbers[0] * line['canaries']:,} canaries{words}")
    for name, words in (("any", ""), ("gaussian", ", if Gaussian")):
        sizes = [n for n, b in line["federations"].items() if b.get(name, 0.0) > line["claim"]]
        if sizes:
            ways.append(f"{sizes[0]} federations{words}")
    return "; ".join(ways) or "not caught"


def with_table(document: str, record: list[dict[str, Any]]) -> str:
    """Return the document with the table between its marks."""
    before, _, rest = document.partition(START)
    after = rest.partition(END)[2]
    return "\n".join([before + START, *table(record), END]) + after


def main() -> None:
    record = []
    for case in CASES:
        start = time.process_time()
        sizes = CANARIES, NULLS if case.keeps else FAULTS, FEDERATIONS
        record.append(measured(case, *sizes))
        record[-1]["repeated"] = measured(case, *sizes, REPEATED)
        print(record[-1], f"{time.process_time() - start:.1f} CPU s", file=sys.stderr, flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), record))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
