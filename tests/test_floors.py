"""Floors: rows that every board has for comparison, and the two defenses that are such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fake_packages import install
from ruamel.yaml import YAML
from running import invoke, records, suite
from tiny import tiny_module, tiny_setup, train_all
from torch import nn

from fedbench.core import Defense, MemberData, UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.federation.compose import Composite
from fedbench.core.registry.components import Registry
from fedbench.plugins.defenses.free_rider import FreeRider
from fedbench.plugins.defenses.placebo import Placebo

MEMBERS = (0, 1)
ROWS = ("none", "free-rider", "placebo")


# -- free-rider -----------------------------------------------------------------------------------------------------


def test_a_free_rider_uploads_exactly_nothing_and_everybody_else_as_ever():
    free, plain = train_all(tiny_setup(FreeRider(), MEMBERS))[1], train_all(tiny_setup(members=MEMBERS))[1]
    for result in free:
        assert result.uploads.participants == (0, 1, 2, 3)
        assert not result.uploads.updates[:2].any() and result.uploads.updates[2:].any(dim=1).all()
    assert torch.equal(free[0].uploads.updates[2:], plain[0].uploads.updates[2:])  # later models differ
    assert plain[0].uploads.updates[:2].any(dim=1).all()


def test_the_server_counts_a_free_riders_weight():
    (first, *_) = train_all(tiny_setup(FreeRider(), MEMBERS))[1]
    torch.testing.assert_close(first.steps[0], first.uploads.updates[2:].sum(dim=0) / 4)


def test_a_free_rider_trains_nothing():
    """What costs time is a pass of the model: its members cause none."""

    def passes(defense: Defense, members: tuple[int, ...]) -> int:
        calls: list[int] = []
        module = tiny_module()
        module.register_forward_hook(lambda *_: calls.append(1))
        train_all(tiny_setup(defense, members, module=module))
        return len(calls)

    everybody = passes(Defense(), ())
    assert everybody == passes(Placebo(), MEMBERS) == 4 * 3 * 2 * 3  # clients, rounds, epochs, batches
    assert passes(FreeRider(), MEMBERS) == everybody / 2
    assert passes(FreeRider(), (0, 1, 2, 3)) == 0


def test_a_free_riders_buffers_stay_as_received():
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    (first, *_) = train_all(tiny_setup(FreeRider(), MEMBERS, module=module))[1]
    start = first.uploads.start_buffers[0]
    assert torch.equal(first.uploads.buffers[:2], start.expand(2, -1))
    assert not torch.equal(first.uploads.buffers[2], start)


# -- placebo --------------------------------------------------------------------------------------------------------


class Seen(Placebo):
    """Notes what it selects, and what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[list[int]] = []
        self.data: dict[int, MemberData] = {}

    def select(self, ctx):
        selection = super().select(ctx)
        assert selection is not None
        self.orders.append(selection.index.tolist())
        self.data[ctx.client] = ctx.data
        return selection


class HoldsOut(Defense):
    def prepare(self, data, ctx):
        return MemberData(data.x, data.y, held_out=torch.arange(len(data.y)) < 3)


def test_a_placebo_trains_on_all_of_its_data_in_an_order_of_its_own():
    seen, setup = Seen(), tiny_setup(members=MEMBERS)
    federation, _ = train_all(tiny_setup(seen, MEMBERS))
    assert len(seen.orders) == 2 * 3  # members, rounds
    assert all(sorted(order) == list(range(12)) for order in seen.orders)
    assert len({tuple(order) for order in [*seen.orders, list(range(12))]}) == 7  # none as it came, no two alike
    for k in MEMBERS:
        assert torch.equal(seen.data[k].x, setup.clients[k].x) and torch.equal(seen.data[k].y, setup.clients[k].y)
        assert federation.clients[k].held_out is None


