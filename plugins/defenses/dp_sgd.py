"""DP-SGD: clip what one example (or one client) contributes, then add noise of that size."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedbench.core import (
    Batch,
    Defense,
    FactValue,
    Federation,
    MemberContext,
    Params,
    ReportContext,
    Selection,
    UserError,
    norm,
)
from fedbench.plugins.defenses.augmentation import shift_and_flip
from fedbench.plugins.defenses.dp_accounting import Steps, accountant_used, epsilon_after, noise_for

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SIGMA = 0.1  # where neither sigma nor epsilon is given
_ACCOUNTANTS = {
    "gaussian": "Gaussian composition",
    "prv": "PLD of dp-accounting",
    "rdp": "RDP of dp-accounting",
}
_NEIGHBOURS = {"example": "example without its gradient", "client": "client without its update"}
Memory = Mapping[str, Any]  # a member's


class DPSGD(Defense):
    """Differentially private local training: by example in every step, or by client on the update.

    ``example``: each sample's gradient is clipped to the norm C, the batch is averaged and N(0,
    (sigma C / B)^2) is added (Abadi et al., CCS 2016, algorithm 1). With ``sampling: shuffled`` B
    is the batch's own size; with ``poisson`` a batch holds each sample independently, and B is the
    expected size: an empty batch is a step of noise. With ``augment_multiplicity`` k > 1 a sample's
    gradient is the mean over k random views of it before it is clipped, so its contribution is
    still bounded by C (De et al., 2022, section 3.2).

    ``rate`` multiplies the gradient after its noise, so it costs no epsilon: what is done to a
    private result without looking at the data again is post-processing (Dwork & Roth 2014,
    proposition 2.1). Weight decay is added by the optimiser, afterwards: it goes on at the
    federation's rate. Adam divides any such factor out again.

    ``client``: the update is scaled down to the norm C_delta and N(0, (sigma C_delta)^2) is added
    to every parameter (McMahan et al., ICLR 2018). ``clip_update: median`` takes the median norm of
    the member's updates in earlier rounds, and in round 1, which has none, the norm of the update
    itself (nothing is clipped then). A bound computed from private data supports no epsilon.

    ``epsilon`` instead of ``sigma``: the noise is what that epsilon asks for over all rounds and
    local epochs, each member's own where its number of samples counts (poisson). A client that is
    drawn may be drawn every time.

    What epsilon means: see ``dp_accounting``. It holds for one member's example (or the member)
    against a party that reads that member's uploads, not for the coalition, and only if nothing
    else depends on the data: a fixed clipping norm, no buffers in the model, no other defense that
    uses private data outside the noise (``Defense.private``); by client the noise covers all of the
    local training. A defense that leaves out steps of sampled batches, as data sampling does, saves
    their cost. The number of samples is public. The noise multipliers usual in this literature
    (.05 to .2) give an epsilon in the thousands: no guarantee.

    ``clip_unit: batch`` and ``account: one-round`` are MemberShield's released code. What it claims
    is the fact ``claimed epsilon``; ``epsilon`` is what holds, of all rounds, and for a clipped
    batch at half the noise multiplier: one example moves a gradient of norm at most C by up to 2 C.
    """

    class Params(Params):
        mode: Literal["example", "client"] = Field(
            "example",
            description="what is clipped and hidden: an example's contribution, or a client's",
        )
        sigma: Annotated[float, Field(ge=0)] | None = Field(
            None,
            description="noise multiplier, in units of the clipping norm; .1 where no epsilon is "
            "given either",
        )
        epsilon: Annotated[float, Field(gt=0)] | None = Field(
            None,
            description="instead of sigma: the epsilon at delta that all rounds together may cost",
        )
        delta: float = Field(
            1e-5, gt=0, lt=1, description="the probability at which epsilon is stated"
        )
        sampling: Literal["shuffled", "poisson"] = Field(
            "shuffled",
            description="`shuffled`: each sample once an epoch; `poisson`: in each batch with "
            "probability B/n",
        )
        accountant: Literal["prv", "rdp"] = Field(
            "prv",
            description="for sampling poisson (shuffled batches have Gaussian composition); all "
            "are upper bounds",
        )
        clip: float = Field(
            1.0, gt=0, description="C, largest L2 norm of one example's gradient (mode example)"
        )
        clip_update: Annotated[float, Field(gt=0)] | Literal["median"] = Field(
            1.0,
            description="C_delta, largest L2 norm of an update, or `median` of the past ones (mode "
            "client)",
        )
        rate: float = Field(
            1.0,
            gt=0,
            description="factor on the federation's learning rate, of the noisy gradient alone "
            "(SGD; mode example)",
        )
        augment_multiplicity: int = Field(
            1,
            ge=1,
            description="views of a sample averaged before clipping; 1: the sample as it is",
        )
        shift: int = Field(4, ge=0, description="largest shift of a view, in pixels, zero padded")
        flip: bool = Field(
            False, description="whether a view is mirrored left to right with probability 1/2"
        )
        clip_unit: Literal["example", "batch"] = Field(
            "example",
            description="`batch`: the whole batch's gradient is clipped, noise sigma C undivided "
            "(released code)",
        )
        account: Literal["all", "one-round"] = Field(
            "all",
            description="rounds that epsilon is calibrated for; `one-round`: the released code, "
            "which spends more than it claims",
        )

        @model_validator(mode="after")
        def _consistent(self):
            if self.epsilon is not None and self.sigma is not None:
                raise ValueError("epsilon and sigma both set the noise: give one of them")
            if self.mode == "client" and self.epsilon is not None and self.clip_update == "median":
                raise ValueError(
                    "a median of private norms supports no epsilon: give clip_update a number, or "
                    "sigma"
                )
            if self.mode == "client" and (self.sampling == "poisson" or self.clip_unit == "batch"):
                raise ValueError(
                    "sampling and clip_unit are about batches: leave them out with mode client"
                )
            if self.mode == "client" and self.rate != 1:
                raise ValueError(
                    "rate is about the steps of a batch: leave it out with mode client"
                )
            return self

    @property
    def private(self) -> Collection[str]:  # type: ignore[override]
        """Phases with private data: the steps by example; by client it uses the update alone."""
        return ("local_step",) if self.params.mode == "example" else ()

    @property
    def covers(self) -> Collection[str]:  # type: ignore[override]
        """Phases that the noise covers: by client all before the update is clipped."""
        if self.params.mode == "example":
            return ()
        before = ("prepare", "select", "local_train", "transform", "local_step", "loss")
        return (*before, "after_round")

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` for an epsilon out of reach; of sampled batches it is known in the
        first round.
        """
        p = self.params
        if p.epsilon is not None and p.sampling == "shuffled":
            noise_for(p.epsilon, self._steps(federation, 0, p.account), p.delta)

    def select(self, ctx: MemberContext) -> Selection | None:
        """Select all samples, to be drawn by ``sampling``; note the noise for the report."""
        usable = ctx.data.trainable
        if self.params.mode == "example":
            ctx.memory["samples"] = len(usable)
            ctx.memory["noise multiplier"] = self._noise(ctx.federation, len(usable))
        return Selection(usable, poisson=True) if self.params.sampling == "poisson" else None

    def local_step(self, batch: Batch, ctx: MemberContext) -> Tensor | None:
        p = self.params
        if p.mode == "client":
            return None
        size = len(batch.hard_labels("dp-sgd"))
        samples = 0
        if p.sampling == "poisson":
            samples = len(ctx.data.trainable)
            # as expected: the size of a batch tells who is in it
            size = min(samples, ctx.federation.batch_size)
        self._count(batch, ctx)
        batch = self._with_views(batch, ctx)
        if p.clip_unit == "batch":
            total = clip_to(mean_gradient(batch, ctx), p.clip)
            size = 1
        else:
            total = ctx.clipped_gradient(batch, p.clip, p.augment_multiplicity)
        deviation = self._noise(ctx.federation, samples) * p.clip
        return total.add_(ctx.randn_like(total), alpha=deviation).mul_(p.rate / size)

    def protect(self, update: Tensor, ctx: MemberContext) -> Tensor:
        # buffers (running statistics) are sent as they are: with them nothing can be claimed
        ctx.memory["buffers"] = next(ctx.model.buffers(), None) is not None
        if self.params.mode == "example":
            return update
        sigma = self._noise(ctx.federation, 0)
        bound = self._update_bound(update, ctx)
        ctx.memory["noise multiplier"] = sigma
        return clip_to(update, bound) + (sigma * bound) * ctx.randn_like(update)

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """State the epsilon of one example (or one client) against a party that reads that member's
        uploads; see ``dp_accounting``.

        Nothing is claimed without noise, nor with a median bound, or where buffers go out
        unclipped. With ``clip_unit: batch`` or ``account: one-round`` the false epsilon is called a
        claimed one, beside the one that holds.
        """
        p = self.params
        federation = ctx.federation
        memories = [ctx.of_member[k] for k in sorted(ctx.of_member)]
        trained = [memory for memory in memories if "noise multiplier" in memory]
        if not self._claimable(trained):
            return {}
        noises = [m["noise multiplier"] for m in trained] or [self._noise(federation, 0)]
        facts = self._claims(federation, trained, min(noises))
        facts["noise multiplier"] = noises[0] if len(set(noises)) == 1 else noises
        if p.mode == "example":
            facts["sampling"] = p.sampling
        at_risk = p.delta * max((m["samples"] for m in trained if "samples" in m), default=0)
        if at_risk > 0.1:  # publishing a sample at random has delta 1/n
            facts["delta times samples"] = at_risk
        return facts

    def privacy_event(self, unit: str, client: int, ctx: ReportContext) -> DpEvent | None:
        """Return the Gaussian mechanisms of all of the client's steps, or of its updates."""
        import dp_accounting

        memory = ctx.of_member[client]
        if unit != self.params.mode or memory.get("buffers") or not self._claimable([memory]):
            return None
        if "noise multiplier" not in memory:
            return dp_accounting.NoOpDpEvent()  # it was never drawn
        steps = self._taken(ctx.federation, memory)
        step: DpEvent = dp_accounting.GaussianDpEvent(self._of_example(memory["noise multiplier"]))
        if steps.rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(steps.rate, step)
        return dp_accounting.SelfComposedDpEvent(step, steps.count)

    def _claimable(self, memories: Sequence[Memory]) -> bool:
        """Tell whether the noise covers all that the members sent."""
        p = self.params
        if p.mode == "client" and (p.clip_update == "median" or not memories):
            return False
        if p.clip_unit == "example" and any(memory.get("buffers") for memory in memories):
            return False
        return p.sigma != 0 and (p.sampling == "shuffled" or bool(memories))

    def _claims(
        self, federation: Federation, memories: Sequence[Memory], noise: float
    ) -> dict[str, FactValue]:
        """State epsilon, against which neighbours, and by which accountant."""
        p = self.params
        name = "epsilon"
        if p.account == "one-round":
            name = "claimed epsilon (one round)"
        elif p.clip_unit == "batch":
            name = "claimed epsilon (batch clipped)"
        terms = self._of_example(noise), self._steps(federation, 1, p.account), p.delta
        neighbours = _NEIGHBOURS[p.mode]
        accountant = _ACCOUNTANTS[accountant_used(*terms)]
        facts: dict[str, FactValue] = {name: self._claim(federation, memories), "delta": p.delta}
        if name == "epsilon":
            facts["epsilon if replaced"] = self._claim(federation, memories, replaced=True)
            neighbours += f" (if replaced: another {p.mode})"
            of_replacement = _ACCOUNTANTS[accountant_used(*terms, replaced=True)]
            if of_replacement != accountant:
                accountant += f" (if replaced: {of_replacement})"
        elif not any(memory.get("buffers") for memory in memories):
            facts["epsilon"] = max(self._spent(federation, memory) for memory in memories or [{}])
        return facts | {
            "unit of privacy": p.mode,
            "neighbours": neighbours,
            "accountant": f"{accountant}, upper bound",
        }

    def _claim(
        self, federation: Federation, memories: Sequence[Memory], replaced: bool = False
    ) -> float:
        """Return the epsilon of the member that it costs most."""
        return max(self._epsilon(federation, memory, replaced) for memory in memories or [{}])

    def _epsilon(self, federation: Federation, memory: Memory, replaced: bool) -> float:
        """Return a member's epsilon of all rounds, with the steps that a composition takes.

        ``replaced``: against another example (or update) in that place.
        """
        p = self.params
        samples = memory.get("samples", 0)
        steps = planned = self._steps(federation, samples, p.account)
        if p.account == "all":
            steps = self._taken(federation, memory)
        if p.epsilon is not None and steps == planned and not replaced:
            return p.epsilon
        return epsilon_after(self._noise(federation, samples), steps, p.delta, replaced)

    def _spent(self, federation: Federation, memory: Memory) -> float:
        """Return the epsilon that holds for a member, whatever the released code claims."""
        noise = self._of_example(self._noise(federation, memory.get("samples", 0)))
        return epsilon_after(noise, self._taken(federation, memory), self.params.delta)

    def _of_example(self, noise: float) -> float:
        """Return the noise multiplier in units of what an example moves: up to 2 C of a clipped
        batch.
        """
        return noise / 2 if self.params.clip_unit == "batch" else noise

    def _count(self, batch: Batch, ctx: MemberContext) -> None:
        """Count the steps of the longest round, and those of each example: squared copies, as their
        noise counts.
        """
        last, steps = ctx.memory.get("steps", (ctx.round, 0))
        steps = steps + 1 if last == ctx.round else 1
        ctx.memory["steps"] = ctx.round, steps
        ctx.memory["most steps"] = max(steps, ctx.memory.get("most steps", 0))
        if self.params.sampling == "shuffled":
            copies = torch.bincount(batch.index, minlength=len(ctx.data.y))
            ctx.memory["taken"] = ctx.memory.get("taken", 0) + copies.square()

    def _taken(self, federation: Federation, memory: Memory) -> Steps:
        """Return the steps of all rounds that cost: of sampled batches those of the longest round
        in every round, fewer than planned where another defense leaves some out; of shuffled ones
        no fewer, since an example may be in every epoch.
        """
        planned = self._steps(federation, memory.get("samples", 0), "all")
        if "steps" not in memory:
            return planned
        if self.params.sampling == "poisson":
            return replace(planned, count=federation.rounds * memory["most steps"])
        return replace(planned, count=max(planned.count, int(memory["taken"].max())))

    def _steps(self, federation: Federation, samples: int, account: str) -> Steps:
        """Return the planned steps of a member with so many samples, of ``account`` rounds."""
        p = self.params
        # each round draws its clients anew, and may draw the same ones
        rounds = federation.rounds if account == "all" else 1
        if p.mode == "client":
            return Steps(rounds)
        epochs = rounds * federation.local_epochs
        if p.sampling == "shuffled":
            return Steps(epochs)  # an example is in at most one batch of an epoch
        batches = max(1, math.ceil(samples / federation.batch_size))
        rate = min(1.0, federation.batch_size / max(1, samples))
        return Steps(epochs * batches, rate, p.accountant)

    def _noise(self, federation: Federation, samples: int) -> float:
        p = self.params
        if p.epsilon is not None:
            return noise_for(p.epsilon, self._steps(federation, samples, p.account), p.delta)
        return SIGMA if p.sigma is None else p.sigma

    def _with_views(self, batch: Batch, ctx: MemberContext) -> Batch:
        """Replace each sample by random views of it, if there are to be several."""
        p = self.params
        views = self.params.augment_multiplicity
        if views == 1:
            return batch
        if batch.x.ndim != 4:
            raise UserError(
                "dp-sgd: augment_multiplicity shifts images [channels, height, width]; these "
                f"samples have the shape {list(batch.x.shape[1:])}: use augment_multiplicity 1"
            )
        x = random_views(batch.x, views, p.shift, p.flip, ctx.generator)
        y = batch.y.repeat_interleave(views)
        index = batch.index.repeat_interleave(views)
        return replace(batch, x=x, y=y, index=index, flag=None)

    def _update_bound(self, update: Tensor, ctx: MemberContext) -> float:
        if self.params.clip_update != "median":
            return self.params.clip_update
        length = float(norm(update))
        past = ctx.memory.setdefault("update-norms", [])
        lengths = torch.tensor(past or [length], dtype=torch.float64)
        past.append(length)
        return float(lengths.quantile(0.5))


