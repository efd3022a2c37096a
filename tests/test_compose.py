"""A list of defenses applies in order, through the real loop; a list of one is that defense, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from every_phase import EveryPhase
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_clients, tiny_module, tiny_setup, train_all

from fedbench.core import Defense, MemberData, Selection, UserError
from fedbench.core.contract.defense import overrides
from fedbench.core.contract.phases import PHASES, phases
from fedbench.core.federation.answering import answered
from fedbench.core.federation.compose import Composite, composed
from fedbench.core.federation.guard import PhaseError
from fedbench.plugins.defenses.cofedmid import CoFedMID
from fedbench.plugins.defenses.data_sampling import DataSampling
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.grad_noise import GradNoise
from fedbench.plugins.defenses.hamp import HAMP
from fedbench.plugins.defenses.instahide import InstaHide
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.none import NoDefense
from fedbench.plugins.defenses.perturb import Perturb
from fedbench.plugins.defenses.quantize import Quantize
from fedbench.plugins.defenses.relaxloss import RelaxLoss

ALONE = {
    "none": NoDefense, "every-phase": EveryPhase, "grad-noise": GradNoise, "perturb": Perturb, "dp-sgd": DPSGD,
    "mixup": lambda: Mixup(alpha=1.0), "relaxloss": RelaxLoss, "hamp": HAMP, "instahide": InstaHide,
    "quantize": lambda: Quantize(rounding="stochastic"), "data-sampling": DataSampling,
    "cofedmid": lambda: CoFedMID(m_min=2, recycle_from=2, val_min=1),
}  # fmt: skip


def bits(defense: Defense, **changes) -> list[torch.Tensor]:
    """Everything the loop shows of a training: uploads and global models of every round, and what the last ones answer."""
    federation, results = train_all(tiny_setup(defense, n_models=defense.n_models, **changes))
    said = [answered(federation, j, torch.eye(3)) for j in range(len(federation.models))]
    return [t for r in results for t in (r.uploads.updates, r.models)] + said


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def facts(defense: Defense) -> dict:
    """What the defense says of a training."""
    federation, _ = train_all(tiny_setup(defense, n_models=defense.n_models))
    return federation.facts()


# -- one ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALONE)
def test_a_composite_of_one_is_that_defense_bit_for_bit(name):
    alone = bits(ALONE[name]())
    assert same(bits(Composite([ALONE[name]()])), alone)
    assert same(bits(Composite([Composite([ALONE[name]()])])), alone)
    assert same(bits(Composite([ALONE[name](), NoDefense()])), alone)
    assert same(alone, bits(Defense())) == (name == "none")  # the defense did something


@pytest.mark.parametrize("name", ALONE)
def test_a_composite_acts_where_its_parts_act(name):
    part = ALONE[name]()
    for phase in PHASES:
        assert overrides(Composite([NoDefense(), part]), phase) == overrides(part, phase)
    assert not any(overrides(Composite([NoDefense()]), phase) for phase in PHASES)
    assert Composite([NoDefense(), part]).n_models == part.n_models


def test_the_defense_of_every_phase_has_every_phase_of_the_table():
    assert all(overrides(EveryPhase(), phase) for phase in PHASES)


def test_an_empty_list_is_refused():
    with pytest.raises(UserError, match="at least one"):
        Composite([])


def test_one_defense_is_itself_and_several_are_a_composite():
    one, other = NoDefense(), Mixup()
    assert composed([one]) is one
    assert composed([one, other]).parts == (one, other)


# -- order, keys, memory -------------------------------------------------------------------------------------------------


class Scale(Defense):
    def protect(self, update, ctx):
        return 2 * update

    def coordinate(self, updates, ctx):
        return 3 * updates

    def transform(self, batch, ctx):
        return replace(batch, x=2 * batch.x)

    def prepare(self, data, ctx):
        assert data is ctx.data
        return replace(data, x=data.x * 2)


class Shift(Defense):
    def protect(self, update, ctx):
        return update + 1

    def coordinate(self, updates, ctx):
        return updates + 1

    def transform(self, batch, ctx):
        return replace(batch, x=batch.x + 1)

    def prepare(self, data, ctx):
        assert data is ctx.data
        return replace(data, x=data.x + 1)


class ScaleThenShift(Defense):
    """What the list [Scale, Shift] must be, written by hand."""

    def protect(self, update, ctx):
        return 2 * update + 1

    def coordinate(self, updates, ctx):
        return 3 * updates + 1

    def transform(self, batch, ctx):
        return replace(batch, x=2 * batch.x + 1)

    def prepare(self, data, ctx):
        return replace(data, x=data.x * 2 + 1)


def test_phases_are_chained_in_the_order_of_the_list():
    assert same(bits(Composite([Scale(), Shift()])), bits(ScaleThenShift()))
    assert not same(bits(Composite([Shift(), Scale()])), bits(ScaleThenShift()))


def test_parts_draw_independently_of_each_other():
    def noise(*parts: Defense) -> torch.Tensor:
        plain, noisy = (bits(d, rounds=1, module=tiny_module(width=200))[0] for d in (Defense(), Composite(parts)))
        return (noisy - plain)[:2]

    one, two = noise(GradNoise(sigma=1.0)), noise(GradNoise(sigma=1.0), GradNoise(sigma=1.0))
    second = two - one  # the first part's noise is what it is alone
    assert abs(torch.corrcoef(torch.stack([one.flatten(), second.flatten()]))[0, 1]) < 0.1
    assert second.std().item() == pytest.approx(1.0, rel=0.1)
    assert not torch.allclose(second[0], second[1])  # nor do clients share it


class Counter(Defense):
    """Counts in a memory; ``seen`` keeps what it found there."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.seen, self.begun, self.after = step, [], 0, []

    def begin(self, ctx):
        self.begun += 1
        assert ctx.memory == {}
        ctx.memory["count"] = self.step

    def protect(self, update, ctx):
        ctx.memory["count"] = ctx.memory.get("count", 0) + self.step
        self.seen.append((ctx.client, ctx.memory["count"]))
        return update

    def coordinate(self, updates, ctx):
        assert ctx.memory["count"] == ctx.round * self.step
        ctx.memory["count"] += self.step
        return updates

    def after_round(self, ctx):
        self.after.append((ctx.round, ctx.client))


