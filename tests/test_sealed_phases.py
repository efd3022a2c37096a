"""The seal around a defense's phases: what they may write to, return, raise and leave behind;
errors name phase and place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_insider, tiny_module, tiny_setup, train_all

from fedbench.core import ActiveAttack, Defense, MemberData, Selection, UserError
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.compose import composed
from fedbench.core.federation.guard import PhaseError, remarks_of, require_served
from fedbench.core.process.library_state import kept
from fedbench.core.words import DEBUG

ANSWERS: dict[str, Callable[..., Any]] = {
    "begin": lambda ctx: None,
    "prepare": lambda data, ctx: data,
    "assign": lambda models, ctx: 0,
    "select": lambda ctx: None,
    "local_train": lambda ctx: ctx.train(),
    "transform": lambda batch, ctx: batch,
    "local_step": lambda batch, ctx: None,
    "loss": lambda logits, batch, ctx: torch.nn.functional.cross_entropy(logits, batch.y),
    "protect": lambda update, ctx: update,
    "coordinate": lambda updates, ctx: updates,
    "aggregate": lambda updates, weights, ctx: weights @ updates,
    "after_round": lambda ctx: None,
    "report": lambda ctx: {},
    "craft": lambda round, knowledge: knowledge.own,
}
PLACES = {
    "begin": "before round 1",
    "prepare": "client 0, before round 1",
    "coordinate": "round 1",
    "aggregate": "server, round 1",
    "report": "after the last round",
    "craft": "round 1",
}
MEMBERS = (
    "prepare",
    "assign",
    "select",
    "local_train",
    "transform",
    "local_step",
    "loss",
    "protect",
    "after_round",
)


def place(phase: str) -> str:
    return PLACES.get(phase, "client 0, round 1")


def acting(phase: str, does: Any) -> Any:
    """A defense, or an adversary, that acts in one phase: ``does`` is shown its arguments and gives
    its answer.
    """
    base = ActiveAttack if phase == "craft" else Defense
    own = {
        phase: lambda self, *args: does(*args),
        "n_models": 2 if phase == "assign" else 1,
        "knowledge": "rule",
    }
    return type("Mine", (base,), own)()


def run(made: Any, **changes: Any) -> None:
    """Two rounds of a tiny federation with soft labels and a held-out sample, and the report after
    them.
    """
    if isinstance(made, ActiveAttack):
        made, changes = Defense(), {"insider": tiny_insider(made), "members": (), **changes}
    root = MemberData(torch.ones(5, 4), torch.arange(5) % 3)
    setup = tiny_setup(made, **{"n_models": made.n_models, "rounds": 2, "root": root, **changes})
    held = torch.arange(12) == 11
    setup = replace(
        setup,
        clients=[
            replace(d, soft=torch.full((12, 3), 1 / 3), held_out=held.clone())
            for d in setup.clients
        ],
    )
    train_all(setup)[0].facts()


def ends(made: Any, **changes: Any) -> str:
    """With what message the run fails; empty where it does not."""
    try:
        run(made, **changes)
    except PhaseError as error:
        return str(error)
    return ""


# -- what is handed out ----------------------------------------------------------------------------

HANDED = [
    (phase, name)
    for phase in MEMBERS
    for name in ("start", "data.x", "data.y", "data.soft", "data.held_out")
]
HANDED += [("aggregate", name) for name in ("params", "root.x", "root.y")]
HANDED += [("craft", name) for name in ("x", "y", "mask_x", "mask_y")]
OWN = [(phase, "params") for phase in MEMBERS] + [
    ("craft", name) for name in ("start", "own", "honest")
]
WAYS: dict[str, Callable[..., Any]] = {
    "in place": lambda t, new: t.copy_(new),
    "one element of a view": lambda t, new: t.view(-1)[-1:].copy_(new.view(-1)[-1:]),
    ".data": lambda t, new: t.data.copy_(new),
    "numpy": lambda t, new: np.copyto(t.numpy(), new.numpy()),
}


def tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors in a context by name, whatever fields it has."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if not is_dataclass(value):
        return {}
    parts = [tensors(getattr(value, f.name), f"{name}.{f.name}".lstrip(".")) for f in fields(value)]
    return {n: t for part in parts for n, t in part.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_write_to_any_tensor_that_is_handed_out_is_found_where_it_is_watched(way, monkeypatch):
    monkeypatch.setenv(DEBUG, "1")
    said, wanted = {}, {}
    for phase, name in HANDED:

        def does(*args, phase=phase, name=name):
            answer = ANSWERS[phase](*args)
            t = tensors(args[-1])[name]
            WAYS[way](t, t * 2 if t.is_floating_point() else torch.zeros_like(t))
            return answer

        what = f"{'knowledge' if phase == 'craft' else 'ctx'}.{name}"
        what += ", models" if (phase, name) == ("assign", "start") else ""
        remedy = "it is read-only: work on a copy, e.g. .clone()"
        said[phase, name] = ends(acting(phase, does))
        wanted[phase, name] = f"Mine.{phase} ({place(phase)}) changed {what}; {remedy}"
    assert said == wanted


def test_every_tensor_of_every_context_is_tried_above_or_the_plugins_own():
    seen: set[tuple[str, str]] = set()
    for phase in [*PHASES, "craft"]:

        def does(*args, phase=phase):
            seen.update((phase, name) for name in tensors(args[-1]))
            return ANSWERS[phase](*args)

        if phase in ANSWERS:
            run(acting(phase, does))
    assert seen == {*HANDED, *OWN}


@pytest.mark.parametrize("phase", ["transform", "local_step", "protect", "coordinate", "aggregate"])
def test_what_a_phase_is_asked_about_and_its_weights_are_copies_of_its_own(phase):
    def models(writes: bool) -> torch.Tensor:
        def does(*args):
            answer = ANSWERS[phase](*map(copied, args[:-1]), args[-1])
            for value in args[:-1] if writes else ():
                for t in tensors(value).values():
                    t.mul_(0)
            return torch.ones(51) if phase == "local_step" else answer

        module = torch.nn.Sequential(torch.nn.BatchNorm1d(4, affine=False), tiny_module())
        results = train_all(tiny_setup(acting(phase, does), module=module))[1]
        return torch.cat(
            [
                torch.cat([r.models, r.state.buffers, r.uploads.updates.mean(0)[None]], 1)
                for r in results
            ]
        )

    assert torch.equal(models(writes=True), models(writes=False))


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return (
        replace(value, **{f.name: copied(getattr(value, f.name)) for f in fields(value)})
        if is_dataclass(value)
        else value
    )


@pytest.mark.parametrize("phase", ["assign", "select", "loss", "protect"])
def test_a_write_to_the_model_that_all_clients_receive_is_always_found(phase):
    def does(*args):
        answer = ANSWERS[phase](*args)
        args[-1].start.zero_()
        return answer

    assert ends(acting(phase, does)).startswith(f"Mine.{phase} ({place(phase)}) changed ctx.start")


def swap(model):
    p = next(model.parameters())
    p.data = p.data.clone()


BEHIND: dict[str, Callable[[Any], Any]] = {
    "a forward hook": lambda model: model.register_forward_hook(lambda module, args, out: out * 0),
    "a parameter's hook": lambda model: next(model.parameters()).register_hook(lambda g: 0 * g),
    "a hook behind a gradient": lambda model: next(
        model.parameters()
    ).register_post_accumulate_grad_hook(lambda p: None),
    "a backward hook": lambda model: model.register_full_backward_pre_hook(lambda module, g: None),
    "another forward": lambda model: setattr(model, "forward", lambda x: x[:, :3]),
    "a frozen weight": lambda model: next(model.parameters()).requires_grad_(False),
    "another tensor": swap,
    "a setting of a layer": lambda model: setattr(model[1], "inplace", True),
    "another layer": lambda model: model.__setitem__(1, torch.nn.Tanh()),
}


def test_nothing_stays_behind_in_the_module_where_it_is_watched(monkeypatch):
    monkeypatch.setenv(DEBUG, "1")

    def left(phase: str, what: str) -> str:
        def acts(*args):
            answer = ANSWERS[phase](*args)
            BEHIND[what](args[-1].model)
            return answer

        return ends(acting(phase, acts))

    def words(phase: str) -> str:
        parts = "modules, tensors, hooks, requires_grad or settings"
        return f"({place(phase)}) changed its model: {parts} (load "

    tried = [
        (phase, what)
        for phase in ("select", "local_train", "after_round", "craft")
        for what in BEHIND
    ]
    assert [(phase, what) for phase, what in tried if words(phase) not in left(phase, what)] == []


# -- what is returned ------------------------------------------------------------------------------

VECTOR = "a tensor of shape [51]"
NOTHING = "None: what this phase returns is used nowhere"
Wrong = tuple[Callable[..., Any], str]
WRONG: dict[str, list[Wrong]] = {
    "begin": [(lambda ctx: 3, f"3; expected {NOTHING}")],
    "local_train": [(lambda ctx: ctx.params, f"{VECTOR}; expected {NOTHING}")],
    "after_round": [(lambda ctx: "done", f"str; expected {NOTHING}")],
    "prepare": [
        (lambda data, ctx: None, "NoneType; expected MemberData"),
        (
            lambda data, ctx: replace(data, x=data.x.numpy()),
            "data.x that is ndarray; expected a tensor of shape [n, 4]",
        ),
        (
            lambda data, ctx: replace(data, soft=torch.ones(12, 5)),
            "data.soft that is a tensor of shape [12, 5]; expected a tensor of shape [12, 3]",
        ),
        (
            lambda data, ctx: replace(data, held_out=torch.arange(12)),
            "data.held_out that is a tensor of int64; expected ",
        ),
        (
            lambda data, ctx: replace(data, x=data.x[:5], y=data.y[:5], soft=None, held_out=None),
            "5 samples for 12; ",
        ),
        (
            lambda data, ctx: replace(data, y=data.y + 1),
            "data.y from 1 to 3; expected labels in 0..2",
        ),
        (
            lambda data, ctx: replace(data, x=data.x / 0),
            "data.x with values that are not finite; expected finite ones",
        ),
    ],
    "assign": [
        (lambda models, ctx: torch.tensor(0), "a tensor of shape []; expected 0..1"),
        (lambda models, ctx: 2, "2; expected 0..1"),
    ],
    "select": [
        (
            lambda ctx: Selection(ctx.data.y > 0),
            "an index that is a tensor of bool; expected a tensor of shape [n] of int64",
        ),
        (
            lambda ctx: Selection(torch.tensor([0, 12])),
            "an index from 0 to 12; expected positions in 0..11",
        ),
        (
            lambda ctx: Selection(torch.arange(3), flag=torch.ones(2)),
            "a flag that is a tensor of shape [2]; expected None, or one of each of the 3 samples",
        ),
        (
            lambda ctx: Selection(torch.arange(3), batches=-1),
            "batches that are -1; expected None, or an integer >= 0",
        ),
    ],
    "transform": [
        (lambda batch, ctx: batch.x, "a tensor of shape [5, 4]; expected Batch"),
        (
            lambda batch, ctx: replace(batch, x=batch.x[:, :2]),
            "batch.x that is a tensor of shape [5, 2]; expected ",
        ),
        (
            lambda batch, ctx: replace(batch, x=batch.x.double()),
            "batch.x that is float64; expected samples of float32",
        ),
        (
            lambda batch, ctx: replace(batch, y=batch.y + 1),
            "batch.y from 1 to 3; expected labels in 0..2",
        ),
    ],
    "local_step": [
        (lambda batch, ctx: torch.tensor(0.1), f"a tensor of shape []; expected {VECTOR}"),
        (
            lambda batch, ctx: torch.ones(51, dtype=torch.int64),
            f"a tensor of int64; expected {VECTOR} of floats",
        ),
    ],
    "loss": [
        (
            lambda logits, batch, ctx: logits.sum(1),
            "a tensor of shape [5]; expected a tensor with one element",
        ),
        (
            lambda logits, batch, ctx: logits.detach().mean(),
            "a loss without a gradient; expected one that is computed from the ",
        ),
        (
            lambda logits, batch, ctx: logits.mean().to("meta"),
            "a tensor on meta; expected one on cpu",
        ),
    ],
    "protect": [
        (lambda update, ctx: update[:-1], f"a tensor of shape [50]; expected {VECTOR}"),
        (lambda update, ctx: update.to_sparse(), "a sparse tensor; expected a dense one"),
    ],
    "coordinate": [
        (
            lambda updates, ctx: updates[:1],
            "a tensor of shape [1, 51]; expected a tensor of shape [2, 51]",
        ),
    ],
    "aggregate": [
        (lambda updates, weights, ctx: updates, f"a tensor of shape [4, 51]; expected {VECTOR}"),
    ],
    "report": [
        (lambda ctx: {"a": object()}, "dict; expected a mapping"),
        (lambda ctx: {"remarks": [1]}, "'remarks' that are list; expected a list of sentences"),
    ],
    "craft": [
        (
            lambda round, knowledge: knowledge.own[:, 1:],
            "a tensor of shape [1, 50]; expected a tensor of shape [1, 51]",
        )
    ],
}


@pytest.mark.parametrize("phase", WRONG)
def test_a_wrong_answer_names_its_phase_what_was_found_and_what_was_expected(phase):
    places = {place(phase), "client 0"} if phase == "prepare" else {place(phase)}
    said = [(words, ends(acting(phase, does))) for does, words in WRONG[phase]]
    begun = [
        [text.startswith(f"Mine.{phase} ({where}) returned {words}") for where in places]
        for words, text in said
    ]
    assert all(map(any, begun)), said


def test_every_phase_of_the_table_has_wrong_answers_here():
    assert {*WRONG, "answer"} == {*PHASES, "craft"} == {*ANSWERS, "answer"}


def test_labels_and_positions_at_the_ends_of_their_range_are_taken():
    ends_of = {
        "prepare": lambda data, ctx: replace(data, y=data.y.clamp(0, 2)),
        "report": lambda ctx: {"a": 1, "b": [0.5]},
        "transform": lambda batch, ctx: replace(batch, y=2 - batch.y),
        "assign": lambda models, ctx: ctx.client % 2,
        "select": lambda ctx: Selection(torch.tensor([0, 10]), batches=ctx.client),
    }
    assert {phase: ends(acting(phase, does)) for phase, does in ends_of.items()} == dict.fromkeys(
        ends_of, ""
    )


def test_a_wider_answer_is_copied_and_keeps_no_graph():
    wide = acting(
        "protect", lambda update, ctx: update.double() * next(ctx.model.parameters()).sum() ** 0
    )
    plain, found = (train_all(tiny_setup(d, rounds=2))[1][-1].models for d in (Defense(), wide))
    assert torch.equal(plain, found) and not found.requires_grad


# -- what is raised --------------------------------------------------------------------------------


def fails(*args):
    raise ValueError("no idea")


def refuses(*args):
    raise UserError("lower f: it removes all rows", "or add clients")


LINE = f"({Path(__file__).name}:{fails.__code__.co_firstlineno + 1} in fails)"


@pytest.mark.parametrize("phase", [phase for phase in ANSWERS if phase != "craft"])
def test_an_error_and_a_refusal_name_plugin_phase_client_and_round(phase):
    who = f"Mine.{phase} ({place(phase)}): "
    assert ends(acting(phase, fails)) == f"{who}ValueError: no idea {LINE}"
    for others in ([], [Defense(), type("Other", (Defense,), {})()]):
        with pytest.raises(UserError) as refusal:
            run(composed([*others, acting(phase, refuses)]))
        assert refusal.value.messages == (
            f"{who}lower f: it removes all rows",
            f"{who}or add clients",
        )


def test_a_local_train_around_a_phase_that_fails_takes_no_blame():
    both = {"transform": lambda self, *args: fails(), "local_train": lambda self, ctx: ctx.train()}
    assert (
        ends(type("Mine", (Defense,), both)())
        == f"Mine.transform (client 0, round 1): ValueError: no idea {LINE}"
    )


@pytest.mark.parametrize(
    ("phase", "where"), [("transform", "client 0, round 1"), ("protect", "round 1")]
)
def test_a_model_that_fails_is_named_itself(phase, where):
    module = torch.nn.Sequential(tiny_module())
    module.forward = fails
    assert (
        ends(acting(phase, ANSWERS[phase]), module=module)
        == f"the model ({where}): ValueError: no idea {LINE}"
    )


def test_an_error_on_the_way_back_is_the_losss():
    mine = acting(
        "loss", lambda logits, batch, ctx: (logits.register_hook(fails), logits.mean())[1]
    )
    said = f"Mine.loss (client 0, round 1): its gradient: ValueError: no idea {LINE}"
    assert [ends(mine), ends(composed([Defense(), mine]))] == [said, said]


class Leaves(Exception):
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize(
    "error", [Leaves(), UserError(""), SystemExit(0)], ids=["told", "no word", "exit"]
)
def test_an_exception_without_words_is_a_failure_with_a_place(error):
    def raises(update, ctx):
        raise error

    assert ends(acting("protect", raises)).startswith("Mine.protect (client 0, round 1): ")


@pytest.mark.parametrize(
    ("method", "does", "message"),
    [
        (
            "check",
            lambda self, f: iter(()),
            "Mine.check returned tuple_iterator; expected None, or UserError raised with the "
            "reason",
        ),
        ("check", lambda self, f: refuses(), "lower f: it removes all rows\nor add clients"),
        ("remarks", lambda self, f: "text", "Mine.remarks returned str; expected a list of texts"),
    ],
    ids=["an answer", "a refusal", "a text"],
)
def test_what_a_defense_says_before_round_1_is_checked(method, does, message):
    mine = type("Mine", (Defense,), {method: does})()
    with pytest.raises(UserError) as caught:
        (require_served if method == "check" else remarks_of)(
            composed([Defense(), mine]), tiny_setup().facts
        )
    assert str(caught.value) == message


def test_remarks_are_lines_none_twice_and_a_composites_are_led_by_their_parts():
    says = type(
        "Says",
        (Defense,),
        {"remarks": lambda self, f: [f"{f.rounds} rounds", "3 rounds", "a line\nand another"]},
    )()
    facts = tiny_setup().facts
    assert remarks_of(says, facts) == ["3 rounds", "a line and another"]
    assert remarks_of(composed([says, Defense()]), facts) == [
        "Says: 3 rounds",
        "Says: a line and another",
    ]


# -- settings of the process -----------------------------------------------------------------------

LEFT: dict[str, Callable[[], Any]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
}


@pytest.mark.parametrize("phase", ["protect", "craft"])
def test_a_phase_that_leaves_a_setting_of_the_process_is_named(phase):
    def left(name: str) -> str:
        def does(*args):
            LEFT[name]()
            return ANSWERS[phase](*args)

        with kept():  # puts back what was there
            return ends(acting(phase, does))

    remedy = "all clients train in the same process: restore the setting, e.g. by a `with` block"
    wanted = {
        name: f"Mine.{phase} ({place(phase)}) changed torch's {name}; {remedy}" for name in LEFT
    }
    assert {name: left(name) for name in LEFT} == wanted
