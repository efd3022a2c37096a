"""Measurements of a client's update on a sample, [R, M, n], higher = member, and series of them
over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Observations, Params, SkipCell


@dataclass(frozen=True)
class Measure:
    """``needs``: signals it reads; ``of``: observations -> [R, M, n] float64, NaN where a client
    was absent.
    """

    needs: frozenset[str]
    of: Callable[[Observations], np.ndarray]


def signal(name: str, sign: int = 1) -> Measure:
    """A signal as it was measured, turned over for ``sign`` -1."""
    return Measure(
        frozenset({name}), lambda observations: sign * np.asarray(observations[name], np.float64)
    )


def grad_cosine(observations: Observations) -> np.ndarray:
    """cos(g_i, I_k) of the sample's gradient at the global model and the client's pseudo-gradient,
    0 if one is zero.

    Source: Li et al., ICLR 2023 (Grad-Cosine); Zhu et al. (FedMIA), CVPR 2025, equation 7.
    """
    dot, sq, update_sq = (
        np.asarray(observations[s], np.float64) for s in ("grad-dot", "grad-sq", "update-sq")
    )
    length = np.sqrt(sq) * np.sqrt(update_sq)  # apart: the product of the squares could underflow
    # 0 * NaN stays NaN
    return np.where(length == 0, 0.0 * dot, dot / np.where(length == 0, 1.0, length))


def grad_diff(observations: Observations) -> np.ndarray:
    """|I_k|^2 - |I_k - g_i|^2 = 2 <I_k, g_i> - |g_i|^2, the pseudo-gradient taken as it is.

    Source: Li et al., ICLR 2023 (Gradient-Diff). They subtract gradients; a pseudo-gradient is a
    learning rate and many steps away from one, and an attacker does not know the factor, so on some
    settings |g_i|^2 decides alone.
    """
    return 2 * np.asarray(observations["grad-dot"], np.float64) - np.asarray(
        observations["grad-sq"], np.float64
    )


MEASURES = {
    "loss": signal("loss", -1),  # Yeom et al., CSF 2018
    "confidence": signal("confidence"),  # Yeom et al., CSF 2018
    # Carlini et al. (LiRA), S&P 2022; from the loss it would saturate
    "rescaled": signal("logit-confidence"),
    "modified-entropy": signal("modified-entropy", -1),  # Song & Mittal, USENIX Security 2021
    "entropy": signal("entropy", -1),  # Salem et al., NDSS 2019, as the next two
    "max-prob": signal("max-prob"),
    "std-prob": signal("std-prob"),
    "grad-cosine": Measure(frozenset({"grad-dot", "grad-sq", "update-sq"}), grad_cosine),
    "grad-diff": Measure(frozenset({"grad-dot", "grad-sq"}), grad_diff),
    "grad-norm": signal("grad-sq", -1),  # squared, as in FedMIA's code; Nasr et al., CCS 2018
}


def measure_of(name: str, sign: int = 1) -> Measure:
    """The measurement called ``name``, or the signal of that name (of any package); turned over for
    ``sign`` -1.
    """
    known = MEASURES.get(name, signal(name))
    return (
        known if sign == 1 else Measure(known.needs, lambda observations: -known.of(observations))
    )


def of_target(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, n]: the target's row of a measurement."""
    return measured[:, observations.target if measured.shape[1] > 1 else 0]


def of_others(measured: np.ndarray, observations: Observations) -> np.ndarray:
    """[R, M-1, n]: every other client's row of a measurement.

    Raises ``SkipCell`` in a view without other clients, and for a measurement that is the same for
    all of them.
    """
    if len(observations.clients) < 2 and observations.view == "coalition":
        raise SkipCell(
            "every client is in the coalition: this attack compares the coalition's mean with the "
            "rows of several other clients, "
            "and there is none outside it"
        )
    if len(observations.clients) < 2:
        raise SkipCell(f"the view '{observations.view}' shows no other client to compare with")
    if measured.shape[1] == 1:
        raise SkipCell(
            "this measurement does not depend on the client, so the others say nothing about the "
            "target"
        )
    return np.delete(measured, observations.target, axis=1)


