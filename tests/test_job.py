"""A job's key holds whatever can change its answer, and its training is what the suite says, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from fake_packages import install
from pydantic import BaseModel
from ruamel.yaml import YAML
from torch.nn.functional import cross_entropy

from fedbench.core.execution import forked
from fedbench.core.execution.plan import make_plan
from fedbench.core.experiment.job import (
    NO_INFLUENCE,
    NOT_OF_SHADOW_MODELS,
    Cell,
    Job,
    Look,
    cell_identity,
    identity,
    key_of_run,
)  # fmt: skip
from fedbench.core.experiment.parts import build
from fedbench.core.experiment.scene import set_scene
from fedbench.core.experiment.shadow_models import load_shadow_models, save_shadow_models, train_shadow_models
from fedbench.core.federation import optimizer as engine
from fedbench.core.numerics.rng import key_for, numpy_rng
from fedbench.core.population.target import EVERYBODY, client, group
from fedbench.core.registry.components import Registry
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.coalition import Coalition
from fedbench.core.spec.component import Use
from fedbench.core.spec.federation import FederationSpec, Optimizer, Schedule
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.suite import Adversary, AuditSpec, Group, Limits, Partition, Setting, ShadowSpec
from fedbench.core.store.canonical import key_of
from fedbench.core.store.integrity import keys_of
from fedbench.core.store.record import Provenance

# What the identity holds beside the job's own fields.
DERIVED = {"contract", "expected_malicious"}


def component(name: str) -> ComponentUse:
    return ComponentUse(name=name, label=name, params={"a": 1}, target=f"p.{name}:C", distribution="p 1.0", digest=name * 3)


def with_all(model: BaseModel, **more: Any) -> Any:
    """The model with these fields too, though its rules would not have them together: nothing here is trained."""
    return model.model_copy(update=more)


OPTIMIZER = Optimizer(lr=0.1, momentum=0.9, weight_decay=0.01, schedule=Schedule(name="milestones", factor=0.5, rounds=[2]))
FEDERATION = FederationSpec(
    clients=6, rounds=4, local_epochs=3, local_batches=3, batch_size=5, participation=0.5, max_delay=1, weight_order="shuffled",
    precision="bf16", memory_format="channels_last", optimizer=OPTIMIZER,
)  # fmt: skip
AUDIT = AuditSpec(every=2, nonmembers=50, targets=[0, 1], align_nonmembers=False, shadow=ShadowSpec(models=3))
SETTING = Setting(
    name="one", dataset=Use(name="d"), model=Use(name="m"), federation=FEDERATION, audit=AUDIT,
    adversary=Adversary(clients=1, assumed=1), thresholds=[0.4, 0.6], coalitions=[Coalition(name="pair")], defenses=["x"],
    attacks=["y"],
    groups=[
        Group(name="a", fraction=0.5, rotation=[0.0, 10.0], brightness=[0.5, 1.0]),
        Group(name="b", fraction=0.4, rotation=[5.0, 10.0], brightness=[0.6, 1.0]),
    ],
)  # fmt: skip
SETTING = with_all(
    SETTING, partition=with_all(Partition(name="dirichlet", beta=0.5, min_samples=2), bias=0.3),
    audit=with_all(AUDIT, members=9, outside=7),
    federation=with_all(FEDERATION, recipe="fedmia", optimizer=with_all(OPTIMIZER, betas=[0.8, 0.9])),
)
PROVENANCE = Provenance(
    fedbench="0.1.0", python="3.11", torch="2", numpy="2", git_commit="c", git_dirty=False, platform="p", cpu="c",
    cpu_capability="v", device="cpu", dtype="float32", threads=1, deterministic=True,
)  # fmt: skip
JOB = Job(
    run_key="k", suite="s", setting=SETTING, coalition="other", members=(0, 2), coalitions=((0,), (2,)),
    targets=(client(2), client(1)), seed=3,
    dataset=component("d"), model=component("m"), defense=component("n"), attacker=component("f"),
    adversary=Adversary(clients=2, knowledge="own", mask_set=7, start_round=2, assumed=1), observed=(1, 3),
    signals={"loss": component("l")},
    analyses=(component("v"),), digests={"data": "1", "split": "2", "engine": "3"}, device="cpu", results="r",
    provenance=PROVENANCE, limits=Limits(run_seconds=5.0, memory_gb=1.0),
    cells=(Cell(key="1", stem="2", attack=component("y"), look=Look(needs=frozenset({"loss"}), view="server"), identity={}),),
)  # fmt: skip


# -- every field, changed ----------------------------------------------------------------------------------------------


def parts(value: Any) -> dict[str, Any] | None:
    """The fields of what has fields of its own; None of a single value. Uses, targets and cells count as single ones."""
    if isinstance(value, BaseModel) and not isinstance(value, ComponentUse):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value) and isinstance(value, Job):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return dict(value) if isinstance(value, dict) else None


def paths(value: Any, at: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted path, whether it is a single value) of everything in a job."""
    for name, inner in (parts(value) or {}).items():
        single = parts(inner) is None
        yield f"{at}{name}", single
        if not single:
            yield from paths(inner, f"{at}{name}.")


