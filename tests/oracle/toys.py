"""Every shipped suite at toy scale: its methods as they are, small synthetic images in place of the
data sets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from ruamel.yaml import YAML

from fedbench.core.spec.base import MethodUse
from fedbench.suites import shipped_suites


def images_in(root: Path) -> Path:
    """The folder ``root`` filled with class folders: 4 classes, 25 images of 16x16 each."""
    rng = np.random.default_rng(0)
    for c in range(4):
        (root / f"class{c}").mkdir()
        for i in range(25):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class{c}" / f"{i}.png")
    return root


# Of suites with many alike settings one is run; the others differ in a number.
PARTS = {
    "papers/fedmia_table1": ["cifar100-alexnet"],
    "papers/fedmia_table2": ["cifar100-alexnet"],
    "papers/fedmia_figure4": ["alexnet-beta1"],
    "papers/fedmia_figure5": ["alexnet-epochs3"],
    "papers/fedpoisonmia_table2": ["cifar10-groups"],
    "papers/fedpoisonmia_table3": ["texas100-iid"],
    "papers/fedpoisonmia_table4": ["texas100-groups"],
    "papers/fedpoisonmia_table5": ["texas100-iid"],
    "papers/fedpoisonmia_table6": ["stl10-iid"],
    "papers/fedpoisonmia_figure2": ["texas100-malicious3"],
    "papers/fedpoisonmia_figure3": ["texas100-bias0-9"],
    "papers/fedpoisonmia_figure4": ["texas100-clients30"],
    "papers/fedpoisonmia_figure5": ["texas100-samples100"],
    "papers/fedpoisonmia_async": ["fer2013-groups-c1"],
    "papers/fedpoisonmia_runtime": ["texas100-clients10"],
    "papers/ifca_mir_minority": ["femnist-50"],
    "papers/ifca_mir_mnist_minority": ["mnist-10"],
    "papers/ifca_mir_mnist_deformation": ["mnist-wide"],
    "papers/ifca_mir_mnist_rotation": ["apart-20"],
    "papers/ifca_mir_deformation": ["cifar10-dark-majority"],
    "papers/ifca_mir_convergence": ["femnist-every-round"],
    "papers/ifca_mir_trajectory": ["cifar10-clients"],
    "papers/cofedmid_table4": ["cifar10-beta1"],
    "papers/cofedmid_table10": ["cifar10"],
    "papers/cofedmid_table11": ["cifar10"],
    "papers/cofedmid_wideresnet": ["cifar10-wrn"],
    "papers/cofedmid_figure1": ["cifar100"],
    "cross_threats": ["digits-trajectory", "digits-insider"],
    "auditors": ["digits"],
    "overfitting": ["digits", "location30"],
    "poisoning": ["location30"],
    "digits_sweeps": ["beta1"],
    "sweeps_cofedmid": ["digits"],
    "sweeps_cofedmid_values": ["digits"],
    "sweeps_fedmia": ["beta1"],
    "sweeps_membershield": ["beta1"],
    "sweeps_poisoning": ["malicious2"],
    "generative": ["digits"],
    "papers/fedmia_generative_cifar": ["cifar10"],
    "clustered": ["mnist-15", "mnist-clients"],
    "papers/cofedmid_figure4": ["clients5"],
    "papers/membershield_cifar10_cnn2": ["cnn2-beta1"],
    "papers/membershield_table12": ["cnn2", "mlp4"],
    "papers/membershield_cifar10_vgg": ["vgg16-beta1"],
    "papers/membershield_chmnist": ["cnn3-beta1"],
    "papers/membershield_purchase100": ["mlp4-beta1"],
    "tuned_baselines": ["digits", "cifar10"],
    "what_the_bugs_do": ["leaky-misaligned", "noniid-weights"],
}
# Methods that suites share run all with all in `partial_defense`, papers/cofedmid_table1,
# `poisoning` and papers/fedpoisonmia_table5. The other suites keep what they alone have, with
# methods that show it.
_POISONED = {"none", "atm", "passive", "fedpoisonmia", "fedpoisonmia-greedy", "fedpoisonmia-random"}
_OVERFITTED = {
    "none",
    "membershield",
    "aof-dropout-0.5-l2",
    "threshold-loss",
    "knn",
    "threshold-loss-global",
}
_UNITED = {
    "none",
    "dp-sgd",
    "cofedmid",
    "cofedmid-cifar10",
    "avg-cosine",
    "fta-c",
    "seqmia",
    "seqmia-coalition",
}
_PARTIAL = {"none", "grad-noise", "dp-sgd", "cofedmid", "loss-series", "fta-l", "seqmia"}
_CLUSTERED = {
    "none",
    "FedAvg",
    "ifca",
    "ifca-mir",
    "shadow",
    "lira-offline",
    "loss-series",
    "fta-l",
    "seqmia",
}
FEW = {name: _POISONED for name in PARTS if "fedpoisonmia" in name and not name.endswith("table5")}
FEW |= {
    f"papers/membershield_{task}": _OVERFITTED for task in ("cifar10_vgg", "chmnist", "purchase100")
}
FEW |= {
    f"papers/cofedmid_{table}": _UNITED
    for table in ("table10", "table17_18", "table19_20", "wideresnet")
}
FEW |= {
    f"papers/fedmia_generative_{images}": {"none", "loss-series", "avg-cosine"}
    for images in ("mnist", "cifar")
}
FEW |= {name: _PARTIAL for name in ("partial_defense_location30", "partial_defense_cifar10")}
FEW |= {
    name: _CLUSTERED
    for name in ("clustered", "papers/ifca_mir_minority", "papers/ifca_mir_trajectory")
}
FEW |= {
    "papers/cofedmid_table5_9_cifar10": {
        "none",
        "cofedmid",
        "cofedmid-partition",
        "cofedmid-recycling",
        "fedmia-ii",
    },
    "tuned_baselines": {"none", "grad-noise", "dp-sgd-hu", "dp-sgd-hu-views", "avg-cosine-class"},
    "auditors": {"none", "quantize", "free-rider", "placebo", "blackbox-loss", "fedmia-ii"},
    "across_worlds": {
        "none",
        "membershield",
        "cofedmid",
        "atm",
        "loss-series",
        "fedpoisonmia",
        "stacked",
    },
}
# Of methods that differ from another in a number, and of attacks that the same suite has in another
# view, one is run.
LESS = {
    "papers/membershield_cifar10_cnn2": {
        "aof-dropout-0.25",
        "aof-dropout-0.5",
        "aof-dropout-0.75",
        "aof-dropout-0.25-l2",
        "aof-dropout-0.75-l2",
        "dp-sgd",
        "kd",
        "relaxloss",
        "adv-reg",
        "threshold-confidence-global",
        "threshold-entropy-global",
        "threshold-modified-entropy-global",
        "logistic-regression-global-colluder",
        "knn-global-colluder",
        "logistic-regression-global",
        "knn-global",
    },
    "overfitting": {
        "confidence",
        "entropy",
        "modified-entropy",
        "regression",
        "knn",
        "global-confidence",
        "global-stacked",
    },
    "cofedmid_ablations": {
        "limit-20",
        "limit-30",
        "decay-exponential",
        "loss-series",
        "avg-cosine",
        "fedmia-ii-coalition",
        "fta-c-coalition",
        "fta-c",
        "seqmia",
        "seqmia-coalition",
        "avg-cosine-class",
    },
    "fedmia_cifar100_gpu": {"blackbox-loss", "grad-cosine", "grad-norm", "grad-diff", "fedmia-i"},
    "papers/cofedmid_figure3": {"seqmia"},
    "papers/fedmia_table2": {
        "data-augmentation+sampling-0.3",
        "data-augmentation+sampling-0.6",
        "mixup",
        "perturb",
        "blackbox-loss",
        "loss-series",
    },
    "papers/cofedmid_table13_14": {"fedmia-ii", "fta-c"},
}
# In a second setting run the defenses that the first has not.
SECOND = {
    ("overfitting", "location30"): ["none", "relaxloss-records", "memguard"],
    ("tuned_baselines", "cifar10"): ["none", "dp-sgd-hu-views"],
}
FLOORS = ("partial_defense", "poisoning", "clustered_digits", "later_attacks", "auditors")


def runs(name: str, method: str) -> bool:
    """Whether the suite runs this defense or attack here too."""
    return method in FEW[name] if name in FEW else method not in LESS.get(name, ())


def toy(name: str, images, folder):
    """The suite with its methods as they are and everything else shrunk; at most two points of a
    sweep.
    """
    yaml = YAML(typ="safe")
    spec = yaml.load(shipped_suites()[name])
    spec["seeds"] = list(range(8)) if name == "auditors" else [0]  # so many share a pool
    spec |= {"tuning_seeds": spec["tuning_seeds"][:1]} if "tuning_seeds" in spec else {}
    spec["settings"] = [s for s in spec["settings"] if s["name"] in PARTS.get(name, [s["name"]])]
    for s in spec["settings"]:
        if (name, s["name"]) in SECOND:
            s["defenses"] = SECOND[name, s["name"]]
        s["audit"]["every"] = 1
        if s["audit"].get("targets") == "honest":
            s["audit"] |= {"members": 10, "nonmembers": 10}
        if "adversary" in s:
            s["adversary"] |= {"clients": min(s["adversary"]["clients"], 2), "mask_set": 6}
        # Bulyan needs seven rows, coalitions are of up to nine
        clients = 10 if name in ("poisoning", "papers/cofedmid_figure3", "sweeps_cofedmid") else 6
        small = {"rounds": 2, "clients": clients, "local_epochs": 1, "batch_size": 8}
        s["federation"] = {**s["federation"], **small}
        if "nonmembers" in s["audit"] and s["audit"]["nonmembers"] > 120:
            s["audit"] |= {"nonmembers": 120} | ({"outside": 60} if "outside" in s["audit"] else {})
        if "groups" in s:
            grouped(s)
        elif "generative" in name:
            s["dataset"] = {"name": "denoising", "params": {"train": 120}}
            if s["model"] == "denoiser-mlp":
                s["model"] = {"name": "denoiser-mlp", "params": {"steps": 20}}
            else:
                s["model"] = {"name": "denoiser-unet", "params": {"steps": 20, "width": 8}}
        elif "papers/cofedmid" in name:  # ten classes, and a model that takes no time
            s |= {
                "dataset": {"name": "digits", "params": {"test": 1400, "holdout": 200}},
                "model": "mlp",
            }
        elif "membershield" in name:
            overfitted(s, images)
        # as many samples a client as those who stop early need to judge by
        elif name in ("overfitting", "across_worlds"):
            s["federation"]["validation"] = 0.3
            s["dataset"] = {
                "name": "digits",
                "params": {"test": 700, "holdout": 200, "label_noise": 0.3},
            }
        # early stopping judges by ten samples of a client or more
        elif name.startswith("partial_defense"):
            s["dataset"] = {
                "name": "digits",
                "params": {"test": 897, "holdout": 200, "label_noise": 0.3},
            }
        elif "location30" in str(s["dataset"]):
            s["dataset"] = {"name": "digits", "params": {"test": 1000, "holdout": 200}}
        elif "texas100" in str(s["dataset"]):
            s["dataset"] = {"name": "digits", "params": {"test": 1400}}
        elif "digits" in str(s["dataset"]):
            s["dataset"] = {"name": "digits", "params": {"test": 1400, "label_noise": 0.3}}
        else:
            s["dataset"] = {
                "name": "image-folder",
                "params": {"path": str(images), "test": 20, "holdout": 20},
            }
            if s["model"] == "resnet18":  # the largest model
                s["dataset"]["params"] |= {"size": 8, "test": 10, "holdout": 60}
                s["federation"]["clients"] = 3
        if "dirichlet" in str(s.get("partition")):
            s["partition"] = {"name": "dirichlet", "beta": 10.0}
    for kind in ("defenses", "attacks"):
        spec[kind] = [
            u
            for u in spec[kind]
            if runs(name, u if isinstance(u, str) else u.get("label", u["name"]))
        ]
        for s in spec["settings"]:
            s |= (
                {kind: [label for label in s[kind] if runs(name, label.partition("[")[0])]}
                if kind in s
                else {}
            )
    if name not in FLOORS:
        spec["floors"] = []
    for d in spec["defenses"]:
        # of DP-SGD the least noise, which learns something in two rounds
        if isinstance(d, dict) and "grid" in d:
            kept = slice(-2, None) if d["name"] == "dp-sgd" else slice(1 if "fedmia" in name else 2)
            d["grid"] = {k: v[kept] for k, v in d["grid"].items()}
        if isinstance(d, dict) and d.get("name") in ("ifca", "ifca-mir"):
            # six clients seldom choose by halves
            d["params"].setdefault("least_share", 0.05)
        if isinstance(d, dict) and d.get("name") == "ifca-mir":
            d["params"] |= {"every": 1, "shadows": 1, "shadow_samples": 60, "first_round": 1}
    if "papers/cofedmid" in name:
        united(spec)
    spec["published"] = [
        r
        for r in spec.get("published", [])
        if r["setting"] in {s["name"] for s in spec["settings"]}
    ]
    path = folder / f"{name.rpartition('/')[2]}.yaml"
    with path.open("w") as f:
        yaml.dump(spec, f)
    return path


def united(spec):
    """A suite of CoFedMID's, in place: one point of a sweep, and of the rows that a setting names
    those that are left.
    """
    for d in (d for d in spec["defenses"] if isinstance(d, dict)):
        d["grid"] = {k: v if k == "mode" else v[-1:] for k, v in d.get("grid", {}).items()}
        if d["name"] == "cofedmid" and d["params"].get("compensation", True):
            d["params"]["recycle_from"] = 1
    quick = {"name": "seqmia", "params": {"epochs": 1}}
    spec["attacks"] = [
        {**quick, "label": "seqmia"} if a == "seqmia" else a for a in spec["attacks"]
    ]
    for a in spec["attacks"]:
        if isinstance(a, dict) and a["name"] == "seqmia":
            a["params"] = {**a["params"], **quick["params"]}
    for s in spec["settings"]:
        for kind in ("defenses", "attacks"):
            left = {p.label for use in spec[kind] for p in MethodUse.model_validate(use).points()}
            s |= {kind: [label for label in s[kind] if label in left]} if kind in s else {}


def overfitted(s, images):
    """A setting of MemberShield's, in place: images as large as its networks need, and parts that
    no class is missing from.
    """
    model = s["model"] if isinstance(s["model"], str) else s["model"]["name"]
    s["federation"] |= {"clients": 2, "validation": 0.3, "optimizer": {"lr": 0.01}}
    s["audit"] |= {"targets": [0, 1], "nonmembers": 30, "outside": 20}
    if "vgg" in model:
        s["model"] = {"name": model, "params": {"divide": 16}}
    size = {"vgg16": 32, "membershield-mlp4": 8}.get(model, 16)
    s["dataset"] = {
        "name": "image-folder",
        "params": {"path": str(images), "size": size, "test": 8, "holdout": 8},
    }


def grouped(s):
    """A setting with groups of clients, in place: digits are images as MNIST's are; the last of six
    clients is a minority.
    """
    s["dataset"] = {"name": "digits", "params": {"test": 597, "holdout": 700}}
    for g in s["groups"]:
        if "fraction" in g:
            g["fraction"] = max(g["fraction"], 0.1)
    audit = s["audit"] = {**s["audit"]}
    if audit["targets"] == "groups":
        audit |= {
            "members": 30,
            "nonmembers": 30,
            "shadow": {"samples": 300, "models": 2, "epochs": 1},
        }
    else:
        audit |= {"targets": [0, 5], "nonmembers": 100} | (
            {"outside": 60} if "outside" in audit else {}
        )
    for c in s.get("coalitions", []):
        if isinstance(c, dict):
            c["clients"] = [0, 1, 5]
