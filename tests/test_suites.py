"""The suites that come with fedbench: valid, within every bound, complete, and asking for enough to
be measured.
"""

from __future__ import annotations

from functools import cache

import pytest

from fedbench.core.registry.components import Registry
from fedbench.core.spec import bounds
from fedbench.core.spec.load import find_suite
from fedbench.core.spec.resolve import load_and_check, written_out
from fedbench.core.spec.setting import resolve_coalition
from fedbench.leaderboard.statistics.tf01 import alignable, enough
from fedbench.plugins.papers.published import match, plain, published
from fedbench.suites import shipped_suites

SUITES = sorted(shipped_suites())
USED = ("defenses", "attacks", "analyses", "floors", "signals")


@cache
def checked(name):
    """(the suite, its components), read once."""
    return load_and_check(name, Registry.discover())


@pytest.mark.slow
def test_every_suite_is_valid_and_far_from_every_bound():
    wrong = {}
    for name in SUITES:
        loaded, resolved = checked(name)
        spec = loaded.spec
        holds = (
            find_suite(name) == shipped_suites()[name],
            resolved.defenses and resolved.attacks,
            len(resolved.settings) == len(spec.settings),
            {e.setting for e in spec.published} <= {s.name for s in spec.settings},
            spec.n_cells(2) * 10 <= bounds.CELLS,
            max(s.federation.clients for s in spec.settings) * 10 <= bounds.CLIENTS,
            "/" in name
            or (len(spec.seeds) >= 5 and all(entry.differs for entry in spec.published)),
        )
        if not all(holds):
            wrong[name] = holds
    assert wrong == {} and len(SUITES) > 30


LONG = [pytest.mark.slow, pytest.mark.nightly]
QUICK = ("clustered_digits", "overfitting", "tuned_baselines")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else LONG) for name in SUITES]
)
def test_a_suite_written_out_asks_for_the_very_same(name, registry, tmp_path):
    loaded, resolved = checked(name)
    path = tmp_path / "written.yaml"
    path.write_text(written_out(loaded, resolved))
    again, found = load_and_check(path, registry)
    assert [getattr(found, part) for part in USED] == [getattr(resolved, part) for part in USED]
    for one, other in zip(found.settings, resolved.settings, strict=True):
        for part in ("dataset", "model", "coalitions"):
            assert getattr(one, part) == getattr(other, part)
        named = {"dataset", "model"}
        assert one.spec.model_dump(exclude=named) == other.spec.model_dump(exclude=named)
    left_out = {"settings", "adaptive", *USED}  # attacks are named there
    assert again.spec.model_dump(exclude=left_out) == loaded.spec.model_dump(exclude=left_out)
    assert written_out(again, found) == path.read_text()


# The poisoning papers' attack sets of at most 250 + 250 are the attacker's lever: more outsiders
# would be another attack. Their boards say how many non-members are missing.
WITHOUT_TF01 = {
    name for name in SUITES if name.startswith("papers/fedpoisonmia") or name == "sweeps_poisoning"
}


def outsiders(spec, setting) -> tuple[int, int]:
    """(outside non-members of a target, targets x seeds), the fewest over the setting's
    coalitions.
    """
    audit, clients = setting.audit, setting.federation.clients
    if audit.targets == "honest":
        return audit.nonmembers, len(spec.seeds)
    if audit.targets == "groups":
        return audit.nonmembers, len(spec.seeds) * len(setting.groups)
    members = [len(resolve_coalition(c, clients)) or clients for c in spec.coalitions_of(setting)]
    targets = len(audit.targets) if isinstance(audit.targets, list) else min(members)
    return audit.outside or audit.nonmembers // clients, len(spec.seeds) * targets


@pytest.mark.slow
def test_every_suite_asks_for_enough_outside_nonmembers_for_tf01_or_is_known_not_to():
    specs = {name: checked(name)[0].spec for name in SUITES}
    too_few = set()
    for name, spec in specs.items():
        for setting in spec.settings:
            n, units = outsiders(spec, setting)
            if not (enough([n] * units) or alignable([n] * units, len(spec.seeds))):
                too_few.add(name)
    assert too_few == WITHOUT_TF01


def labels_in(asked, uses):
    """Labels of a setting's components: those that it asks for, or all."""
    return [use.label for use in uses if asked is None or use.label in asked]


@pytest.mark.slow
def test_the_suites_of_cofedmid_have_all_of_its_tables_and_a_row_for_every_number():
    tables = set()
    for name in (n for n in SUITES if n.startswith("papers/cofedmid")):
        loaded, resolved = checked(name)
        settings = {setting.name: setting for setting in loaded.spec.settings}
        for entry in loaded.spec.published:
            setting = settings[entry.setting]
            defenses = labels_in(setting.defenses, resolved.defenses)
            rows = {plain(part) for label in defenses for part in (label, label.partition("[")[0])}
            attacks = set(map(plain, labels_in(setting.attacks, resolved.attacks)))
            coalitions = {c.name for c in loaded.spec.coalitions_of(setting)}
            assert entry.differs, (name, entry)
            for found in match(entry.model_dump(mode="json"), []):
                assert found.coalition in coalitions, (name, entry)
                assert {plain(p.defense) for p in found.pairs} <= rows, (name, entry)
                assert {plain(p.attack) for p in found.pairs if p.attack} <= attacks, (name, entry)
            tables.add(entry.where["table"])
    assert tables == {row["table"] for row in published("cofedmid")}
    assert tables == {"Figure 8", *(f"Table {n}" for n in range(1, 24))}