def literals(annotation: Any) -> list[Any]:
    """The values that a field's type names."""
    own = list(get_args(annotation)) if get_origin(annotation) is Literal else []
    return own + [v for a in get_args(annotation) if get_origin(annotation) is not Literal for v in literals(a)]


def another(value: Any, annotation: Any) -> Any:
    """A value of the same kind that is not ``value``."""
    if others := [v for v in literals(annotation) if isinstance(value, str) and v != value]:
        return others[0]
    if isinstance(value, ComponentUse):
        return value.model_copy(update={"digest": "another"})
    if isinstance(value, list | tuple):
        return value[:-1]
    if isinstance(value, bool):
        return not value
    return value + (1 if isinstance(value, int) else 0.25 if isinstance(value, float) else "another")


def at(value: Any, path: str) -> Any:
    """What stands at the path."""
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def declared(value: Any, path: str) -> Any:
    """The type of a field of a model; None of a field of something else."""
    around, _, name = path.rpartition(".")
    owner = at(value, around) if around else value
    return type(owner).model_fields[name].annotation if isinstance(owner, BaseModel) else None


def put(value: Any, path: str, new: Any) -> Any:
    """``value`` with ``new`` at the path."""
    name, _, rest = path.partition(".")
    new = {name: put(at(value, name), rest, new) if rest else new}
    if isinstance(value, dict):
        return {**value, **new}
    return replace(value, **new) if isinstance(value, Job) else value.model_copy(update=new)


def changed(value: Any, path: str) -> Any:
    """``value`` with another value at the path."""
    return put(value, path, another(at(value, path), declared(value, path)))


def within(path: str, named: frozenset[str]) -> bool:
    """Whether the path or something around it is named."""
    words = path.split(".")
    return any(".".join(words[:n]) in named for n in range(1, len(words) + 1))


def unknown(named: frozenset[str]) -> set[str]:
    """Names of fields that a job does not have."""
    return set(named) - {path for path, _ in paths(JOB)} - DERIVED


SINGLE = [path for path, single in paths(JOB) if single]


def test_the_walk_meets_every_type_whose_fields_it_should_change():
    wanted = (Setting, Partition, FederationSpec, Optimizer, Schedule, AuditSpec, ShadowSpec, Adversary, Provenance, Limits)
    last = {path.rpartition(".")[2] for path, _ in paths(JOB)}
    assert all(set(model.model_fields) <= last for model in wanted)
    assert {f.name for f in fields(Job)} <= last and len(SINGLE) > 70
    assert all(at(JOB, path) is not None for path in SINGLE), "a field that is not set cannot be changed alike"


@pytest.mark.parametrize("path", SINGLE)
def test_every_field_counts_unless_it_is_named(path):
    other = changed(JOB, path)
    assert at(other, path) != at(JOB, path)
    assert (key_of_run(other) == key_of_run(JOB)) == within(path, NO_INFLUENCE)
    alike = identity(other, NOT_OF_SHADOW_MODELS) == identity(JOB, NOT_OF_SHADOW_MODELS)
    assert alike == within(path, NO_INFLUENCE | NOT_OF_SHADOW_MODELS)


@pytest.mark.parametrize("name", Group.model_fields)
def test_every_field_of_a_group_counts(name):
    first, *rest = SETTING.groups
    groups = [changed(first, name), *rest]
    assert key_of_run(replace(JOB, setting=SETTING.model_copy(update={"groups": groups}))) != key_of_run(JOB)


def test_the_keys_of_members_who_all_defend_together_say_nothing_of_several_coalitions():
    together = replace(JOB, coalitions=())
    assert "coalitions" in identity(JOB) and "coalitions" not in identity(together)
    assert key_of_run(replace(JOB, coalitions=((0, 2),))) != key_of_run(JOB) != key_of_run(together)


