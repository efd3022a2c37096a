"""A job's key holds whatever can change its answer, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from running import changed

from fedbench.core.cli.run import build_plan
from fedbench.core.population.audit import client
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run import worker
from fedbench.core.run.job import (
    Cell,
    Job,
    SignalRequest,
    cell_identity,
    identity,
    identity_of_cell,
    job_json,
    job_of,
)
from fedbench.core.run.scene import build, set_scene
from fedbench.core.run.shadow_models import shadow_identity, train_shadow_models
from fedbench.core.run.trained_run import wants_shadow_models
from fedbench.core.spec.base import Use
from fedbench.core.spec.federation import FederationSpec, Optimizer, Schedule
from fedbench.core.spec.setting import (
    Adversary,
    AuditSpec,
    Coalition,
    Group,
    Partition,
    Setting,
    ShadowSpec,
)
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import key_of, keys_of
from fedbench.core.store.record import Provenance


def component(name: str) -> ComponentUse:
    return ComponentUse(
        name=name,
        label=name,
        params={"a": 1},
        target=f"p.{name}:C",
        distribution="p 1.0",
        digest=name * 3,
    )


# Made without validation: no rule allows all of these fields together, and nothing here is trained.
OPTIMIZER = Optimizer.model_construct(
    lr=0.1,
    momentum=0.9,
    weight_decay=0.01,
    betas=[0.8, 0.9],
    schedule=Schedule(name="milestones", factor=0.5, rounds=[2]),
)
FEDERATION = FederationSpec.model_construct(
    clients=6,
    rounds=4,
    local_epochs=3,
    local_batches=3,
    batch_size=5,
    participation=0.5,
    max_delay=1,
    weight_order="shuffled",
    precision="bf16",
    memory_format="channels_last",
    backend="autograd",
    optimizer=OPTIMIZER,
    recipe="fedmia",
)
AUDIT = AuditSpec.model_construct(
    every=2,
    nonmembers=50,
    targets=[0, 1],
    align_nonmembers=False,
    shadow=ShadowSpec(models=3),
    members=9,
    outside=7,
    references=2,
)
GROUPS = [
    Group(name=name, fraction=0.4, rotation=[5.0, 10.0], brightness=[0.6, 1.0]) for name in "ab"
]
SETTING = Setting.model_construct(
    name="one",
    data_seed=3,
    dataset=Use(name="d"),
    model=Use(name="m"),
    federation=FEDERATION,
    audit=AUDIT,
    groups=GROUPS,
    partition=Partition.model_construct(name="dirichlet", beta=0.5, min_samples=2, bias=0.3),
    adversary=Adversary(clients=1, assumed=1),
    thresholds=[0.4, 0.6],
    coalitions=[Coalition(name="pair")],
    defenses=["x"],
    attacks=["y"],
)
PROVENANCE = Provenance(
    fedbench="0.1.0",
    python="3.11",
    torch="2",
    scipy="1",
    scikit_learn="1",
    numpy="2",
    git_commit="c",
    git_dirty=False,
    platform="p",
    cpu="c",
    cpu_capability="v",
    device="cpu",
    dtype="float32",
    threads=1,
    deterministic=True,
)
JOB = Job(
    suite="s",
    setting=SETTING,
    coalition="other",
    members=(0, 2),
    coalitions=((0,), (2,)),
    targets=(client(2), client(1)),
    seed=3,
    dataset=component("d"),
    model=component("m"),
    defense=component("n"),
    attacker=component("f"),
    adversary=Adversary(clients=2, knowledge="own", mask_set=7, start_round=2, assumed=1),
    observed=(1, 3),
    signals={"loss": component("l")},
    analyses=(component("v"),),
    digests={"data": "1", "split": "2", "engine": "3"},
    device="cpu",
    results="r",
    provenance=PROVENANCE,
    limits=Limits(run_seconds=500.0, memory_gb=100.0),  # a fork has the memory of all tests before
    cells=(
        Cell(
            key="1",
            stem="2",
            attack=component("y"),
            request=SignalRequest(needs=frozenset({"loss"}), view="server"),
        ),
    ),
)


# -- every field, changed --------------------------------------------------------------------------


def parts(value: Any) -> dict[str, Any] | None:
    """The fields of a model, a job or a mapping; None of a single value. Uses, targets and cells
    count as single values.
    """
    if isinstance(value, BaseModel) and not isinstance(value, ComponentUse):
        return dict(value)
    if isinstance(value, Job):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return value if isinstance(value, dict) else None


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every single value in a job."""
    for name, inner in (parts(value) or {}).items():
        yield from (
            [(f"{at}{name}", inner)] if parts(inner) is None else leaves(inner, f"{at}{name}.")
        )


