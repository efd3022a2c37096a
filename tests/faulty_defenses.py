"""Defenses with one mistake each, for the checks to find: a class is called as the check that must
find it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Defense, Params

BLANK: tuple = ()


class Sound(Defense):
    """Noise on the update, drawn as the contract says."""

    class Params(Params):
        sigma: float = Field(
            0.01, ge=0, description="standard deviation of the noise, in units of the parameters"
        )

    def protect(self, update, ctx):
        return update + self.params.sigma * ctx.randn_like(update)


class ParametersDocumented(Sound):
    """A parameter without a description."""

    class Params(Params):
        sigma: float = Field(0.01, ge=0)


class ParametersBounded(Sound):
    """A number without a range."""

    class Params(Params):
        sigma: float = Field(0.01, description="standard deviation")


class Documented(Sound):
    def protect(self, update, ctx):
        return update


class KnownMethods(Defense):
    """A phase that is none."""

    def protekt(self, update, ctx):
        return update * 0


class DeterministicUnderSeed(Defense):
    """Another update at another time."""

    def protect(self, update, ctx):
        return update + 1e-6 * (time.perf_counter_ns() % 1009)


class GlobalStateUnchanged(Defense):
    """torch's global generator."""

    def protect(self, update, ctx):
        return update + torch.randn(update.shape).to(update)


class NoStateBetweenRuns(Defense):
    """A server's rule that grows from run to run."""

    rounds = 0

    def aggregate(self, updates, weights, ctx):
        self.rounds += 1
        return (weights @ updates) * (1 + 0.01 * self.rounds)


class MembersKeptApart(Defense):
    """A member's data where the next member can read them."""

    def begin(self, ctx):
        self.seen = {}

    def protect(self, update, ctx):
        self.seen[ctx.client] = ctx.data.x
        return update


class KeepsOnItsClass(Defense):
    """A member's memory on the class."""

    seen: ClassVar[dict] = {}

    def protect(self, update, ctx):
        self.seen[ctx.client] = ctx.memory
        return update


SEEN: list = []


class KeepsInAGlobal(Defense):
    """A member's context in a global."""

    def protect(self, update, ctx):
        SEEN.append({"last": ctx})
        return update


class OrderOfClients(Defense):
    """One generator for all members: who comes first draws first."""

    def begin(self, ctx):
        self.coins = np.random.default_rng(ctx.key)

    def protect(self, update, ctx):
        return update + 0.01 * self.coins.normal()


class InputsNotMutated(Defense):
    """The member's samples, past torch's counters, and back again."""

    def transform(self, batch, ctx):
        batch.y.data[0] = (batch.y[0] + 1) % ctx.federation.n_classes
        return replace(batch)


class RefusesWithAReason(Defense):
    """Where there are no others."""

    def begin(self, ctx):
        self.share = 1 / (ctx.federation.clients - 1)


class Runs(Defense):
    """Gets nowhere."""

    def protect(self, update, ctx):
        return BLANK[ctx.round]


class DefaultsConstruct(Defense):
    """A constructor that does not call that of its base."""

    def __init__(self):
        self.factor = 0.5

    def protect(self, update, ctx):
        return update * self.factor


class Signatures(Defense):
    """A phase without its context."""

    def protect(self, update):
        return update * 0.5