def test_a_setting_that_came_later_is_in_no_key_and_no_description_while_it_is_as_ever():
    usual = put(JOB, "setting.federation.memory_format", "contiguous")
    assert "memory_format" not in identity(usual)["setting"]["federation"]
    assert "memory_format" not in usual.described()["federation"]
    assert identity(JOB)["setting"]["federation"]["memory_format"] == "channels_last"
    assert JOB.described()["federation"]["memory_format"] == "channels_last"
    assert key_of_run(usual) != key_of_run(JOB)


@pytest.mark.parametrize("targets", [(EVERYBODY,), (group(0),), (client(0),)])
def test_whom_the_attacks_are_asked_about_counts(targets):
    assert key_of_run(replace(JOB, targets=targets)) != key_of_run(JOB)


@pytest.mark.parametrize("named", [NO_INFLUENCE, NOT_OF_SHADOW_MODELS])
def test_every_name_of_what_does_not_count_is_a_field(named):
    assert unknown(named) == set()


def test_a_name_that_is_no_field_any_more_is_seen():
    assert unknown(NO_INFLUENCE | {"setting.audit.evry", "limit"}) == {"setting.audit.evry", "limit"}


def test_a_new_field_counts_at_once():
    @dataclass(frozen=True, kw_only=True)
    class Wider(Job):
        temperature: float = 1.0

    wider = Wider(**{f.name: getattr(JOB, f.name) for f in fields(Job)})
    assert key_of_run(wider) != key_of_run(replace(wider, temperature=2.0))


@pytest.mark.parametrize(
    ("change", "counts"),
    [({"knowledge": "rule"}, False), ({"mask_set": 8}, False), ({"start_round": 3}, False), ({"clients": 3}, False),
     ({"assumed": 2}, True), ({"assumed": None}, True)],
)  # fmt: skip
def test_of_an_adversary_that_does_not_act_only_what_the_server_assumes_counts(change, counts):
    passive = replace(JOB, attacker=None)
    other = replace(passive, adversary=passive.adversary.model_copy(update=change))
    assert (key_of_run(other) != key_of_run(passive)) == counts


@pytest.mark.parametrize("name", ComponentUse.model_fields)
def test_everything_about_a_component_counts_but_its_label(name):
    use = component("n")
    value = (component("o"),) if name == "then" else {"a": 2} if name == "params" else "another"
    other = use.model_copy(update={name: value})
    assert (other.identity() == use.identity()) == (name == "label")
    after = component("first").model_copy(update={"then": (use,)})
    assert (after.model_copy(update={"then": (other,)}).identity() == after.identity()) == (name == "label")


def test_two_devices_of_one_kind_give_one_key():
    assert key_of_run(replace(JOB, device="cuda:1")) == key_of_run(replace(JOB, device="cuda:0")) != key_of_run(JOB)


def test_a_cells_key_is_the_hash_of_its_runs_key_and_what_it_adds():
    signals = {"loss": component("l"), "loss:pre-defense": component("l")}
    made_of = cell_identity(JOB, component("y"), signals)
    alone = {
        "run": key_of_run(JOB), "attack": component("y").identity(), "analyses": {"v": component("v").identity()},
        "signals": {name: use.identity() for name, use in signals.items()},
    }  # fmt: skip
    assert keys_of(made_of) == (key_of_run(JOB), key_of(alone)) and made_of["run"] == identity(JOB)
    assert keys_of(json.loads(json.dumps(made_of))) == keys_of(made_of)  # as a record gives it back
    for part in ("attack", "signals", "analyses"):
        assert keys_of({**made_of, part: {}})[1] != keys_of(made_of)[1]


# -- what is trained is what the suite says ----------------------------------------------------------------------------

