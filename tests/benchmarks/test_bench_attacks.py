"""What every attack costs beside the training that it judges, by the records of a run. Reported, not asserted.

    pytest -m benchmark tests/benchmarks/test_bench_attacks.py -s

CPU time, one thread. ``judging`` is the attack's own process (`attack_cpu_s`), for all targets together; an active one adds
what its training costs beyond one with a client that does not poison. Shadow models are training of their own, made once
for all attacks that read them, and stand apart. The undefended main setting is the hard case: nothing trains faster.
With ten targets a second colluder must teach about the first one's samples; with five of them one teaches about all.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import pytest
from ruamel.yaml import YAML
from running import invoke

from fedbench.core.cli.run import build_plan
from fedbench.core.experiment.parts import build
from fedbench.core.experiment.scene import set_scene
from fedbench.core.experiment.shadow_models import train_shadow_models
from fedbench.core.experiment.train import train
from fedbench.core.store.reading import load_records
from fedbench.plugins.attacks.poisoning.fedpoisonmia import FedPoisonMIA

pytestmark = pytest.mark.benchmark

SEEDS = [0, 1, 2, 3, 4]
PASSIVE = [
    "loss-series", "avg-cosine", "fedmia-i", "fedmia-ii", "fta-c", "fta-l", "fta", "cs-mia", "blackbox-loss", "grad-cosine",
    "grad-diff", "grad-norm", "threshold-loss", "threshold-entropy", "threshold-confidence", "threshold-modified-entropy",
    "label-only", "adaptive-membershield", "knn", "logistic-regression", "mlp", "random-forest", "stacked",
    {"name": "seqmia", "params": {"epochs": 20}},
    {"name": "fedmia", "label": "fedmia-margin", "params": {"measure": "margin"}},
    {"name": "adaptive-membershield", "label": "adaptive-trained", "params": {"form": "trained", "teacher": "colluder"}},
    *({"name": n, "label": f"{n}-half", "params": {"teacher": "half"}}
      for n in ("knn", "logistic-regression", "mlp", "random-forest", "stacked")),
]  # fmt: skip
SHADOW = ["lira-offline", "rmia", "shadow"]
HONEST = "passive"
ACTIVE = [HONEST, "passive-trained", "gradient-ascent", "agrevader", "adaptive-atm", "fedpoisonmia"]
DIGITS = {"dataset": {"name": "digits", "params": {"test": 397, "holdout": 500, "label_noise": 0.3}}}


def label_of(attack) -> str:
    return attack if isinstance(attack, str) else attack.get("label", attack["name"])


def settings() -> list[dict]:
    """The main suite's federation, with shadow models besides, and the insider's."""
    sgd = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005}
    main = {
        "model": {"name": "mlp", "params": {"hidden": [256, 128]}},
        "federation": {"clients": 10, "rounds": 60, "local_epochs": 3, "batch_size": 20, "optimizer": sgd},
    }
    return [
        DIGITS | main | {
            "name": "passive", "audit": {"every": 10, "nonmembers": 900, "outside": 500},
            "attacks": [label_of(a) for a in PASSIVE],
        },
        DIGITS | main | {
            "name": "five", "audit": {"every": 10, "nonmembers": 900, "outside": 500, "targets": [0, 1, 2, 3, 4]},
            "attacks": ["seqmia"],
        },
        main | {
            "name": "shadow", "dataset": {"name": "digits", "params": {"test": 297, "holdout": 700, "label_noise": 0.3}},
            "audit": {"every": 10, "nonmembers": 100, "shadow": {"samples": 200, "models": 8, "epochs": 60}}, "attacks": SHADOW,
        },
        DIGITS | {
            "name": "active", "model": {"name": "mlp", "params": {"hidden": [128]}},
            "federation": {"recipe": "fedpoisonmia", "rounds": 200, "participation": 1.0},
            "audit": {"targets": "honest", "every": 20, "members": 100, "nonmembers": 400},
            "adversary": {"clients": 1, "knowledge": "honest", "mask_set": 80}, "attacks": ACTIVE,
        },
    ]  # fmt: skip


def suite_of(settings: list[dict]) -> dict:
    asked = {name for setting in settings for name in setting["attacks"]}
    attacks = [a for a in [*PASSIVE, *SHADOW, *ACTIVE] if label_of(a) in asked]
    return {
        "schema": 1, "name": "attack_costs", "seeds": SEEDS, "settings": settings, "coalitions": ["none"], "defenses": ["none"],
        "floors": [], "attacks": attacks, "limits": {"run_seconds": 600},
    }  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Setting -> attack -> what was measured, seed by seed."""
    folder = tmp_path_factory.mktemp("attacks")
    YAML().dump(suite_of(settings()), folder / "attack_costs.yaml")
    invoke(folder / "attack_costs.yaml", "--results", folder / "r", "--workers", 1)
    found: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for loaded in load_records(folder / "r"):
        r = loaded.record
        assert r.outcome == "ok", f"{r.attack.label}: {r.reason}"
        found[r.setting][r.attack.label].append(r.measured)
    return found


