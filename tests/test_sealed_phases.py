"""What a phase is handed stays as it is, and what it returns is what the table says; or defense, phase and place are named."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_packages import install
from running import changed as changed_suite
from running import invoke
from tiny import tiny_insider, tiny_module, tiny_setup, train_all

from fedbench.core import ActiveAttack, Batch, Defense, MemberData, Selection, UserError
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.compose import composed
from fedbench.core.federation.guard import PhaseError, require_served
from fedbench.core.federation.handed import OWN
from fedbench.core.federation.loop import Training
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.relaxloss import RelaxLoss

ANSWERS = {
    "begin": lambda ctx: None, "prepare": lambda data, ctx: data, "assign": lambda models, ctx: 0, "select": lambda ctx: None,
    "local_train": lambda ctx: ctx.train(), "transform": lambda batch, ctx: batch, "local_step": lambda batch, ctx: None,
    "loss": lambda logits, batch, ctx: torch.nn.functional.cross_entropy(logits, batch.y),
    "protect": lambda update, ctx: update, "coordinate": lambda updates, ctx: updates,
    "aggregate": lambda updates, weights, ctx: weights @ updates, "after_round": lambda ctx: None, "report": lambda ctx: {},
}  # fmt: skip
PLACES = {
    "begin": "before round 1", "prepare": "client 0, before round 1", "coordinate": "round 1", "aggregate": "server, round 1",
    "report": "after the last round",
}  # fmt: skip


def defense(phase: str, does: Any, n_models: int = 1) -> Defense:
    """One that acts in one phase: ``does`` is shown its arguments and gives its answer."""
    return type("Mine", (Defense,), {phase: lambda self, *args: does(*args), "n_models": n_models})()


def run(made: Defense, **changes: Any) -> None:
    """Two rounds of a tiny federation, and the report after them."""
    setup = tiny_setup(made, n_models=made.n_models, rounds=2, root=MemberData(torch.ones(5, 4), torch.arange(5) % 3), **changes)
    held = torch.arange(12) == 11
    setup = replace(setup, clients=[replace(d, soft=torch.full((12, 3), 1 / 3), held_out=held) for d in setup.clients])
    train_all(setup)[0].facts()


def ends(made: Defense, **changes: Any) -> str:
    """How the run ends: with what message."""
    with pytest.raises(PhaseError) as caught:
        run(made, **changes)
    return str(caught.value)


# --- what is handed out -----------------------------------------------------------------------------------------------

MEMBERS = ("prepare", "assign", "select", "local_train", "transform", "local_step", "loss", "protect", "after_round")
HANDED = [(phase, name) for phase in MEMBERS for name in ("start", "data.x", "data.y", "data.soft", "data.held_out")]
HANDED += [("aggregate", name) for name in ("params", "root.x", "root.y")]
KNOWN = ("x", "y", "mask_x", "mask_y")  # by an adversary, beside copies of its own
WAYS = {
    "in place": lambda t, new: t.copy_(new),
    "one element of a view": lambda t, new: t.view(-1)[-1:].copy_(new.view(-1)[-1:]),
    ".data": lambda t, new: t.data.copy_(new),
    "numpy": lambda t, new: np.copyto(t.numpy(), new.numpy()),
}


def reached(ctx: Any, name: str) -> torch.Tensor:
    for part in name.split("."):
        ctx = getattr(ctx, part)
    return ctx


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("phase", "name"), HANDED)
def test_a_write_to_what_is_handed_out_names_the_phase(phase, name, way):
    def does(*args):
        answer = ANSWERS[phase](*args)
        t = reached(args[-1], name)
        WAYS[way](t, t * 2 if t.is_floating_point() else torch.zeros_like(t))
        return answer

    unseen = way in (".data", "numpy") and phase in ("transform", "local_step", "loss")
    who = "local_train or a phase of a batch inside it" if unseen or phase == "local_train" else phase
    what = "ctx.start, models" if phase == "assign" and name == "start" else f"ctx.{name}"  # it is one of them
    said = ends(defense(phase, does, n_models=2 if phase == "assign" else 1))
    place = PLACES.get(phase, "client 0, round 1")
    assert said == f"Mine.{who} ({place}) changed {what}; it is handed out to be read: work on a copy, as .clone() makes one"


def tensors(value: Any, name: str = "") -> set[str]:
    """Names of the tensors in a context, whatever fields it has."""
    if isinstance(value, torch.Tensor):
        return {name}
    if not is_dataclass(value):
        return set()
    return {n for f in fields(value) for n in tensors(getattr(value, f.name), f"{name}.{f.name}".lstrip("."))}


def test_every_tensor_of_every_context_is_tried_above_or_its_own():
    seen: set[tuple[str, str]] = set()
    for phase in PHASES:

        def does(*args, phase=phase):
            seen.update((phase, name) for name in tensors(args[-1]))
            return ANSWERS[phase](*args)

        run(defense(phase, does, n_models=2 if phase == "assign" else 1))

    class Looks(ActiveAttack):
        knowledge = "rule"

        def craft(self, round, knowledge):
            seen.update(("craft", name) for name in tensors(knowledge))
            return knowledge.own

    train_all(tiny_setup(members=(), insider=tiny_insider(Looks())))
    own = {("craft", name) for name in ("start", "own", "honest")} | {(phase, "params") for phase in MEMBERS}
    assert seen == {*HANDED, *own, *(("craft", name) for name in KNOWN)}
    assert len(OWN) == 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KNOWN)
def test_an_adversary_leaves_what_it_knows_as_it_is(name, way):
    class Writes(ActiveAttack):
        def craft(self, round, knowledge):
            t = getattr(knowledge, name)
            WAYS[way](t, t + 1)
            return knowledge.own

    with pytest.raises(PhaseError, match=rf"^Writes\.craft \(round 1\) changed knowledge\.{name}; it is handed out to be read"):
        train_all(tiny_setup(members=(), insider=tiny_insider(Writes())))


def test_an_adversary_leaves_no_hook_in_the_module_that_all_clients_train_in():
    class Hooks(ActiveAttack):
        def craft(self, round, knowledge):
            knowledge.model.register_forward_hook(lambda module, args, out: out * 0)
            return knowledge.own

    with pytest.raises(PhaseError, match=r"^Hooks\.craft \(round 1\) changed its model: modules, tensors, hooks"):
        train_all(tiny_setup(members=(), insider=tiny_insider(Hooks())))


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return replace(value, **{f.name: copied(getattr(value, f.name)) for f in fields(value)}) if is_dataclass(value) else value


@pytest.mark.parametrize("phase", ["transform", "local_step", "protect", "coordinate", "aggregate"])
def test_what_a_phase_is_asked_about_is_a_copy_of_its_own(phase):
    def runs(writes: bool) -> torch.Tensor:
        def does(*args):
            *asked, ctx = args
            answer = ANSWERS[phase](*map(copied, asked), ctx)
            for value in asked if writes else ():
                for name in tensors(value, "value"):
                    reached(SimpleNamespace(value=value), name).mul_(0)
            return answer

        gradient = torch.ones(51)
        made = defense(phase, (lambda *args: (does(*args), gradient)[1]) if phase == "local_step" else does)
        return torch.stack([r.models for r in train_all(tiny_setup(made))[1]])

    assert torch.equal(runs(writes=True), runs(writes=False))


def test_the_models_to_choose_from_are_watched():
    said = ends(defense("assign", lambda models, ctx: int(models[1].zero_().sum()), n_models=2))
    assert said.startswith("Mine.assign (client 0, round 1) changed ctx.start, models; ")


def hook(ctx):
    ctx.model.register_forward_hook(lambda module, args, out: out * 0)


def freeze(ctx):
    next(ctx.model.parameters()).requires_grad_(False)


def reset(ctx):
    ctx.model[1].inplace = True


def replace_layer(ctx):
    ctx.model[1] = torch.nn.Tanh()


def swap(ctx):
    p = next(ctx.model.parameters())
    p.data = p.data.clone()


@pytest.mark.parametrize("does", [hook, freeze, swap, reset, replace_layer], ids=lambda does: does.__name__)
@pytest.mark.parametrize("phase", ["select", "local_train", "after_round"])
def test_nothing_stays_behind_in_the_module_that_all_clients_train_in(phase, does):
    def acts(ctx):
        ANSWERS[phase](ctx)
        does(ctx)

    assert "changed its model: modules, tensors, hooks, requires_grad or settings (load " in ends(defense(phase, acts))


def test_a_part_of_a_composite_is_named_itself():
    parts = composed([GradNoise(sigma=0.1), defense("protect", lambda update, ctx: (ctx.start.zero_(), update)[1])])
    assert ends(parts).startswith("Mine.protect (client 0, round 1) changed ctx.start; ")


def test_what_is_a_phases_own_may_be_written_to():
    def local_train(ctx):
        ctx.train()
        ctx.params.mul_(0.5)

    for phase, does in {
        "local_train": local_train,
        "protect": lambda update, ctx: update.mul_(0.5),
        "coordinate": lambda updates, ctx: updates.mul_(0.5),
        "transform": lambda batch, ctx: (batch.x.mul_(0.5), batch)[1],
    }.items():
        run(defense(phase, does))


def test_a_rule_keeps_its_hands_off_the_weights_and_the_adversarys_rows():
    class Rule(Defense):
        def aggregate(self, updates, weights, ctx):
            step = weights @ updates
            updates.zero_(), weights.zero_()
            return step

    class Tries(ActiveAttack):
        knowledge = "rule"

        def craft(self, round, knowledge):
            mine = torch.ones(4, knowledge.start.numel())
            knowledge.rule(mine)
            assert bool((mine == 1).all())
            return knowledge.own

    def begun(made):
        return Training(tiny_setup(made, module=torch.nn.Sequential(torch.nn.BatchNorm1d(4), tiny_module()), rounds=2))

    plain, mine = begun(Defense()), begun(Rule())
    for a, b in zip(plain.rounds(), mine.rounds(), strict=True):
        assert torch.equal(a.models, b.models) and torch.equal(a.buffers, b.buffers)
    train_all(tiny_setup(Rule(), members=(), insider=tiny_insider(Tries())))


def test_an_adversary_that_writes_to_its_start_leaves_its_tools_alone():
    steps = []

    class Writes(ActiveAttack):
        def craft(self, round, knowledge):
            steps.append(knowledge.step(knowledge.x, knowledge.y))
            knowledge.start.zero_()
            steps.append(knowledge.step(knowledge.x, knowledge.y))
            return knowledge.own

    train_all(tiny_setup(members=(), insider=tiny_insider(Writes()), rounds=1))
    assert torch.equal(*steps)


@pytest.mark.parametrize("made", [GradNoise(sigma=0.1), Mixup(alpha=1.0), RelaxLoss(alpha=1.0)], ids=lambda d: type(d).__name__)
def test_honest_defenses_are_not_accused(made):
    assert train_all(tiny_setup(made, rounds=3))[1][-1].models.isfinite().all()


# --- what is returned -------------------------------------------------------------------------------------------------


def changed(batch: Batch, **changes: Any) -> Batch:
    return replace(batch, **changes)


WRONG = {
    ("begin", "a value"): (lambda ctx: 3, "returned 3; expected None: what this phase returns is used nowhere"),
    ("local_train", "a value"): (lambda ctx: ctx.params, "returned a tensor of shape [51]; expected None: "),
    ("after_round", "a value"): (lambda ctx: "done", "returned str; expected None: "),
    ("prepare", "nothing"): (lambda data, ctx: None, "returned NoneType; expected MemberData"),
    ("prepare", "an array"): (
        lambda data, ctx: replace(data, x=data.x.numpy()), "returned data.x that is ndarray; expected a tensor of shape [n, 4]",
    ),
    ("prepare", "no labels"): (
        lambda data, ctx: replace(data, y=None), "returned data.y that is NoneType; expected a tensor of shape [n]",
    ),
    ("prepare", "labels as floats"): (
        lambda data, ctx: replace(data, y=data.y.float()), "data.y that is a tensor of float32; expected",
    ),
    ("prepare", "soft of other classes"): (
        lambda data, ctx: replace(data, soft=torch.ones(12, 5)),
        "data.soft that is a tensor of shape [12, 5]; expected a tensor of shape [12, 3]",
    ),
    ("prepare", "held out by index"): (
        lambda data, ctx: replace(data, held_out=torch.arange(12)), "data.held_out that is a tensor of int64; expected",
    ),
    ("assign", "a tensor"): (lambda models, ctx: torch.tensor(0), "returned a tensor of shape []; expected 0..1"),
    ("assign", "too many"): (lambda models, ctx: 2, "returned 2; expected 0..1"),
    ("select", "a tensor"): (lambda ctx: torch.arange(3), "returned a tensor of shape [3]; expected Selection or None"),
    ("select", "a mask"): (
        lambda ctx: Selection(ctx.data.y > 0), "an index that is a tensor of bool; expected a tensor of shape [n] of int64",
    ),
    ("select", "beyond"): (
        lambda ctx: Selection(torch.tensor([0, 12])), "an index from 0 to 12; expected positions in 0..11",
    ),
    ("select", "a short flag"): (
        lambda ctx: Selection(torch.arange(3), flag=torch.ones(2)), "a flag that is a tensor of shape [2]; expected",
    ),
    ("select", "batches"): (
        lambda ctx: Selection(torch.arange(3), batches=-1), "returned batches that are -1; expected None, or an integer >= 0",
    ),
    ("transform", "samples alone"): (lambda batch, ctx: batch.x, "expected Batch"),
    ("transform", "another shape"): (
        lambda batch, ctx: changed(batch, x=batch.x[:, :2]), "batch.x that is a tensor of shape [5, 2]; expected",
    ),
    ("transform", "doubles"): (lambda batch, ctx: changed(batch, x=batch.x.double()), "batch.x that is float64; expected"),
    ("transform", "nothing left"): (
        lambda batch, ctx: changed(batch, x=batch.x[:0], y=batch.y[:0], index=batch.index[:0]), "batch.x that is an empty tensor",
    ),
    ("transform", "labels of others"): (lambda batch, ctx: changed(batch, y=batch.y[1:]), "batch.y that is a tensor of shape"),
    ("transform", "labels beyond"): (lambda batch, ctx: changed(batch, y=batch.y + 3), "expected labels in 0..2"),
    ("transform", "soft"): (lambda batch, ctx: changed(batch, soft=torch.ones(5)), "batch.soft that is a tensor of shape [5]"),
    ("transform", "index"): (lambda batch, ctx: changed(batch, index=batch.index[1:]), "batch.index that is a tensor of"),
    ("local_step", "a scalar"): (lambda batch, ctx: torch.tensor(0.1), "a tensor of shape []; expected a tensor of shape [51]"),
    ("local_step", "a number"): (lambda batch, ctx: 0.1, "returned 0.1; expected a tensor of shape [51]"),
    ("local_step", "integers"): (
        lambda batch, ctx: torch.ones(51, dtype=torch.int64), "returned a tensor of int64; expected a tensor of shape [51] of ",
    ),
    ("loss", "one a sample"): (lambda logits, batch, ctx: logits.sum(1), "of shape [5]; expected a tensor with one element"),
    ("loss", "a number"): (lambda logits, batch, ctx: 0.5, "returned 0.5; expected a tensor with one element"),
    ("loss", "no gradient"): (
        lambda logits, batch, ctx: logits.detach().mean(), "a loss without a gradient; expected one that is computed",
    ),
    ("loss", "elsewhere"): (
        lambda logits, batch, ctx: logits.mean().to("meta"), "returned a tensor on meta; expected one on cpu",
    ),
    ("protect", "complex"): (lambda update, ctx: update.to(torch.complex64), "returned a tensor of complex64; expected"),
    ("protect", "elsewhere"): (lambda update, ctx: update.to("meta"), "returned a tensor on meta; expected one on cpu"),
    ("protect", "sparse"): (lambda update, ctx: update.to_sparse(), "returned a sparse tensor; expected a dense one"),
    ("protect", "a scalar"): (lambda update, ctx: update.sum(), "a tensor of shape []; expected a tensor of shape [51]"),
    ("coordinate", "one row"): (lambda updates, ctx: updates[:1], "of shape [1, 51]; expected a tensor of shape [2, 51]"),
    ("coordinate", "whole numbers"): (lambda updates, ctx: updates.sign().bool(), "returned a tensor of bool; expected"),
    ("aggregate", "all rows"): (lambda updates, weights, ctx: updates, "of shape [4, 51]; expected a tensor of shape [51]"),
    ("aggregate", "a list"): (lambda updates, weights, ctx: updates[0].tolist(), "list; expected a tensor of shape [51]"),
    ("report", "a list"): (lambda ctx: [1], "returned list; expected a mapping"),
}  # fmt: skip


@pytest.mark.parametrize(("phase", "what"), WRONG, ids=lambda value: value)
def test_a_wrong_answer_names_its_phase(phase, what):
    does, words = WRONG[phase, what]
    said = ends(defense(phase, does, n_models=2 if phase == "assign" else 1))
    assert said.startswith(f"Mine.{phase} ({PLACES.get(phase, 'client 0, round 1')}) returned ") and words in said, said


def test_every_phase_has_wrong_answers_in_this_test():
    assert {phase for phase, _ in WRONG} == set(ANSWERS)


def fails(*args):
    raise ValueError("no idea")


LINE = f"({Path(__file__).name}:{fails.__code__.co_firstlineno + 1} in fails)"


@pytest.mark.parametrize("phase", ANSWERS)
def test_an_error_names_the_phase_in_which_it_was_raised_and_the_line(phase):
    said = ends(defense(phase, fails, n_models=2 if phase == "assign" else 1))
    assert said == f"Mine.{phase} ({PLACES.get(phase, 'client 0, round 1')}): ValueError: no idea {LINE}"


@pytest.mark.parametrize("phase", ["transform", "local_step", "loss"])
def test_a_local_train_around_it_takes_no_blame(phase):
    both = {phase: lambda self, *args: fails(), "local_train": lambda self, ctx: ctx.train()}
    assert ends(type("Mine", (Defense,), both)()) == f"Mine.{phase} (client 0, round 1): ValueError: no idea {LINE}"


def test_a_model_that_fails_is_named_itself():
    class Fails(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_module()

        def forward(self, x):
            return fails()

    for phase, place in {"transform": "client 0, round 1", "protect": "round 1"}.items():
        assert ends(defense(phase, ANSWERS[phase]), module=Fails()) == f"the model ({place}): ValueError: no idea {LINE}"


def test_an_error_on_the_way_back_is_the_losss():
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits):
            return logits.mean()

        @staticmethod
        def backward(ctx, grad):
            raise ZeroDivisionError("no way back")

    mine = defense("loss", lambda logits, batch, ctx: Breaks.apply(logits))
    said = "Mine.loss (client 0, round 1): its gradient: ZeroDivisionError: no way back (test_sealed_phases.py:"
    for made in (mine, composed([Defense(), mine])):
        assert ends(made).startswith(said) and ends(made).endswith(" in backward)")


def test_a_wider_answer_is_copied_and_keeps_no_graph():
    def protect(update, ctx):
        return update.double() * next(ctx.model.parameters()).sum() ** 0

    plain, wide = (train_all(tiny_setup(d, rounds=2))[1][-1].models for d in (Defense(), defense("protect", protect)))
    assert torch.equal(plain, wide) and not wide.requires_grad


# --- attacks ----------------------------------------------------------------------------------------------------------

LOOKS = """
    import dataclasses
    import numpy as np
    from fedbench.core import Attack, Component, hookimpl

    def arrays(value):
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (list, tuple)):
            for v in value:
                yield from arrays(v)
        elif hasattr(value, "items"):
            for v in value.values():
                yield from arrays(v)
        elif dataclasses.is_dataclass(value):
            for f in dataclasses.fields(value):
                yield from arrays(getattr(value, f.name))

    class Looks(Attack):
        needs = frozenset({"loss"})
        colluders = 1
        needs_shadow_models = True
        def fit(self, shadows, audit):
            self._seen = [*arrays(shadows), *arrays(audit)]
        def score(self, observations, audit):
            seen = [*self._seen, *arrays(observations), *arrays(audit)]
            if len(seen) < 19 or any(a.flags.writeable for a in seen):
                raise ValueError(f"{[a.flags.writeable for a in seen]}")
            return observations.of_target("loss").mean(0)

    @hookimpl
    def fedbench_attacks():
        yield Component("looks", "looks:Looks", "a toy")
"""


def test_every_array_that_an_attack_is_shown_is_read_only(site, tmp_path):
    install(site, "looks", LOOKS)
    shadow = {"every": 4, "nonmembers": 40, "shadow": {"models": 2, "samples": 40, "epochs": 1}}
    invoke(changed_suite(tmp_path, {"audit": shadow}, attacks=["looks"]), "--results", tmp_path / "r")


@pytest.mark.parametrize("parts", [1, 2])
def test_a_check_refuses_by_raising_and_answers_nothing(parts):
    class Answers(Defense):
        def check(self, federation):
            return federation.clients > 10

    federation = SimpleNamespace(clients=4)
    made = Answers() if parts == 1 else composed([Defense(), Answers()])
    with pytest.raises(UserError, match=r"^Answers.check returned bool; expected None, or UserError raised with the reason$"):
        require_served(made, federation)
    require_served(Defense(), federation)