BLOBS = '''
    import numpy as np
    import torch
    from fedbench.core import Attack, Component, Data, Dataset, Signal, hookimpl

    class Blobs(Dataset):
        """Three overlapping classes in four dimensions."""
        default_model = "mlp"

        def load(self, seed):
            rng = np.random.default_rng(seed)
            y = rng.integers(0, 3, 240)
            x = (rng.normal(size=(3, 4))[y] + rng.normal(size=(240, 4))).astype(np.float32)
            return Data(train_x=x[:71], train_y=y[:71], test_x=x[71:100], test_y=y[71:100], holdout_x=x[100:], holdout_y=y[100:],
                        n_classes=3)

    class Weights(Signal):
        """Not of the samples: the parameters of the measured model, one in the place of each sample, then zeros."""
        def measure(self, probe):
            flat = torch.cat([p.reshape(-1) for p in probe.model.parameters()])
            assert len(flat) <= len(probe.y)
            return torch.cat([flat, torch.zeros(len(probe.y) - len(flat))])

    class Reads(Attack):
        view = "client"
        needs = frozenset({"weights"})
        def score(self, observations, audit):
            return np.zeros(len(audit.ids))

    @hookimpl
    def fedbench_datasets():
        yield Component("blobs", "blobs:Blobs", "a toy")

    @hookimpl
    def fedbench_signals():
        yield Component("weights", "blobs:Weights", "a toy")

    @hookimpl
    def fedbench_attacks():
        yield Component("reads-weights", "blobs:Reads", "a toy")
'''
SGD = {
    "name": "sgd", "lr": 0.11, "momentum": 0.7, "weight_decay": 0.03, "schedule": {"name": "exponential", "factor": 0.85},
}  # fmt: skip
ADAM = {"name": "adam", "lr": 0.013, "betas": [0.6, 0.9], "weight_decay": 0.02}
SIZES = {"clients": 4, "rounds": 5, "local_epochs": 2, "batch_size": 6, "local_batches": 2, "participation": 0.75}
HIDDEN, SEED = 7, 5


@pytest.fixture
def planned(site, tmp_path) -> Callable[..., Job]:
    """The job of a suite with this optimiser: read, checked and planned as on the command line."""
    install(site, "blobs", BLOBS)

    def plan(optimizer: dict, defense: str = "none", **audit: Any) -> Job:
        spec = {
            "schema": 1, "name": "swapped", "seeds": [SEED],
            "settings": [{
                "name": "blobs", "dataset": "blobs", "model": {"name": "mlp", "params": {"hidden": [HIDDEN]}},
                "federation": {**SIZES, "optimizer": optimizer}, "audit": {"nonmembers": 70, **audit},
            }],
            "coalitions": ["pair"], "defenses": [defense], "floors": [], "attacks": ["reads-weights"],
            "analyses": [],
        }  # fmt: skip
        YAML().dump(spec, tmp_path / "swapped.yaml")
        registry = Registry.discover()
        (job,) = make_plan(*load_and_check(tmp_path / "swapped.yaml", registry), registry, tmp_path / "results", "cpu").jobs
        return job

    return plan


def trained(job: Job) -> tuple[np.ndarray, list[np.ndarray]]:
    """(the global model's parameters after every round [T, P], the clients' shards), as the engine has them."""
    assert not Path(job.results).exists()  # nothing to take from a cache
    done, _ = forked.trained(job, lambda kind, what: None)
    width = 4 * HIDDEN + HIDDEN + HIDDEN * 3 + 3
    return done.trained.signals["weights"][:, 0, :width], done.scene.shards


def by_hand(job: Job, shards: list[np.ndarray], optimizer: dict) -> np.ndarray:
    """The same with torch.optim, from the numbers of the suite and none of the engine's own code but its keys."""
    (dataset,), (builder,) = job.dataset.make(), job.model.make()
    data = dataset.load(SEED)
    torch.random.default_generator.manual_seed(key_for(SEED, "init") >> 1)
    model = builder.build((4,), 3)
    start, history = torch.nn.utils.parameters_to_vector(model.parameters()).detach(), []
    for t in range(1, SIZES["rounds"] + 1):
        cohort = sorted(numpy_rng(SEED, "cohort", t).choice(4, 3, replace=False))
        ends = []
        for k in cohort:
            torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
            if optimizer["name"] == "sgd":
                lr = optimizer["lr"] * optimizer["schedule"]["factor"] ** (t - 1)
                rule = torch.optim.SGD(
                    model.parameters(), lr, momentum=optimizer["momentum"], weight_decay=optimizer["weight_decay"]
                )
            else:
                rule = torch.optim.Adam(
                    model.parameters(), optimizer["lr"], tuple(optimizer["betas"]), weight_decay=optimizer["weight_decay"]
                )
            x, y = torch.from_numpy(data.train_x[shards[k]]), torch.from_numpy(data.train_y[shards[k]])
            shuffle = torch.Generator().manual_seed(key_for(SEED, "shuffle", t, int(k)) >> 1)
            for _ in range(SIZES["local_epochs"]):
                order = torch.randperm(len(y), generator=shuffle)
                for pick in order.split(SIZES["batch_size"])[: SIZES["local_batches"]]:
                    rule.zero_grad()
                    cross_entropy(model(x[pick]), y[pick]).backward()
                    rule.step()
            ends.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
        share = torch.tensor([float(len(shards[k])) for k in cohort])
        start = share / share.sum() @ torch.stack(ends)
        history.append(start.numpy())
    return np.stack(history)