def shares(values: list[float]) -> dict[str, float]:
    low, high = round(min(values), 3), round(max(values), 3)
    return {"median": round(statistics.median(values), 3), "min": low, "max": high, "n": len(values)}


def report(benchmark, what: str, found: dict[str, dict[str, float]]) -> None:
    for name, figures in sorted(found.items(), key=lambda kv: -kv[1]["median"]):
        print(f"\n{what}: {name}: {figures}", end="")
    benchmark.extra_info |= {"what": what, "n": len(SEEDS), "found": found}
    benchmark.pedantic(lambda: None)


def test_judging_beside_the_training(benchmark, records):
    """attack_cpu_s / train_cpu_s of every passive attack, ten targets or five, and the share that all signals take."""
    one = records["passive"]
    judged = one | records["shadow"]
    found = {name: shares([m.attack_cpu_s / m.train_cpu_s for m in each]) for name, each in judged.items()}
    found["seqmia, five targets"] = shares([m.attack_cpu_s / m.train_cpu_s for m in records["five"]["seqmia"]])
    found["(all signals)"] = shares([m.signals_cpu_s / m.train_cpu_s for m in one["loss-series"]])
    report(benchmark, "judging / training", found)


def test_an_active_attack_beside_the_training(benchmark, records):
    """What the attack adds to a training with an honest client in its place, and its judging, over that training."""
    honest = [m.train_cpu_s for m in records["active"][HONEST]]
    found = {
        name: shares([(m.train_cpu_s - t + m.attack_cpu_s) / t for m, t in zip(each, honest, strict=True)])
        for name, each in records["active"].items()
    }
    report(benchmark, "(poisoning + judging) / training", found)


class Timed(FedPoisonMIA):
    """Adds up the CPU time of what it crafts."""

    seconds = 0.0

    def craft(self, round, knowledge):
        began = time.process_time()
        rows = super().craft(round, knowledge)
        self.seconds += time.process_time() - began
        return rows


def test_fedpoisonmias_client_beside_an_honest_one(benchmark, tmp_path):
    """What the adversary crafts beside the rest of the same training, and beside an honest client's share of it."""
    suite = tmp_path / "active.yaml"
    YAML().dump(suite_of([s for s in settings() if s["name"] == "active"]), suite)
    one, all_ = [], []
    for job in build_plan(str(suite), (), tmp_path, "cpu").jobs:
        if job.attacker is not None and job.attacker.name == "fedpoisonmia":
            attack, parts = Timed(), build(job)
            trained = train(job, parts, set_scene(job, parts), [attack], lambda t: None)
            honest = trained.measured["train_cpu_s"] - attack.seconds
            all_.append(attack.seconds / honest)
            one.append(attack.seconds / (honest / job.clients))
    report(benchmark, "fedpoisonmia's crafting", {"/ an honest client": shares(one), "/ all clients": shares(all_)})


def test_shadow_models_beside_the_training(benchmark, records, tmp_path):
    """Their training, made once for all attacks that read them."""
    suite = tmp_path / "shadows.yaml"
    YAML().dump(suite_of([s for s in settings() if s["name"] == "shadow"]), suite)
    found = []
    for job in build_plan(str(suite), (), tmp_path, "cpu").jobs:
        parts = build(job)
        scene = set_scene(job, parts)
        began = time.process_time()
        train_shadow_models(job, parts, scene)
        found.append(time.process_time() - began)
    trained = [m.train_cpu_s for m in records["shadow"]["shadow"]]
    report(benchmark, "shadow models / training", {"8 of 200 samples, 60 epochs": shares(
        [s / t for s, t in zip(found, trained, strict=True)])})