def another(value: Any) -> Any:
    """A value of the same kind that is not ``value``."""
    if isinstance(value, ComponentUse):
        return value.model_copy(update={"digest": "another"})
    if isinstance(value, list | tuple):
        return value[:-1]
    if isinstance(value, bool):
        return not value
    return value + (
        1 if isinstance(value, int) else 0.25 if isinstance(value, float) else "another"
    )


def at(value: Any, path: str) -> Any:
    """What stands at the path."""
    for name in path.split("."):
        value = parts(value)[name]
    return value


def put(value: Any, path: str, new: Callable[[Any], Any]) -> Any:
    """``value`` with the value at the path replaced by ``new`` of it."""
    name, _, rest = path.partition(".")
    changed = {name: put(at(value, name), rest, new) if rest else new(at(value, name))}
    if isinstance(value, dict):
        return {**value, **changed}
    return replace(value, **changed) if isinstance(value, Job) else value.model_copy(update=changed)


def within(path: str, named: frozenset[str]) -> bool:
    """Whether the path or something around it is named."""
    words = path.split(".")
    return any(".".join(words[:n]) in named for n in range(1, len(words) + 1))


LEAVES = dict(leaves(JOB))
# paths that no training depends on: names, what follows from the data or is measured beside it, and
# where and how it is computed
NAMED_ONLY = (
    "cells suite coalition signals analyses requests results limits debug repeated_holdout "
    "nonmembers setting.name setting.dataset setting.model setting.adversary setting.coalitions "
    "setting.defenses setting.attacks setting.federation.recipe provenance.fedbench "
    "provenance.python provenance.git_commit provenance.git_dirty provenance.platform "
    "provenance.cpu provenance.device provenance.threads provenance.deterministic"
)
NO_INFLUENCE = frozenset(NAMED_ONLY.split())
WHOLE = "members coalitions observed targets tuning defense attacker adversary"
FEDERATION_ONLY = (
    "clients rounds local_epochs local_batches weight_order participation max_delay weights "
    "validation test test_by validation_on"
)
# paths that shadow models do not depend on either: they are trained alone
NOT_OF_SHADOW_MODELS = frozenset(
    [
        *WHOLE.split(),
        "setting.data_seed",
        "setting.partition",
        "setting.thresholds",
        *(f"setting.federation.{name}" for name in FEDERATION_ONLY.split()),
        *(f"setting.audit.{name}" for name in AuditSpec.model_fields if name != "shadow"),
    ]
)


def test_the_job_has_a_value_in_every_field_of_every_model():
    wanted = (
        Setting,
        Partition,
        FederationSpec,
        Optimizer,
        Schedule,
        AuditSpec,
        ShadowSpec,
        Adversary,
        Provenance,
        Limits,
    )
    met = {name for path in LEAVES for name in path.split(".")}
    assert {name for model in wanted for name in model.model_fields} | {
        f.name for f in fields(Job)
    } <= met | {"requests"}
    assert [path for path, value in LEAVES.items() if value is None] == []


def without_influence(key: Callable[[Job], Any]) -> set[str]:
    """The paths that change no key."""
    return {path for path in LEAVES if key(put(JOB, path, another)) == key(JOB)}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_field_is_part_of_the_key_unless_it_is_named():
    same = without_influence(lambda job: job.run_key)
    assert same == {path for path in LEAVES if within(path, NO_INFLUENCE)}
    same = without_influence(shadow_identity)
    wanted = (NO_INFLUENCE - {"provenance.cpu"}) | NOT_OF_SHADOW_MODELS  # the same machine's alone
    assert same == {path for path in LEAVES if within(path, wanted)}
    groups = [
        [SETTING.groups[0].model_copy(update={f: another(v)}), SETTING.groups[1]]
        for f, v in SETTING.groups[0]
    ]
    keys = {put(JOB, "setting.groups", lambda _, g=g: g).run_key for g in groups}
    assert len(keys - {JOB.run_key}) == len(groups)


def test_shadow_models_are_trained_where_attacks_may_use_them():
    """Where candidates are drawn again in every round, their attacks are skipped: shadow models of
    another pool must not be cached under the setting's name.
    """
    asking = replace(JOB.cells[0], request=replace(JOB.cells[0].request, needs_shadow_models=True))
    job = replace(JOB, cells=(asking,))
    assert wants_shadow_models(put(job, "setting.audit.align_nonmembers", lambda _: True))
    assert not wants_shadow_models(put(job, "setting.audit.align_nonmembers", lambda _: False))


def test_only_the_assumed_number_of_an_idle_adversary_counts():
    passive = replace(JOB, attacker=None)
    changes = {"knowledge": "rule", "mask_set": 8, "start_round": 3, "clients": 3, "assumed": 2}
    keys = {
        name: put(passive, f"adversary.{name}", lambda _, v=v: v).run_key
        for name, v in changes.items()
    }
    assert {name for name, key in keys.items() if key != passive.run_key} == {"assumed"}


