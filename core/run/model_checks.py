"""Does an architecture do what the contract of `Model` says, and does the engine train it as plain
autograd does? Asked before anything is trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.contract.components import Data, Model
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel, ModelState
from fedbench.core.numerics.per_sample import refuse_batch_statistics
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.tape import drawn_parameters
from fedbench.core.numerics.wrappers import as_floats, wrap
from fedbench.core.spec.federation import FederationSpec, Optimizer
from fedbench.core.words import explain

_SAMPLES = 3  # two to swap, one that stays
_AMONG = 32  # samples, from which different ones are taken
# Of the largest logit: what one and the same sample may differ by in batches of another make-up, by
# rounding alone.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
_REMEDY = (
    "every row must depend on its own sample alone, the samples on the first axis (recurrent and "
    "attention layers: "
    "batch_first=True, or turn the axes inside the model and back)"
)


def try_model(model: Model, data: Data) -> int:
    """Number of trainable parameters of what an architecture builds. ``UserError`` unless it takes
    the data set's samples, gives one logit a class, keeps the samples apart in eval mode, and
    trains.
    """
    name = type(model).__name__
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = model.build(data.input_shape, data.n_classes)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"the model {name} built {type(module).__name__}, expected a torch.nn.Module"
            )
        if not any(p.requires_grad for p in module.parameters()):
            raise UserError(
                f"the model {name} has no parameters to train: none has requires_grad=True"
            )
        _require_one_dtype(name, module)
        net, x = wrap(module, data).eval(), _different(data)
        pair, classes = x[:2], data.n_classes
        out = _answer(name, net, pair, f"does not take samples of shape {list(data.input_shape)}")
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (len(pair), classes):
            found = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise UserError(
                f"the model {name} answers {len(pair)} samples with {found}, expected "
                f"[{len(pair)}, {classes}]"
            )
        _require_finite(name, "output", out)
        try:
            refuse_batch_statistics(net)
        except ValueError as error:
            raise UserError(f"the model {name} mixes samples in eval mode: {error}") from error
        twin = wrap(model.build(data.input_shape, data.n_classes), data).eval()
        _require_apart(name, *_telling(net, twin, as_floats(net, x)))
        with torch.enable_grad():
            _require_training(name, model, data)
        return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _require_one_dtype(name: str, module: nn.Module) -> None:
    """They lie in one vector each, the trained parameters and the statistics that travel with
    them.
    """
    trained = {p.dtype for p in module.parameters() if p.requires_grad}
    kept = {b.dtype for b in module.buffers() if b.is_floating_point() or b.is_complex()}
    for what, dtypes in (("trainable parameters", trained), ("floating-point buffers", kept)):
        if len(dtypes) > 1 or not dtypes <= {*_ROUNDING}:
            found = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise UserError(
                f"the model {name} has {what} of {found}; expected float32 or float64: convert "
                "inside `forward`"
            )


def _require_finite(name: str, what: str, values: torch.Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise UserError(
            f"the model {name} cannot be trained: its {what} is not finite before any training; "
            "look at "
            "its initial parameters, the samples, and divisions, roots and logarithms in `forward`"
        )


def _different(data: Data) -> torch.Tensor:
    """[n, *input]: the first samples that differ from each other; the first two where there are
    none.
    """
    x = np.ascontiguousarray(data.train_x[:_AMONG])
    _, first = np.unique(x.reshape(len(x), -1), axis=0, return_index=True)
    return torch.from_numpy(x[np.sort(first)[:_SAMPLES]] if len(first) > 1 else x[:2])


def _answer(name: str, net: nn.Module, x: torch.Tensor, what: str) -> torch.Tensor:
    given = x.clone()
    try:
        out = net(given)
    except Exception as error:
        raise UserError(f"the model {name} {what}: {explain(error)}") from error
    if not torch.equal(given, x):
        raise UserError(
            f"the model {name} writes to its input, which others read after it: work on a copy"
        )
    return out


def _telling(net: nn.Module, twin: nn.Module, x: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """One of ``net`` and its ``twin``, made to show what it does with its samples, and the samples
    as it takes them.

    The twin in float64, where mixing stands out from rounding, unless the model insists on float32.
    Its parameters are moved, unless its numbers end there: an output layer or a residual branch
    that starts at zero shows nothing of what lies before it.
    """
    wide = x.double() if x.is_floating_point() else x
    try:
        twin.double()(wide)
    except Exception:
        twin, wide = net, x
    built = {name: p.clone() for name, p in twin.named_parameters()}
    for name, drawn in drawn_parameters(twin, torch.Generator().manual_seed(0)).items():
        twin.get_parameter(name).add_(0.1 * drawn)
    if not bool(torch.isfinite(twin(wide)).all()):
        for name, p in twin.named_parameters():
            p.copy_(built[name])
    return twin, wide


def _require_apart(name: str, net: nn.Module, x: torch.Tensor) -> None:
    """Raise ``UserError`` unless swapping two samples swaps their rows, and no row depends on
    another sample.
    """
    out = net(x)
    if not bool(torch.isfinite(out).all()):
        return  # numbers that are none tell nothing apart
    tolerance = _ROUNDING.get(out.dtype, 1e-2) * float(out.abs().max())

    def require(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        if not bool(((found - expected).abs() <= tolerance).all()):
            raise UserError(f"the model {name} {what}")

    require(
        net(x),
        out,
        "answers the same samples differently each time in eval mode: draw no random numbers there",
    )
    if len(x) < 2:
        return
    order = torch.arange(len(x))
    order[:2] = torch.tensor([1, 0])
    swapped = net(x[order])
    require(
        swapped[2:],
        out[2:],
        f"mixes samples: swapping two samples changes other rows of its logits; {_REMEDY}",
    )
    require(
        swapped[:2],
        out[[1, 0]],
        f"mixes samples: swapping two samples does not swap their rows; {_REMEDY}",
    )
    order[:2] = torch.tensor([1, 1])
    require(
        net(x[order])[1:],
        out[1:],
        f"mixes samples: changing one sample changes other rows of its logits; {_REMEDY}",
    )
    alone = _answer(name, net, x[:1], "does not take a sample alone")
    require(
        alone,
        out[:1],
        f"mixes samples: it answers a sample alone otherwise than among others; {_REMEDY}",
    )


# --- one step of training -------------------------------------------------------------------------

_BATCH = 2  # samples of a client


def _require_training(name: str, model: Model, data: Data) -> None:
    """Raise ``UserError`` unless two clients with a batch each, trained by the engine in both
    orders, end where each ends alone with plain autograd."""
    x, y = (torch.from_numpy(a[: 2 * _BATCH].copy()) for a in (data.train_x, data.train_y))
    first, last = slice(None, _BATCH), slice(-_BATCH, None)
    clients = [MemberData(x[part], y[part]) for part in (first, last)]
    config = FederationSpec(
        clients=2, rounds=1, local_epochs=1, batch_size=_BATCH, optimizer=Optimizer(lr=1.0)
    )
    for pair in (clients, clients[::-1]):
        flat = _fresh(model, data)
        start = flat.state.clone()
        expected = torch.stack(
            [
                _alone(name, _fresh(model, data).module, k, client, start.params)
                for k, client in enumerate(pair)
            ]
        )
        setup = Setup(
            config=config,
            seed=0,
            flat=flat,
            clients=pair,
            n_classes=data.n_classes,
            defense=Defense(),
            members=(),
            initial=start.params[None],
        )
        before = _kept(flat, start, pair[1].x, pair[0].x)
        uploads = next(Training(setup).rounds()).uploads
        for path, value in _kept(flat, start, pair[1].x).items():
            if before.get(path) != value:
                raise UserError(
                    f"the model {name} keeps something outside of parameters and buffers, which "
                    "all "
                    f"clients of a round would share: '{path}' changes in `forward`; register a "
                    "buffer, and write to it in place"
                )
        sent = torch.cat([uploads.updates, uploads.buffers, uploads.counts], 1).to(expected)
        if torch.equal(sent, expected):
            continue
        rounding = 1e-6 * float(start.params.abs().max() + uploads.updates.abs().max())
        if not torch.allclose(sent, expected, rtol=1e-4, atol=rounding, equal_nan=True):
            raise UserError(
                f"the model {name} trains otherwise beside another client than alone with plain "
                "autograd: keep nothing between batches but parameters and buffers, write to these "
                "in place, and draw from torch's global generator only"
            )


def _fresh(model: Model, data: Data) -> FlatModel:
    torch.random.default_generator.manual_seed(0)
    net = wrap(model.build(data.input_shape, data.n_classes), data)
    return FlatModel(net.train(), torch.device("cpu"))


def _alone(
    name: str, net: nn.Module, k: int, client: MemberData, start: torch.Tensor
) -> torch.Tensor:
    """The update, buffers and counts of client ``k`` after one step from ``start`` [P], with its
    samples in the engine's order and the engine's random numbers."""
    shuffle = torch.Generator().manual_seed(key_for(0, "shuffle", 1, k) >> 1)
    order = torch.randperm(len(client.y), generator=shuffle)
    torch.random.default_generator.manual_seed(key_for(0, "module", 1, k) >> 1)
    logits = net(as_floats(net, client.x[order]))
    _require_finite(name, "output in training mode", logits)
    cross_entropy(logits, client.y[order]).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    flat = FlatModel(net, torch.device("cpu"))  # of the buffers that `forward` may have replaced
    _require_finite(name, "gradient", flat.params)
    return torch.cat([flat.params - start, flat.buffers, flat.state.counts])


@torch.no_grad()
def _kept(flat: FlatModel, start: ModelState, *batches: torch.Tensor) -> dict[str, str]:
    """The output for the first batch at ``start``, and each attribute of the module's parts and
    their classes, by its path, after evaluations of all."""
    flat.load(start)  # what a layer computes of parameters and buffers is alike then
    outputs = [flat.module.eval()(as_floats(flat.module, x)) for x in batches]
    kept = {"output in eval mode": repr(outputs[0])}
    for path, part in flat.module.named_modules():
        for attribute, value in {**vars(type(part)), **vars(part)}.items():
            if isinstance(value, torch.Tensor):
                # of a large one, only the first and last elements are shown
                value = value.double().sum()
            kept[f"{path}.{attribute}".lstrip(".")] = repr(value)
    return kept