class MeasuringAttack(Attack):
    """An attack on one measurement, ``measure`` by its name."""

    measure: ClassVar[str]

    @property
    def reads(self) -> Measure:
        """The measurement."""
        return MEASURES[self.measure]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of the measurement."""
        return self.reads.needs

    def _measured(self, observations: Observations) -> np.ndarray:
        """[R, n]: the measurement on the target's row, NaN in a round without the target."""
        return of_target(self.reads.of(observations), observations)


def time_average(series: np.ndarray) -> np.ndarray:
    """Mean over the rounds of [R, n], NaN left out; raises ``SkipCell`` when a candidate has no
    round at all.
    """
    if np.isnan(series).all(axis=0).any():
        raise SkipCell("the target took part in no audited round that this attack can use")
    return np.asarray(np.nanmean(series, axis=0, dtype=np.float64))


def slope(rounds: np.ndarray, series: np.ndarray) -> np.ndarray:
    """Ordinary least-squares slope of [R, n] against the round numbers [R], NaN left out.

    Raises ``SkipCell`` when a candidate has fewer than two rounds.
    """
    seen = ~np.isnan(series)
    count = seen.sum(axis=0)
    if (count < 2).any():
        raise SkipCell("a slope needs at least two audited rounds with the target in them")
    t = np.where(seen, np.asarray(rounds, np.float64)[:, None], 0.0)
    t = np.where(seen, t - t.sum(axis=0) / count, 0.0)
    return (t * np.where(seen, series, 0.0)).sum(axis=0) / (t * t).sum(axis=0)


class LossOn(Params):
    """Parameter of ``loss-series``, ``blackbox-loss`` and ``fedmia-i``.

    ``pre_defense`` is the loss of the local model before the client protected its upload, which no
    server ever sees. FedMIA's released code reads it in all three under sparsification and
    quantisation, which change the uploaded copy alone. Noise it adds to the model itself before it
    measures: under ``perturb`` and ``grad-noise`` that code is ``uploaded``.
    """

    loss_on: Literal["uploaded", "pre_defense"] = Field(
        "uploaded",
        description="which local model: the uploaded one, or as it was before its protection "
        "(faithful)",
    )


class LossAttack(MeasuringAttack):
    """An attack on the negative loss of the model that :class:`LossOn` chooses."""

    Params = LossOn

    @property
    def reads(self) -> Measure:
        """-CE on the chosen model, for every client."""
        return (
            MEASURES["loss"]
            if self.params.loss_on == "uploaded"
            else signal("loss@pre-defense", -1)
        )


def last_known(seen: np.ndarray) -> np.ndarray:
    """[R] int: for each round of ``seen`` [R] bool itself, the last seen one before it or, before
    the first, the first.

    Raises ``SkipCell`` where no round was seen.
    """
    if not seen.any():
        raise SkipCell("the client took part in no audited round")
    latest = np.maximum.accumulate(np.where(seen, np.arange(len(seen)), -1))
    return np.where(latest < 0, np.argmax(seen), latest)


def carried(series: np.ndarray) -> np.ndarray:
    """[R, n] with each row of NaN replaced by the last row before it, the first ones by the first
    seen.
    """
    return series[last_known(~np.isnan(series).any(axis=1))]


def last_seen(series: np.ndarray) -> np.ndarray:
    """The last row of [R, ...] without NaN; raises ``SkipCell`` when there is none."""
    return series[last_round(series)]


def last_round(series: np.ndarray) -> int:
    """The position of the last row of [R, ...] without NaN; raises ``SkipCell`` when there is none."""
    seen = np.flatnonzero(~np.isnan(series.reshape(len(series), -1)).any(axis=1))
    if len(seen) == 0:
        raise SkipCell("the target took part in no audited round that this attack can use")
    return int(seen[-1])
