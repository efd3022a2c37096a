"""Delta-accuracy of a placebo: how often it reads as an effect. ``python -m fedbench.leaderboard.simulations.accuracy``.

The accuracy of both federations is 88 % in truth; each training adds a deviation of its own, and both are judged on the same
test samples. The old interval resampled test samples and knew nothing of training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from fedbench.core.metrics import delta_accuracy
from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.simulations import show
from fedbench.leaderboard.statistics.spread import smallest_shown

ACCURACY, SAMPLES = 0.88, 400
TRAININGS = (0.0, 0.005, 0.01, 0.02)  # deviation of a training's true accuracy
SEEDS = (3, 5, 9)
RESAMPLED = 200
REPETITIONS, QUICK = 1000, 20

Pairs = tuple[list[np.ndarray], list[np.ndarray]]


def drawn(seeds: int, training: float, gain: float, rng: np.random.Generator) -> Pairs:
    """Which test samples each federation classifies rightly: a latent difficulty that both share, and a threshold each."""
    difficulty = rng.standard_normal((seeds, 1, SAMPLES))
    own = rng.standard_normal((seeds, 2, SAMPLES))
    true = np.clip(ACCURACY + np.array([gain, 0.0]) + training * rng.standard_normal((seeds, 2)), 0.01, 0.99)
    right = np.sqrt(0.8) * difficulty + np.sqrt(0.2) * own < stats.norm.ppf(true)[:, :, None]
    return list(right[:, 0]), list(right[:, 1])


def tables(repetitions: int) -> Iterator[str]:
    """Lines of Markdown."""
    rng = numpy_rng(0, "simulation of delta-accuracy")
    yield f"{repetitions:,} comparisons a row, {SAMPLES} test samples."
    yield ""
    yield "| seeds | deviation of training, pp | false effects, test samples resampled, % | t over seeds, % | 80 % power at, pp |"
    yield "|---|---|---|---|---|"
    for seeds in SEEDS:
        for training in TRAININGS:
            found = np.array([_judged(*drawn(seeds, training, 0.0, rng), rng) for _ in range(repetitions)])
            old, new = 100 * found[:, :2].mean(axis=0)
            power = smallest_shown(float(np.sqrt(np.mean(found[:, 2] ** 2))), seeds)
            yield f"| {seeds} | {100 * training:.1f} | {old:.1f} | {new:.1f} | {100 * (power or np.nan):.1f} |"


def _judged(defended: list[np.ndarray], plain: list[np.ndarray], rng: np.random.Generator) -> tuple[bool, bool, float]:
    """(an effect by resampling, an effect by t, deviation from seed to seed) of one comparison."""
    differences = np.array([a.mean() - b.mean() for a, b in zip(defended, plain, strict=True)])
    per_sample = np.mean([a.astype(float) - b for a, b in zip(defended, plain, strict=True)], axis=0)
    half = 1.96 * per_sample.std(ddof=1) / np.sqrt(len(per_sample))
    new = delta_accuracy(defended, plain, rng, RESAMPLED)
    return bool(abs(differences.mean()) > half), not new.low <= 0 <= new.high, float(differences.std(ddof=1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