def test_every_part_has_its_own_memory_and_is_begun_and_told_of_every_round():
    parts = [Counter(1), Counter(10)]
    train_all(tiny_setup(Composite(parts)))
    for part in parts:
        assert part.begun == 1
        assert part.seen == [(k, t * part.step) for t in (1, 2, 3) for k in (0, 1)]
        assert part.after == [(t, k) for t in (1, 2, 3) for k in (0, 1)]


def test_facts_of_the_parts_stand_together_and_say_whose_they_are_where_names_meet():
    alone = facts(EveryPhase())
    assert alone["rounds"] == 3 and len(alone["calls"]) == 2
    assert facts(Composite([NoDefense(), EveryPhase()])).keys() == alone.keys()
    assert facts(Composite([EveryPhase(), NoDefense()])) == facts(Composite([EveryPhase()])) == alone

    class Counts(Counter):
        def report(self, ctx):
            return {"count": ctx.coalition["count"], f"step {self.step}": ctx.of_member[0]["count"]}

    class Tallies(Counts):
        pass

    assert facts(Composite([Counts(1), Tallies(10)])) == {
        "Counts 1: count": 4, "step 1": 3, "Tallies 2: count": 40, "step 10": 30,
    }  # fmt: skip


def test_a_generator_goes_on_from_batch_to_batch():
    class Draws(Defense):
        def __init__(self):
            super().__init__()
            self.drawn = []

        def transform(self, batch, ctx):
            self.drawn.append(float(ctx.rng.uniform()))
            return batch

    parts = [Draws(), Draws()]
    train_all(tiny_setup(Composite(parts)))
    drawn = parts[0].drawn + parts[1].drawn
    assert len(set(drawn)) == len(drawn) == 2 * 3 * 2 * 2 * 3  # parts, rounds, members, epochs, batches of 5 from 12


# -- what to train on ----------------------------------------------------------------------------------------------------


class Chooses(Defense):
    def __init__(self, index, flag=None) -> None:
        super().__init__()
        self.answer = None if index is None else Selection(torch.tensor(index, dtype=torch.int64), flag)

    def select(self, ctx):
        return self.answer


class HoldsOut(Defense):
    def __init__(self, *positions: int) -> None:
        super().__init__()
        self.positions = list(positions)

    def prepare(self, data, ctx):
        held = torch.zeros(len(data.y), dtype=torch.bool)
        held[self.positions] = True
        return replace(data, held_out=held)