def test_a_placebo_leaves_out_what_another_defense_holds_out():
    seen = Seen()
    train_all(tiny_setup(Composite([HoldsOut(), seen]), MEMBERS))
    assert {tuple(sorted(order)) for order in seen.orders} == {tuple(range(3, 12))}


def test_a_placebos_updates_are_not_those_of_the_undefended_and_its_strangers_are():
    placebo, plain = train_all(tiny_setup(Placebo(), MEMBERS))[1][0], train_all(tiny_setup(members=MEMBERS))[1][0]
    again = train_all(tiny_setup(Placebo(), MEMBERS))[1][0]
    mine, theirs = placebo.uploads.updates, plain.uploads.updates
    assert torch.equal(mine, again.uploads.updates)  # its order is keyed
    assert torch.equal(mine[2:], theirs[2:])
    for k in MEMBERS:
        apart, size = torch.linalg.vector_norm(mine[k] - theirs[k]), torch.linalg.vector_norm(theirs[k])
        assert 0 < apart < size / 2  # the same training, but for its order


# -- in a suite -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(plan, results folder) of a suite that says nothing of floors, run."""
    folder = tmp_path_factory.mktemp("floors")
    federation = {"clients": 4, "rounds": 8, "local_epochs": 2, "batch_size": 20, "optimizer": {"lr": 0.1}}
    path = without_floors(folder, {"federation": federation, "dataset": {"name": "digits", "params": {"holdout": 200}}})
    plan = build_plan(str(path), (), folder / "r", "cpu")
    invoke(path, "--results", folder / "r", "--workers", 2)
    return plan, folder / "r"


def without_floors(folder: Path, change: dict, **more) -> Path:
    """A suite that does not name them, with a change of its setting."""
    yaml = YAML(typ="safe")
    path = suite(folder, **more)
    spec = yaml.load(path)
    del spec["floors"]
    spec["settings"] = [spec["settings"][0] | change]
    yaml.dump(spec, path)
    return path


def rows(path: Path, folder: Path) -> set[tuple[str, str, str]]:
    """(setting, coalition, defense) of every planned run."""
    plan = build_plan(str(path), (), folder / "results", "cpu")
    return {(j.setting.name, j.coalition, j.defense.label) for j in plan.jobs}


def test_a_suite_that_names_no_floors_has_both(ran):
    plan, folder = ran
    assert [c.name for c in Registry.discover().floors()] == ["free-rider", "placebo"]
    assert {d: r["outcome"] for (d, _, _), r in records(folder).items()} == dict.fromkeys(ROWS, "ok")
    board = (folder / "leaderboard" / "board.md").read_text()
    assert all(f"| {name} " in board for name in ROWS)
    assert {j.defense.label: j.members for j in plan.jobs} == {"none": (), "free-rider": (0, 1), "placebo": (0, 1)}


def test_floors_have_the_data_the_hold_outs_and_the_questions_of_the_undefended(ran):
    plan, folder = ran
    assert len({j.digests["data"] for j in plan.jobs}) == 1
    cells = {j.defense.label: j.cells[0].stem for j in plan.jobs}
    asked = {}
    for name, stem in cells.items():
        with np.load(folder / "records" / f"{stem}.npz") as arrays:
            asked[name] = [arrays[f"t{t}_{what}"].tolist() for t in (0, 1) for what in ("ids", "kind", "owner")]
            assert all((arrays[f"t{t}_kind"] >= 0).all() for t in (0, 1))  # nobody holds anything out
    assert asked["none"] == asked["placebo"] == asked["free-rider"]


def test_a_placebo_is_as_accurate_as_the_undefended_and_not_the_same(ran):
    found = {d: r for (d, _, _), r in records(ran[1]).items()}
    none, placebo, free = (found[d]["utility"]["accuracy"] for d in ("none", "placebo", "free-rider"))
    assert none > 0.85 and abs(placebo - none) < 0.03  # of 397 test samples: twelve of them
    assert free < none - 0.03
    histories = [[row["train_loss"] for row in found[d]["history"]] for d in ("none", "placebo")]
    assert not np.isclose(*histories, rtol=1e-6).any()


