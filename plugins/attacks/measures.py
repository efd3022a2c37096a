"""Measurements of a client's update on a sample, [R, M, n], higher = member, and series of them
over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy import ndarray
from pydantic import Field

from fedbench.core import Attack, Observations, Params, SkipCell


@dataclass(frozen=True)
class Measure:
    """Measurement of every client's update on every sample."""

    needs: frozenset[str]
    """signals that it reads"""
    compute: Callable[[Observations], ndarray]
    """observations -> [R, M, n] float64, NaN where a client was absent"""


def float64(observations: Observations, name: str) -> ndarray:
    """Return a signal in float64."""
    return np.asarray(observations[name], np.float64)


def signal(name: str, sign: int = 1) -> Measure:
    """Return the measurement that is a signal, turned over for ``sign`` -1."""
    return Measure(frozenset({name}), lambda observations: sign * float64(observations, name))


def grad_cosine(observations: Observations) -> ndarray:
    """Return cos(g_i, I_k) of the sample's gradient at the global model and the client's
    pseudo-gradient, 0 if one is zero.

    Source: Li et al., ICLR 2023 (Grad-Cosine); Zhu et al. (FedMIA), CVPR 2025, equation 7.
    """
    dot = float64(observations, "grad-dot")
    # two roots: the product of the squares could underflow
    length = np.sqrt(float64(observations, "grad-sq"))
    length = length * np.sqrt(float64(observations, "update-sq"))
    # 0 * NaN stays NaN
    return np.where(length == 0, 0.0 * dot, dot / np.where(length == 0, 1.0, length))


def grad_diff(observations: Observations) -> ndarray:
    """Return |I_k|^2 - |I_k - g_i|^2 = 2 <I_k, g_i> - |g_i|^2 of the pseudo-gradient I_k.

    Source: Li et al., ICLR 2023 (Gradient-Diff). They subtract gradients; a pseudo-gradient is a
    learning rate and many steps away from one, and an attacker does not know the factor, so on some
    settings |g_i|^2 decides alone.
    """
    return 2 * float64(observations, "grad-dot") - float64(observations, "grad-sq")


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
    """Return the measurement called ``name``, or the signal of that name (of any package), turned
    over for ``sign`` -1.
    """
    measure = MEASURES.get(name, signal(name))
    if sign == 1:
        return measure
    return Measure(measure.needs, lambda observations: -measure.compute(observations))


def of_target(measured: ndarray, observations: Observations) -> ndarray:
    """Return the target's row [R, n] of a measurement."""
    if measured.shape[1] == 1:
        return measured[:, 0]
    return measured[:, observations.target]


def of_others(measured: ndarray, observations: Observations) -> ndarray:
    """Return the other clients' rows [R, M-1, n] of a measurement.

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
    """Base of an attack on one measurement or signal, ``measure`` by its name."""

    measure: ClassVar[str]

    @property
    def reads(self) -> Measure:
        """The measurement."""
        return measure_of(self.measure)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The signals of the measurement."""
        return self.reads.needs

    def _measured(self, observations: Observations) -> ndarray:
        """Return the measurement on the target's row [R, n], NaN in a round without the target."""
        return of_target(self.reads.compute(observations), observations)


def time_average(series: ndarray) -> ndarray:
    """Return the mean over the rounds of ``series`` [R, n], NaN left out.

    Raises ``SkipCell`` when a candidate has no round at all.
    """
    if np.isnan(series).all(axis=0).any():
        raise SkipCell("the target took part in no audited round that this attack can use")
    return np.asarray(np.nanmean(series, axis=0, dtype=np.float64))


def matched(values: ndarray, weights: ndarray) -> ndarray:
    """Return sum_t w_t v_t / sqrt(sum_t w_t^2) [n] of [R, n], rounds with NaN left out; 0 where all
    weights are. Raises ``SkipCell`` when a candidate has no round at all.
    """
    time_average(values)
    weights = np.where(np.isnan(values), 0.0, weights)
    total = (weights * np.nan_to_num(values)).sum(axis=0)
    length = np.sqrt((weights**2).sum(axis=0))
    return total / np.where(length == 0, 1.0, length)


def slope(rounds: ndarray, series: ndarray) -> ndarray:
    """Return the ordinary least-squares slope of ``series`` [R, n] against ``rounds`` [R], NaN left
    out.

    Raises ``SkipCell`` when a candidate has fewer than two rounds.
    """
    present = ~np.isnan(series)
    count = present.sum(axis=0)
    if (count < 2).any():
        raise SkipCell("a slope needs at least two audited rounds with the target in them")
    t = np.where(present, np.asarray(rounds, np.float64)[:, None], 0.0)
    t = np.where(present, t - t.sum(axis=0) / count, 0.0)
    return (t * np.where(present, series, 0.0)).sum(axis=0) / (t * t).sum(axis=0)


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
    """Base of an attack on the negative loss of the model that :class:`LossOn` chooses."""

    Params = LossOn

    @property
    def reads(self) -> Measure:
        """-CE on the chosen model, for every client."""
        if self.params.loss_on == "pre_defense":
            return signal("loss@pre-defense", -1)
        return MEASURES["loss"]


def last_known(present: ndarray) -> ndarray:
    """Return the round [R] that stands in for each one of ``present`` [R] bool: itself, the last
    one present before it or, before the first, the first.

    Raises ``SkipCell`` where none is present.
    """
    if not present.any():
        raise SkipCell("the client took part in no audited round")
    latest = np.maximum.accumulate(np.where(present, np.arange(len(present)), -1))
    return np.where(latest < 0, np.argmax(present), latest)


def carried(series: ndarray) -> ndarray:
    """Replace each row of NaN of ``series`` [R, n] by the round that stands in for it."""
    return series[last_known(~np.isnan(series).any(axis=1))]


def last_round(series: ndarray) -> int:
    """Return the position of the last row of ``series`` [R, ...] without NaN.

    Raises ``SkipCell`` when there is none.
    """
    present = np.flatnonzero(~np.isnan(series.reshape(len(series), -1)).any(axis=1))
    if len(present) == 0:
        raise SkipCell("the target took part in no audited round that this attack can use")
    return int(present[-1])
