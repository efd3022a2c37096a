"""Defenses with one mistake each, for the checks to find. The name says which."""

from __future__ import annotations

import gc
import io
import pickle
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from fedbench.core import Defense, Params

MODULE_RNG = np.random.default_rng(0)
BLANK: tuple = ()


class Sound(Defense):
    """Noise on the update, drawn as the contract says."""

    class Params(Params):
        sigma: float = Field(0.01, ge=0, description="standard deviation of the noise, in units of the parameters")

    def protect(self, update, ctx):
        return update + self.params.sigma * ctx.randn_like(update)


class UndocumentedParameter(Sound):
    """A parameter without a description."""

    class Params(Params):
        sigma: float = Field(0.01, ge=0)


class UnboundedParameter(Sound):
    """A number without a range."""

    class Params(Params):
        sigma: float = Field(0.01, description="standard deviation")


class UnboundedList(Sound):
    """Numbers without a range in a list."""

    class Params(Params):
        sigma: float = Field(0.01, ge=0, description="standard deviation")
        layers: list[int] = Field([1], description="which")


class ImpossibleDefault(Sound):
    """A default out of its own range."""

    class Params(Params):
        sigma: float = Field(-1.0, ge=0, description="standard deviation")


class Nameless(Sound):
    def protect(self, update, ctx):
        return update


class Misspelt(Defense):
    """A phase that is none."""

    def protekt(self, update, ctx):
        return update * 0


class ReadsTheClock(Defense):
    """Another update at another time."""

    def protect(self, update, ctx):
        return update + 1e-6 * (time.perf_counter_ns() % 1009)


class CountsForEver(Defense):
    """A counter that outlives the run, on the class."""

    calls = 0

    def protect(self, update, ctx):
        type(self).calls += 1
        return update + 1e-6 * self.calls


class UnseededNumpy(Defense):
    """A numpy generator without a seed."""

    def protect(self, update, ctx):
        return update + torch.from_numpy(np.random.default_rng().normal(size=len(update))).to(update)


class UnseededPython(Defense):
    """Python's generator without a seed."""

    def protect(self, update, ctx):
        return update + random.Random().random()


class UnseededTorch(Defense):
    """A torch generator that nobody seeded has the same seed for everybody."""

    def protect(self, update, ctx):
        return update + torch.randn(update.shape, generator=torch.Generator()).to(update)


class ModuleGenerator(Defense):
    """A generator that lives in the module, and goes on from run to run."""

    def protect(self, update, ctx):
        return update + MODULE_RNG.random()


class GlobalTorch(Defense):
    """torch's global generator."""

    def protect(self, update, ctx):
        return update + torch.randn(update.shape).to(update)


class GlobalNumpy(Defense):
    """numpy's global generator."""

    def protect(self, update, ctx):
        return update + np.random.rand()


class SeedsPython(Defense):
    """Seeds Python's global generator: everybody else's numbers change."""

    def protect(self, update, ctx):
        random.seed(ctx.key)
        return update + random.random()


class LeftOver(Defense):
    """A server's rule that grows from run to run."""

    rounds = 0

    def aggregate(self, updates, weights, ctx):
        self.rounds += 1
        return (weights @ updates) * (1 + 0.01 * self.rounds)


class MemberStateOnSelf(Defense):
    """What a member learns, on self; set anew in every run."""

    def begin(self, ctx):
        self.norms = dict.fromkeys(ctx.members, 0.0)

    def protect(self, update, ctx):
        self.norms[ctx.client] = float(update.norm())
        return update


class KeepsData(Defense):
    """A member's data where the next member can read them."""

    def begin(self, ctx):
        self.seen = {}

    def protect(self, update, ctx):
        self.seen[ctx.client] = ctx.data.x
        return update


class KeepsContexts(Defense):
    """Another member's memory, through its context."""

    def begin(self, ctx):
        self.contexts = []

    def protect(self, update, ctx):
        self.contexts.append(ctx)
        return update


class DrawsInTurn(Defense):
    """One generator for all members: who comes first draws first."""

    def begin(self, ctx):
        self.coins = np.random.default_rng(ctx.key)

    def protect(self, update, ctx):
        return update + 0.01 * self.coins.normal()


class WritesToData(Defense):
    """The member's samples, past torch's counters, and back again."""

    def transform(self, batch, ctx):
        batch.y.data[0] = (batch.y[0] + 1) % ctx.federation.n_classes
        return replace(batch)


class AnswersDouble(Defense):
    """float64 where it was given float32."""

    def protect(self, update, ctx):
        return update.double() * 0.5


class AnswersSingle(Defense):
    """float32 whatever it was given."""

    def protect(self, update, ctx):
        return (update * 0.5).to(torch.float32)


class FewMembers(Defense):
    """An assertion about how many members there are."""

    def coordinate(self, updates, ctx):
        assert len(ctx.members) < 4
        return updates


class DividesByOthers(Defense):
    """Where there are no others."""

    def begin(self, ctx):
        self.share = 1 / (ctx.federation.clients - 1)


class WordlessRefusal(Defense):
    """Refuses without saying why."""

    def check(self, federation):
        from fedbench.core import UserError

        if federation.n_classes == 2:
            raise UserError("")


