"""A defense that acts, draws and remembers in every phase of the table."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedbench.core import Defense, Selection


class EveryPhase(Defense):
    """Acts everywhere, draws everywhere, remembers everywhere."""

    n_models = 2

    def begin(self, ctx):
        self.scale = float(ctx.rng.uniform(0.5, 1))

    def prepare(self, data, ctx):
        ctx.memory["calls"] = 0
        return replace(data, held_out=ctx.randperm(len(data.y)) < 2)

    def assign(self, models, ctx):
        return int(ctx.rng.integers(2))

    def select(self, ctx):
        index = ctx.data.trainable
        return Selection(index, ctx.randperm(len(index)) % 2 == 0)

    def transform(self, batch, ctx):
        return replace(batch, x=batch.x + 0.1 * ctx.randn_like(batch.x))

    def loss(self, logits, batch, ctx):
        ctx.memory["calls"] += 1
        return super().loss(logits, batch, ctx) * self.scale + batch.flag.float().mean() * logits.square().mean()

    def local_step(self, batch, ctx):
        return torch.randn(len(ctx.params), generator=ctx.generator) if ctx.epoch == 3 else None

    def local_train(self, ctx):
        ctx.train()
        ctx.params.add_(ctx.randn_like(ctx.params), alpha=0.01)

    def protect(self, update, ctx):
        return update + 0.01 * ctx.memory["calls"] * ctx.randn_like(update)

    def coordinate(self, updates, ctx):
        ctx.memory["rounds"] = ctx.memory.get("rounds", 0) + 1
        return updates + ctx.memory["rounds"] * 0.01 * ctx.randn_like(updates)

    def aggregate(self, updates, weights, ctx):
        past = ctx.memory.setdefault("past", torch.zeros_like(updates[0]))
        past += weights @ updates + 0.01 * ctx.randn_like(updates[0])
        return past / ctx.round

    def after_round(self, ctx):
        ctx.memory["calls"] += float(ctx.rng.uniform())

    def answer(self, logits, ctx):
        said = sum(ctx.of_member[k]["calls"] for k in ctx.members) + ctx.coalition["rounds"] + float(ctx.rng.uniform())
        return logits * (1 + said)

    def report(self, ctx):
        return {"calls": [ctx.of_member[k]["calls"] for k in ctx.members], "rounds": ctx.coalition["rounds"]}