def test_everything_about_a_component_counts_but_its_label():
    use = component("n")
    changes = {name: another(value) for name, value in use if isinstance(value, str)}
    changes |= {"params": {"a": 2}, "requires": {"helper": "2"}, "then": (component("o"),)}
    assert changes.keys() == set(ComponentUse.model_fields)
    others = {name: use.model_copy(update={name: value}) for name, value in changes.items()}
    after = component("first").model_copy(update={"then": (use,)})
    chained = {name: after.model_copy(update={"then": (other,)}) for name, other in others.items()}
    for whole, variants in ((use, others), (after, chained)):
        assert {
            name for name, other in variants.items() if other.identity() == whole.identity()
        } == {"label"}


def test_the_key_depends_on_the_kind_of_device_alone():
    assert (
        replace(JOB, device="cuda:1").run_key
        == replace(JOB, device="cuda:0").run_key
        != JOB.run_key
    )


def test_a_cells_key_is_the_hash_of_its_runs_key_and_what_it_adds():
    request = SignalRequest(needs=frozenset({"loss@pre-defense", "grad-dot"}), view="server")
    job = replace(JOB, requests={"v": replace(request, needs=frozenset({"loss"}))})
    cell = replace(job.cells[0], request=request)
    alone = {
        "run": job.run_key,
        "attack": component("y").identity(),
        "analyses": {"v": component("v").identity()},
        "signals": dict.fromkeys(("loss", "loss@pre-defense"), component("l").identity()),
    }
    assert {"run": identity(job), **cell_identity(job, cell)} == identity_of_cell(job, cell)
    made_of = json.loads(json.dumps(identity_of_cell(job, cell)))
    assert keys_of(made_of) == (job.run_key, key_of(alone))


def test_a_field_that_earlier_records_lack_enters_the_key_only_where_it_is_set():
    setting = identity(JOB)["setting"]
    assert "compile" not in setting["federation"] and "precision" not in setting["audit"]
    compiled = put(JOB, "setting.federation.compile", lambda _: True)
    assert identity(compiled)["setting"]["federation"]["compile"] is True


def test_a_job_is_the_same_in_another_process(tmp_path):
    job = planned(tmp_path, targets=[0, 3])
    there = job_of(job_json(job))
    assert there == job and there.run_key == job.run_key


# -- fields without influence ----------------------------------------------------------------------


def planned(folder: Path, defense: str = "none", **audit: Any) -> Job:
    """The job of a suite with this defense and audit, planned as on the command line."""
    path = changed(folder, {"audit": {"nonmembers": 80, **audit}}, defenses=[defense])
    (job,) = build_plan(str(path), (), folder / "results", "cpu").jobs
    return job


def trained(job: Job) -> Any:
    """The run, as the engine has it."""
    assert not Path(job.results).exists()  # nothing to take from a cache
    return worker.trained(job, lambda kind, what: None)[0]


def with_those_of_another(job: Job, named: frozenset[str]) -> Job:
    """The job with the values of ``JOB`` in all the fields that are named."""
    for path in sorted(named):
        job = put(job, path, lambda _, path=path: at(JOB, path))
    return job


def test_fields_without_influence_change_no_bit_of_the_training(tmp_path, monkeypatch):
    # the results folder of ``JOB`` is here, so that the second run finds no cache
    monkeypatch.chdir(tmp_path)
    job = planned(tmp_path, "grad-noise")
    other = with_those_of_another(job, NO_INFLUENCE - {"cells", "signals", "analyses", "requests"})
    one, two = trained(job), trained(other)
    assert job.members == (0, 1) and other.title != job.title and other.run_key == job.run_key
    assert {n: a.tobytes() for n, a in one.trained.signals.items()} == {
        n: a.tobytes() for n, a in two.trained.signals.items()
    }
    assert (
        np.array_equal(one.scene.pool, two.scene.pool)
        and one.trained.history == two.trained.history
    )


def test_fields_without_influence_on_shadow_models_change_no_bit_of_them(tmp_path):
    job = replace(
        planned(tmp_path, shadow={"samples": 40, "models": 2, "epochs": 2}), results=str(tmp_path)
    )
    made = build(job)
    scene = set_scene(job, made)
    other = with_those_of_another(job, (NO_INFLUENCE | NOT_OF_SHADOW_MODELS) - {"results"})
    faster = put(other, "setting.federation.optimizer.lr", lambda _: 0.3)
    first, second, third = (
        train_shadow_models(j, made, scene).logits.tobytes() for j in (job, other, faster)
    )
    assert other.setting.federation.clients == 6 and first == second != third
