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
        assert (one.dataset, one.model, one.coalitions) == (
            other.dataset,
            other.model,
            other.coalitions,
        )
        assert one.spec.model_dump(exclude={"dataset", "model"}) == other.spec.model_dump(
            exclude={"dataset", "model"}
        )
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
    if audit.targets in ("honest", "groups"):
        return audit.nonmembers, len(spec.seeds) * (
            len(setting.groups or ()) if audit.targets == "groups" else 1
        )
    members = [len(resolve_coalition(c, clients)) or clients for c in spec.coalitions_of(setting)]
    targets = len(audit.targets) if isinstance(audit.targets, list) else min(members)
    return audit.outside or audit.nonmembers // clients, len(spec.seeds) * targets


@pytest.mark.slow
def test_every_suite_asks_for_enough_outside_nonmembers_for_tf01_or_is_known_not_to():
    specs = {name: checked(name)[0].spec for name in SUITES}
    sizes = {name: [outsiders(spec, s) for s in spec.settings] for name, spec in specs.items()}
    assert {
        name
        for name, found in sizes.items()
        if not all(
            enough([n] * units) or alignable([n] * units, len(specs[name].seeds))
            for n, units in found
        )
    } == WITHOUT_TF01


@pytest.mark.slow
def test_the_suites_of_cofedmid_have_all_of_its_tables_and_a_row_for_every_number():
    tables, missing = set(), []
    for name in (n for n in SUITES if n.startswith("papers/cofedmid")):
        loaded, resolved = checked(name)
        for entry in loaded.spec.published:
            setting = next(s for s in loaded.spec.settings if s.name == entry.setting)
            kept = [
                use.label
                for use in resolved.defenses
                if setting.defenses is None or use.label in setting.defenses
            ]
            rows = {plain(part) for label in kept for part in (label, label.partition("[")[0])}
            attacks = {
                plain(use.label)
                for use in resolved.attacks
                if setting.attacks is None or use.label in setting.attacks
            }
            found = match(entry.model_dump(mode="json"), [])
            pairs = [pair for m in found for pair in m.pairs]
            tables.add(entry.where["table"])
            if not (
                entry.differs
                and {m.coalition for m in found}
                <= {c.name for c in loaded.spec.coalitions_of(setting)}
                and {plain(p.defense) for p in pairs} <= rows
                and {plain(p.attack) for p in pairs if p.attack} <= attacks
            ):
                missing.append((name, entry))
    assert missing == []
    assert (
        tables
        == {row["table"] for row in published("cofedmid")}
        == {"Figure 8", *(f"Table {n}" for n in range(1, 24))}
    )