def assert_same(job: Job, optimizer: dict) -> None:
    found, shards = trained(job)
    np.testing.assert_allclose(found, by_hand(job, shards, optimizer), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_training_is_torch_optims_with_the_suites_own_numbers(planned, optimizer):
    assert_same(planned(optimizer), optimizer)


def with_those_of_another(job: Job, named: frozenset[str]) -> Job:
    """The job with the values of ``JOB`` in all the fields that are named."""
    for path in sorted(named - DERIVED):
        job = put(job, path, at(JOB, path))
    return job


def test_what_does_not_count_changes_no_bit_of_the_training(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the results folder of ``JOB`` is here, so that the second run finds no cache
    job = planned(SGD, "grad-noise")
    other = with_those_of_another(job, NO_INFLUENCE - {"cells", "signals", "analyses", "looks"})
    one, two = (forked.trained(j, lambda kind, what: None)[0] for j in (job, other))
    assert job.members == (0, 1) and other.title != job.title and key_of_run(other) == job.run_key
    assert one.trained.signals.keys() == two.trained.signals.keys()
    assert all(one.trained.signals[n].tobytes() == two.trained.signals[n].tobytes() for n in one.trained.signals)
    assert np.array_equal(one.scene.pool, two.scene.pool) and one.trained.history == two.trained.history
    assert one.scene.thresholds is None and two.scene.thresholds is None and one.scene.aligned == two.scene.aligned


def test_what_does_not_count_for_shadow_models_changes_no_bit_of_them(planned, tmp_path):
    job = replace(planned(SGD, shadow={"samples": 40, "models": 2, "epochs": 2}), results=str(tmp_path / "one"))
    made = build(job)
    scene = set_scene(job, made)
    other = replace(with_those_of_another(job, NO_INFLUENCE | NOT_OF_SHADOW_MODELS), results=str(tmp_path / "two"))
    assert other.setting.federation.clients == 6 and other.members == JOB.members
    for folder in ("one", "two"):
        (tmp_path / folder / "cache").mkdir(parents=True)
    first, second = (train_shadow_models(j, made, scene) for j in (job, other))
    assert first.logits.tobytes() == second.logits.tobytes() and np.array_equal(first.member, second.member)
    faster = put(other, "setting.federation.optimizer.lr", 0.2)
    assert train_shadow_models(faster, made, scene).logits.tobytes() != first.logits.tobytes()
    save_shadow_models(job, first)
    assert load_shadow_models(job).logits.tobytes() == first.logits.tobytes()
    assert load_shadow_models(replace(faster, results=job.results)) is None  # not the other's


def swapped_sgd(flat, *, momentum, weight_decay):
    return Sgd(flat, momentum=weight_decay, weight_decay=momentum)


def swapped_adam(flat, *, betas, weight_decay, keep):
    return Adam(flat, betas=betas[::-1], weight_decay=weight_decay, keep=keep)


def decaying_adam(flat, *, betas, weight_decay, keep):
    return Adam(flat, betas=betas, keep=keep)


Sgd, Adam = engine.FlatSGD, engine.FlatAdam


@pytest.mark.parametrize(
    ("name", "mutant", "optimizer"),
    [("FlatSGD", swapped_sgd, SGD), ("FlatAdam", swapped_adam, ADAM), ("FlatAdam", decaying_adam, ADAM)],
    ids=["momentum and weight decay swapped", "betas swapped", "no weight decay"],
)
def test_an_engine_that_mixes_up_two_numbers_does_not_pass(planned, monkeypatch, name, mutant, optimizer):
    monkeypatch.setattr(engine, name, mutant)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same(planned(optimizer), optimizer)


@pytest.mark.parametrize(
    "change",
    [{"rounds": 4}, {"local_epochs": 3}, {"batch_size": 7}, {"local_batches": 3}, {"participation": 1.0},
     {"optimizer": {**SGD, "lr": 0.12}}, {"optimizer": {**SGD, "schedule": "constant"}}],
    ids=str,
)  # fmt: skip
def test_a_number_that_got_lost_on_the_way_does_not_pass(planned, change):
    job = planned(SGD)
    federation = FederationSpec.model_validate(
        {**job.setting.federation.model_dump(), **{k: v for k, v in change.items() if k != "optimizer"},
         "optimizer": change.get("optimizer", SGD)}
    )  # fmt: skip
    other = replace(job, setting=job.setting.model_copy(update={"federation": federation}))
    with pytest.raises(AssertionError):
        assert_same(other, SGD)