def mean_gradient(batch: Batch, ctx: MemberContext) -> Tensor:
    """Gradient [P] of the mean loss of the whole batch; zero for an empty one."""
    if len(batch.y) == 0:
        return torch.zeros_like(ctx.params)
    return ctx.gradient(ctx.task.loss(ctx.model(batch.x), batch.target))


def clip_to(vector: Tensor, bound: float) -> Tensor:
    """Scale [P] down to at most the L2 norm ``bound``."""
    return vector * (bound / norm(vector).clamp_min(1e-30)).clamp_max(1)


def random_views(
    x: Tensor, views: int, shift: int, flip: bool, generator: torch.Generator
) -> Tensor:
    """Pad [B, C, H, W] with zeros, crop at random and mirror: [B * views, C, H, W].

    One sample's views are adjacent. Source: pad-and-crop augmentation of He et al. (CVPR 2016,
    section 4.2).
    """
    n = len(x) * views
    offset = torch.randint(0, 2 * shift + 1, (2, n), generator=generator).to(x.device) - shift
    mirror = torch.randint(0, 2, (n,), generator=generator).to(x.device).bool() & flip
    rows = x.repeat_interleave(views, 0)
    return shift_and_flip(rows, offset, mirror, torch.zeros_like(mirror), rows.new_zeros(()))
