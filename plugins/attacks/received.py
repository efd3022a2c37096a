"""ProjRes, and signals of the model that a client received, beside the one that it uploaded."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbench.core import Params, Probe, Signal
from fedbench.plugins.attacks.measures import Measure, measure_of
from fedbench.plugins.attacks.trajectory import SingleRound


def received_model(probe: Probe) -> nn.Module:
    """Return the probe's model with the parameters and the running statistics that the client
    received.
    """
    model = probe.model
    for parameter, part in update_parts(model, probe.update):
        parameter.data -= part
    if probe.buffers is not None:
        statistics = [b for b in model.buffers() if b.is_floating_point()]
        parts = probe.buffers.split([b.numel() for b in statistics])
        for statistic, part in zip(statistics, parts, strict=True):
            statistic.data.copy_(part.view_as(statistic))
    return model


def update_parts(model: nn.Module, update: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each trainable parameter with its part of ``update`` [P], in its shape."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    parts = update.split([p.numel() for p in trainable])
    return [(p, part.view_as(p)) for p, part in zip(trainable, parts, strict=True)]


# --- projection residual --------------------------------------------------------------------------


class ProjectionResidual(Signal):
    """Relative distance |h - P h| / |h| of a sample's embedding from the row space of the update.

    h is the input of one linear layer at the received model, P the projection on the span of the
    rows of that layer's weight update. A step on the samples i changes the weight by the sum of
    d_i h_i^T over them, so each of their embeddings lies in the span while d has rank |batch|: the
    batch no larger than the layer's outputs, and the embedding wider than both. Further steps add
    the embeddings at later models; a span of full rank holds everything, and all residuals are 0.
    Of inputs with further axes (tokens) all vectors count. Source: Deng et al., ProjRes (arXiv
    2604.21197), from its summary: hidden embeddings and their residuals on the gradient's subspace.
    """

    of_update = True

    class Params(Params):
        layer: int | None = Field(
            None,
            ge=0,
            description="position of the linear layer in the model, from 0; null: the one with the "
            "widest input, the first of them",
        )
        rank: int | None = Field(
            None,
            ge=1,
            description="largest number of directions of the update that count, the longest first; "
            "null: all that are longer than the rounding of float32",
        )

    def measure(self, probe: Probe) -> Tensor:
        parts = dict(update_parts(probe.model, probe.update))
        model = received_model(probe)
        layer = self._layer([m for m in model.modules() if isinstance(m, nn.Linear)])
        if layer.weight not in parts:
            raise ValueError("the linear layer's weight is not trained")
        directions = row_space(parts[layer.weight], layer.weight, self.params.rank)
        embeddings: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, inputs: embeddings.append(inputs[0]))
        model(probe.x)
        hook.remove()
        h = embeddings[0].double()
        outside = h - h @ directions @ directions.T
        length = h.flatten(1).norm(dim=1)
        residual = outside.flatten(1).norm(dim=1)
        return (residual / length.where(length > 0, 1.0)).float()

    def _layer(self, layers: list[nn.Linear]) -> nn.Linear:
        """Return the layer that the parameter names."""
        if not layers:
            raise ValueError("the model has no linear layer")
        position = self.params.layer
        if position is None:
            return max(layers, key=lambda layer: layer.in_features)
        if position >= len(layers):
            raise ValueError(
                f"layer {position} is not among the model's {len(layers)} linear layers, counted "
                "from 0"
            )
        return layers[position]


def row_space(update: Tensor, weight: Tensor, rank: int | None) -> Tensor:
    """Return an orthonormal basis [d, r] of the rows of ``update`` [outputs, d].

    A direction counts where its singular value exceeds what rounding ``weight`` + update to float32
    gives a random matrix of this shape (its norm is about sqrt(outputs) + sqrt(d) deviations), and
    at most ``rank`` do.
    """
    _, lengths, directions = torch.linalg.svd(update.double(), full_matrices=False)
    rounding = torch.finfo(torch.float32).eps * float(weight.abs().max())
    floor = rounding * (math.sqrt(update.shape[0]) + math.sqrt(update.shape[1]))
    return directions[lengths > floor][:rank].T


class ProjRes(SingleRound):
    """Score = minus the signal ``projection-residual`` on the target's update of one round.

    The signal's parameters are set in a suite under ``signals``. Source: Deng et al. (arXiv
    2604.21197).
    """

    @property
    def reads(self) -> Measure:
        """The residual, turned over."""
        return measure_of("projection-residual", -1)


# --- metrics of the received model ----------------------------------------------------------------

# the released code's floor of a probability under the logarithm is 1e-30
_LEAST = math.log(1e-30)


class ReceivedMetrics(Signal):
    """Loss, largest probability, deviation of the probabilities, entropy and modified entropy [n,
    5] under the model that the client received: the global one.

    The metrics of SeqMIA (Li et al., CCS 2024), in its order, as DS-MIA's released code takes them
    (Wztovo/DS-MIA, 1ad673e).
    """

    vector = True
    of_update = True

    def measure(self, probe: Probe) -> Tensor:
        log_p = received_model(probe)(probe.x).double().log_softmax(1)
        p = log_p.exp()
        log_q = torch.log1p(-p).clamp_min(_LEAST)
        label = probe.y[:, None]
        loss = -log_p.gather(1, label).squeeze(1)
        wrong = (p * log_q).scatter(1, label, 0.0).sum(1)
        modified = (1 - p.gather(1, label).squeeze(1)) * loss - wrong
        entropy = -(p * log_p).sum(1)
        metrics = [loss, p.amax(1), p.std(1, correction=0), entropy, modified]
        return torch.stack(metrics, dim=1).float()