class NoBuffers(Defense):
    """Fails where the model has running statistics."""

    def protect(self, update, ctx):
        (next(iter(ctx.model.buffers())) if list(ctx.model.buffers()) else torch.zeros(1)).reshape(1)
        return update


class Pickles(Defense):
    """A copy by pickle."""

    def protect(self, update, ctx):
        return pickle.loads(pickle.dumps(update))


class SavesByTorch(Defense):
    """A pickle by torch."""

    def protect(self, update, ctx):
        kept = io.BytesIO()
        torch.save(update, kept)
        return update


class WritesFile(Defense):
    """A log of its own."""

    def protect(self, update, ctx):
        with open(Path(tempfile.gettempdir()) / "a-defense-wrote-this.log", "a") as log:
            log.write("x")
        return update


class SearchesMemory(Defense):
    """Looks for everybody's data among all objects."""

    def protect(self, update, ctx):
        return update + 0 * (len(gc.get_referents(ctx.training)) if ctx.client == 0 else 1)


class WalksTheStack(Defense):
    """Looks into the engine's own variables."""

    def protect(self, update, ctx):
        return update + 0 * len(sys._getframe(1).f_locals)


class ClimbsFromAnError(Defense):
    """The engine's variables, through the frames of an error of its own."""

    def protect(self, update, ctx):
        try:
            raise ValueError
        except ValueError as error:
            return update + 0 * len(error.__traceback__.tb_frame.f_back.f_locals)


class FrozenRate(Defense):
    """A loss declared capturable that goes by a number which changes from call to call."""

    capturable = frozenset({"loss"})

    def loss(self, logits, batch, ctx):
        times = ctx.__dict__.setdefault("times", [0])
        times[0] += 1
        return super().loss(logits, batch, ctx) * times[0]


class CapturesNothing(Defense):
    """Declares a phase that it leaves alone."""

    capturable = frozenset({"loss"})

    def transform(self, batch, ctx):
        return batch


class Raises(Defense):
    """Gets nowhere."""

    def protect(self, update, ctx):
        return BLANK[ctx.round]


class StaysOnTheCpu(Defense):
    """Noise that is made where the model is not; of no account without a GPU."""

    def protect(self, update, ctx):
        return update + torch.randn(len(update), generator=ctx.generator)


class AnswersTogether(Defense):
    """Answers that are centred over the chunk."""

    def answer(self, logits, ctx):
        return logits - logits.mean(0)


class AnswersByChance(Defense):
    """Another draw for whoever asks from another place of the chunk."""

    def answer(self, logits, ctx):
        drawn = torch.randn(logits.shape, generator=torch.Generator().manual_seed(ctx.key >> 1))
        return logits + drawn.to(logits)


class AnswersInHalves(Defense):
    """Logits of half the width, whatever it was given."""

    def answer(self, logits, ctx):
        return logits.half()


# class -> the checks that must fail, and no others
FAILED = {
    Sound: (),
    UndocumentedParameter: ("parameters_documented",),
    UnboundedParameter: ("parameters_bounded",),
    UnboundedList: ("parameters_bounded",),
    ImpossibleDefault: ("defaults_construct",),
    Nameless: ("documented",),
    Misspelt: ("known_methods",),
    ReadsTheClock: ("deterministic_under_seed",),
    CountsForEver: ("deterministic_under_seed",),
    UnseededNumpy: ("seeded_generators",),
    UnseededPython: ("seeded_generators",),
    UnseededTorch: ("seeded_generators",),
    ModuleGenerator: ("seeded_generators",),
    GlobalTorch: ("no_global_randomness",),
    GlobalNumpy: ("no_global_randomness",),
    SeedsPython: ("no_global_randomness",),
    LeftOver: ("no_state_between_runs",),
    MemberStateOnSelf: (),
    KeepsData: ("members_kept_apart",),
    KeepsContexts: ("members_kept_apart",),
    DrawsInTurn: ("order_of_clients",),
    WritesToData: ("inputs_not_mutated",),
    AnswersDouble: ("update_shape_and_dtype",),
    AnswersSingle: ("update_shape_and_dtype",),
    AnswersTogether: ("answers_each_sample_alone",),
    AnswersByChance: ("answers_each_sample_alone",),
    AnswersInHalves: ("update_shape_and_dtype",),
    FewMembers: ("one_and_many_members",),
    DividesByOthers: ("refuses_with_a_reason",),
    WordlessRefusal: ("refuses_with_a_reason",),
    NoBuffers: ("batch_statistics",),
    Pickles: ("pickles_nothing",),
    SavesByTorch: ("pickles_nothing",),
    WritesFile: ("writes_no_files",),
    SearchesMemory: ("looks_at_nothing_else",),
    WalksTheStack: ("looks_at_nothing_else",),
    ClimbsFromAnError: ("looks_at_nothing_else",),
    FrozenRate: ("replays_the_same",),
    CapturesNothing: ("replays_the_same",),
    Raises: ("runs",),
}
# class -> the checks that must warn
WARNED = {MemberStateOnSelf: ("no_member_state_on_self",)}
