"""The built-in components of every kind keep the contract that others' are checked for.

Data sets that would have to be downloaded are skipped, with the reason; what takes seconds is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS
from fedbench.testing.one import run_check
from fedbench.testing.subject import Subject, subject_of
from fedbench.testing.table import checks_of

# what learns need not learn for long, nor be large, to be deterministic
PARAMS: dict[str, dict[str, Any]] = {
    "seqmia": {"epochs": 2}, "adv-reg": {"of_prediction": [16], "of_label": [8], "shared": [8]},
    "random-forest": {"trees": 20}, "memguard": {"epochs": 20, "steps": 20, "hidden": [8]},
}  # fmt: skip
HEAVY = {
    "adv-reg", "random-forest", "resnet18", "wrn-16-4", "leaf-cnn", "alexnet", "resnet20", "vgg16", "vgg19", "seqmia", "board",
}  # fmt: skip
LIGHT_DATA = {"digits", "image-folder"}


def own(registry: Registry) -> list[Any]:
    """A case a component."""
    cases = []
    for kind in KINDS:
        for found in registry.own(kind):
            slow = found.name in HEAVY or (kind == "dataset" and found.name not in LIGHT_DATA)
            cases.append(pytest.param(kind, found.name, id=f"{kind}-{found.name}", marks=[pytest.mark.slow] if slow else []))
    return cases


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of two classes of pictures."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
        for i in range(30):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize(("kind", "name"), own(Registry.discover()))
def test_a_built_in_component_keeps_the_contract(kind, name, registry, pictures):
    params = {"path": str(pictures), "size": 8} if name == "image-folder" else PARAMS.get(name, {})
    subject = subject_of(name, kind, params, registry)
    results = [run_check(subject, check) for check in checks_of(subject)]
    assert {r.name: r.message for r in results if r.outcome in ("failed", "warned")} == {}
    if not excused(subject):
        skipped = {r.name: r.message for r in results if r.outcome == "skipped"}
        assert skipped.keys() <= {"runs_on_cuda", "replays_the_same", *NOT_ASKED.get(name, ())}, skipped


# checks that do not apply to a component, each for a reason of its own
NOT_ASKED = {"cofedmid": ("order_of_clients",)}  # its members' updates are changed together


def excused(subject: Subject) -> bool:
    """Whether the component itself cannot be asked: a data set that is not here, a signal that the engine measures, an analysis
    that only draws."""
    result = next(run_check(subject, check) for check in checks_of(subject) if check.name == "runs")
    said = ("its data are not on this machine", "the engine measures this signal", "it computes nothing of a run")
    return result.outcome == "skipped" and result.message.startswith(said)