class Sees(Defense):
    """Notes which samples, with which flags, reached the training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int | None]] = []

    def transform(self, batch, ctx):
        flags = [None] * len(batch.index) if batch.flag is None else batch.flag.tolist()
        self.seen += list(zip(batch.index.tolist(), flags, strict=True))
        return batch


def trained_on(*parts: Defense) -> list[tuple[int, int | None]]:
    sees = Sees()
    train_all(tiny_setup(Composite([*parts, sees]), members=(0,), rounds=1, local_epochs=1))
    return sorted(sees.seen)


indices = st.lists(st.integers(0, 11), min_size=1, max_size=12)


@given(st.lists(st.one_of(st.none(), indices), min_size=1, max_size=3), st.sets(st.integers(0, 11), max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_selections_intersect_and_flags_follow_their_samples(answers, held, data):
    chosen = [a for a in answers if a is not None]
    flagger = data.draw(st.sampled_from([None, *range(len(answers))]))
    flag_of = {i: 100 + i for i in range(12)}
    parts = [HoldsOut(*held)]
    for i, answer in enumerate(answers):
        flags = torch.tensor([flag_of[j] for j in answer]) if i == flagger and answer is not None else None
        parts.append(Chooses(answer, flags))
    flagged = flagger is not None and answers[flagger] is not None
    last = chosen[-1] if chosen else range(12)
    expected = [(j, flag_of[j] if flagged else None) for j in last if j not in held and all(j in c for c in chosen)]
    assert trained_on(*parts) == sorted(expected)


def test_two_parts_that_flag_are_refused():
    flag = torch.tensor([1, 2])
    with pytest.raises(UserError, match=r"'Chooses' \(number 1\) and 'Chooses' \(number 2\).*flags"):
        trained_on(Chooses([0, 1], flag), Chooses([1, 2], flag))


def test_what_any_part_holds_out_stays_out():
    federation, _ = train_all(tiny_setup(Composite([HoldsOut(1, 2), HoldsOut(2, 5)]), members=(0,)))
    assert federation.clients[0].held_out.nonzero().flatten().tolist() == [1, 2, 5]
    assert {i for i, _ in trained_on(HoldsOut(1, 2), HoldsOut(2, 5))} == set(range(12)) - {1, 2, 5}


# -- who decides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", phases(combines=("exclusive",)))
def test_a_phase_with_one_answer_takes_one_part(phase):
    one, other = (type(name, (Defense,), {phase: getattr(EveryPhase, phase)})() for name in ("One", "Other"))
    Composite([one, NoDefense(), GradNoise()])
    with pytest.raises(UserError, match=rf"'One' \(number 1\) and 'Other' \(number 3\).*{phase}"):
        Composite([one, NoDefense(), other])


def test_a_loss_that_per_sample_gradients_would_ignore_is_refused():
    with pytest.raises(UserError, match=r"'DPSGD' \(number 2\) and 'RelaxLoss' \(number 1\).*never be used"):
        train_all(tiny_setup(Composite([RelaxLoss(), DPSGD()])))
    both = bits(Composite([RelaxLoss(), DPSGD(mode="client", sigma=0, clip_update=1e9)]))  # no gradients of its own
    assert same(both, bits(RelaxLoss()))


def test_the_part_that_decides_may_stand_anywhere():
    class Median(Defense):
        def aggregate(self, updates, weights, ctx):
            return updates.median(0).values

    class Both(Mixup, Median):
        pass

    assert same(bits(Composite([Mixup(alpha=1.0), Median()])), bits(Both(alpha=1.0)))


# -- failures ------------------------------------------------------------------------------------------------------------


class Fails(Defense):
    def protect(self, update, ctx):
        raise ValueError("no")


class Drops(Defense):
    def coordinate(self, updates, ctx):
        return updates[:1]


class SelectsNothingKnown(Defense):
    def select(self, ctx):
        return [1, 2]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Fails(), r"^Fails.protect \(client 0, round 1\): ValueError: no"),
        (Drops(), r"^Drops.coordinate \(round 1\) returned a tensor of shape \[1, 51\]; expected .* \[2, 51\]"),
        (SelectsNothingKnown(), r"^SelectsNothingKnown.select \(client 0, round 1\) returned list; expected Selection or None$"),
    ],
)
def test_a_failure_names_the_part(part, message):
    with pytest.raises(PhaseError, match=message):
        train_all(tiny_setup(Composite([GradNoise(), part])))


def test_the_members_data_is_what_the_parts_made_of_it_and_the_others_is_not():
    clients = tiny_clients()
    federation, _ = train_all(tiny_setup(Composite([HAMP(), Scale()]), clients=clients))
    for k, data in enumerate(federation.clients):
        defended = k in (0, 1)
        assert (data.soft is not None) == defended
        assert torch.equal(data.x, clients[k].x * 2 if defended else clients[k].x)
        assert isinstance(data, MemberData)


@pytest.mark.parametrize(
    ("name", "make"), [("relaxloss", RelaxLoss), ("cofedmid", lambda: CoFedMID(val_min=1)), ("dp-sgd", DPSGD)]
)
def test_a_defense_of_hard_labels_refuses_soft_targets(name, make):
    with pytest.raises(UserError, match=f"{name} works on hard labels"):
        train_all(tiny_setup(Composite([Mixup(alpha=1.0), make()])))