def test_no_floor_where_nobody_defends(tmp_path):
    path = without_floors(tmp_path, {"coalitions": ["none", "pair"]})
    assert rows(path, tmp_path) == {
        ("digits", "none", "none"), ("digits", "pair", "free-rider"), ("digits", "pair", "placebo"),
    }  # fmt: skip
    assert rows(without_floors(tmp_path, {"coalitions": ["none"]}), tmp_path) == {("digits", "none", "none")}


def test_a_setting_that_names_its_defenses_has_those_alone(tmp_path):
    more = {"defenses": ["none", "mixup"]}
    named = rows(without_floors(tmp_path, {"defenses": ["none", "mixup"]}, **more), tmp_path)
    assert {d for _, _, d in named} == {"none", "mixup"}
    with_one = rows(without_floors(tmp_path, {"defenses": ["none", "placebo"]}, **more), tmp_path)
    assert {d for _, _, d in with_one} == {"none", "placebo"}
    with pytest.raises(UserError, match=r"unknown label 'placbo' - did you mean 'placebo'\?"):
        rows(without_floors(tmp_path, {"defenses": ["none", "placbo"]}, **more), tmp_path)


@pytest.mark.parametrize(("floors", "found"), [
    ([], {"none"}), (["free-rider"], {"none", "free-rider"}), (["placebo", "free-rider"], {"none", "placebo", "free-rider"}),
])  # fmt: skip
def test_a_suite_may_name_its_floors_or_none(tmp_path, floors, found):
    assert {d for _, _, d in rows(suite(tmp_path, floors=floors), tmp_path)} == found


def test_a_floor_that_is_a_defense_of_the_suite_is_one_row(tmp_path):
    path = without_floors(tmp_path, {}, defenses=["none", "placebo"], seeds=[0])
    plan = build_plan(str(path), (), tmp_path / "results", "cpu")
    assert sorted(j.defense.label for j in plan.jobs) == ["free-rider", "none", "placebo"]
    # a defense that the suite itself names is one where nobody defends, too, and is trained as the undefended is
    path = without_floors(tmp_path, {"coalitions": ["none"]}, defenses=["none", "placebo"], seeds=[0])
    assert {d for _, _, d in rows(path, tmp_path)} == {"none", "placebo"}


def test_a_mistake_in_a_floor_has_its_place(tmp_path):
    path = suite(tmp_path, floors=["free-rider", "placbo"])
    place = next(i for i, line in enumerate(path.read_text().splitlines(), 1) if "placbo" in line)
    with pytest.raises(UserError, match=rf"tiny.yaml:{place}:\d+: floors\[1\].*did you mean 'placebo'\?"):
        build_plan(str(path), (), tmp_path / "results", "cpu")
    with pytest.raises(UserError, match=r"floors\[0\]: 'mixup' is no floor; they are free-rider, placebo"):
        build_plan(str(suite(tmp_path, floors=["mixup"])), (), tmp_path / "results", "cpu")


def test_a_third_partys_floor_is_no_row_unless_a_suite_names_it(site, tmp_path):
    install(site, "mine", """
        from fedbench.core import Component, Defense, hookimpl

        class Mine(Defense):
            def protect(self, update, ctx):
                return update * 0.5

        @hookimpl
        def fedbench_defenses():
            yield Component("mine", "mine:Mine", "wants to be on every board", floor=True)
    """)
    assert Registry.discover().get("defense", "mine").component.floor
    assert {d for _, _, d in rows(without_floors(tmp_path, {}), tmp_path)} == {"none", "free-rider", "placebo"}
    assert {d for _, _, d in rows(without_floors(tmp_path, {}, defenses=["none", "mine"]), tmp_path)} == {
        "none", "mine", "free-rider", "placebo",
    }  # fmt: skip
