"""Floors, the rows that every board has for comparison, and remarks of defenses that every command
prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from defense_cases import made
from fake_packages import install
from running import records, settings_of, suite
from tiny import normed, tiny_setup, train_all

from fedbench.core import Defense, MemberData
from fedbench.core.cli.run import build_plan

MEMBERS = (0, 1)


# -- free-rider ------------------------------------------------------------------------------------


def test_a_free_rider_uploads_nothing_with_its_weight_and_the_others_as_ever():
    free, plain = (
        train_all(tiny_setup(made(n), MEMBERS, module=normed()))[1][0]
        for n in ("free-rider", "none")
    )
    assert not free.uploads.updates[:2].any() and plain.uploads.updates[:2].any(dim=1).all()
    assert torch.equal(free.uploads.buffers[:2], free.uploads.starts.buffers[0].expand(2, -1))
    assert torch.equal(free.uploads.updates[2:], plain.uploads.updates[2:])
    torch.testing.assert_close(free.steps[0], free.uploads.updates[2:].sum(dim=0) / 4)


# -- placebo ---------------------------------------------------------------------------------------


class Orders(Defense):
    """Notes what a member selects; holds three samples out."""

    def __init__(self, defense: Defense) -> None:
        super().__init__()
        self.defense, self.seen = defense, []

    def prepare(self, data, ctx):
        return MemberData(data.x, data.y, held_out=torch.arange(len(data.y)) < 3)

    def select(self, ctx):
        selection = self.defense.select(ctx)
        self.seen.append(selection.index.tolist())
        return selection


def test_a_placebo_trains_on_all_of_its_data_in_an_order_of_its_own():
    noted = Orders(made("placebo"))
    train_all(tiny_setup(noted, MEMBERS))
    assert len(noted.seen) == 2 * 3 and all(
        sorted(order) == list(range(3, 12)) for order in noted.seen
    )
    # none as it came, no two alike
    assert len({tuple(order) for order in [*noted.seen, range(3, 12)]}) == 7


# -- in a suite ------------------------------------------------------------------------------------


def edited(folder: Path, *changes: dict, **more) -> Path:
    """A suite with a setting for each of the changes; it names its floors only where ``more``
    does.
    """
    named = [{"name": f"s{i}", **change} for i, change in enumerate(changes)]
    path = suite(folder, settings=settings_of(folder, *named), **more)
    if "floors" not in more:
        path.write_text(path.read_text().replace("floors: []\n", ""))
    return path


def rows(path: Path) -> dict[str, str]:
    """The defense and the coalition of every planned run, by setting; all runs of a setting see the
    same data.
    """
    found: dict[str, dict[str, str]] = {}
    jobs = build_plan(str(path), (), path.parent / "results", "cpu").jobs
    for job in jobs:
        found.setdefault(job.setting.name, {})[job.defense.label] = job.coalition
    assert len({(job.setting.name, job.digests["data"]) for job in jobs}) == len(found)
    return {
        name: " ".join(sorted(f"{label}:{c}" for label, c in of_setting.items()))
        for name, of_setting in found.items()
    }


def test_every_setting_has_both_floors_where_members_defend_unless_it_names_its_defenses(tmp_path):
    parts = (
        {},
        {"coalitions": ["none"]},
        {"defenses": ["none", "mixup"]},
        {"defenses": ["none", "placebo"]},
    )
    changes = [
        {**part, "audit": {"every": 2, "nonmembers": 80 - i}} for i, part in enumerate(parts)
    ]
    assert rows(edited(tmp_path, *changes, defenses=["none", "mixup"])) == {
        "s0": "free-rider:pair mixup:pair none:none placebo:pair",
        "s1": "mixup:none none:none",
        "s2": "mixup:pair none:none",
        "s3": "none:none placebo:pair",
    }


PACKAGE = """
    from fedbench.core import Component, Defense, hookimpl

    class Talks(Defense):
        def protect(self, update, ctx):
            return update / 2
        def remarks(self, federation):
            known = "known" if federation.n_params > 10 else "not known"
            return [f"{federation.rounds} rounds\\nare few", f"P is {known}"]

    class Mumbles(Talks):
        def remarks(self, federation):
            return "few"

    class Breaks(Talks):
        def remarks(self, federation):
            raise ValueError("speechless")

    @hookimpl
    def fedbench_defenses():
        yield Component("talks", "talking:Talks", "wants to be on every board", floor=True)
        yield Component("mumbles", "talking:Mumbles", "says nothing of use")
        yield Component("breaks", "talking:Breaks", "fails at saying anything")
"""


def test_another_packages_floor_is_no_row_where_a_suite_does_not_name_it(site, tmp_path):
    install(site, "talking", PACKAGE)
    assert rows(edited(tmp_path, {})) == {"s0": "free-rider:pair none:none placebo:pair"}


# -- remarks ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly
def test_remarks_are_printed_by_every_command_with_the_defense_and_kept_by_its_records(
    site, tmp_path, words_of
):
    install(site, "talking", PACKAGE)
    both = {"name": "grad-noise", "label": "both", "then": ["talks"]}
    path = edited(tmp_path, {}, defenses=["none", "talks", both], floors=[])
    for command in (("validate", path), ("run", path, "--results", tmp_path / "r", "--no-plots")):
        said = words_of(*command)
        assert said.count("4 rounds are few") == said.count("P is known") == 2
    found = {who[0]: r["notes"] for who, r in records(tmp_path / "r").items()}
    assert found["none"] == []
    assert [note.partition("': ")[2] for note in found["both"]] == [
        "Talks: 4 rounds are few",
        "Talks: P is known",
    ]
    assert found["talks"][0].startswith("defense 'talks' in setting '")


def test_remarks_that_fail_are_refused_with_the_defense(site, tmp_path, words_of):
    install(site, "talking", PACKAGE)
    path = edited(tmp_path, {}, defenses=["none", "mumbles", "breaks"])
    said = words_of("validate", path, status=2)
    refusals = [
        "Mumbles.remarks returned str; expected a list of texts",
        "defense 'breaks' (talking 1.0): ValueError: speechless",
    ]
    assert [r for r in refusals if r not in said] == []
