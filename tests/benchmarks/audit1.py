#!/usr/bin/env python3
"""AUDIT-1: a federation trained beside other frameworks, then every round of it audited.

    python tests/benchmarks/audit1.py audit1.json --python flower=ENV/bin/python

BlazeFL's CNN and recipe on images of CIFAR-10's shape made from a key: 20 clients on two cores;
``--clients 100 --device cuda`` on a GPU. First rounds of fedbench, of a bare loop and of the
frameworks that can be imported, in turn; then audited rounds of fedbench beside plain ones (ten
targets, 2,000 candidates, the losses of all uploads, gradient products) and beside FedMIA's
released procedure. A framework that fails is skipped with its reason.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from peers import PFL, Workload, data_of, started, training
from workloads import clock_of, one_pass_a_sample_and_client, quotients, summary

from fedbench.core.contract.samples import evaluating
from fedbench.core.signals.builtin import Loss
from fedbench.core.signals.measure import Recorder

TARGETS, CANDIDATES = 10, 2000
WORKLOADS = {"blazefl": Workload(), "pfl": PFL}


def machine(device):
    """Device, processor and versions that the figures belong to."""
    facts = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": "cpu",
    }
    if device.startswith("cuda"):
        facts["device"] = torch.cuda.get_device_name(device)
    return facts


def processor():
    """Name of the processor's model."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def federations(workload, turns, pythons=None, enough=lambda: False):
    """Rounds of every framework in turn: steps a second of each, by wall time and by CPU time, and
    ours over those of each. ``pythons``: framework -> its interpreter.
    """
    with ExitStack() as stack:
        peers, reasons = started(stack, workload, pythons)
        rates = {name: {"wall": [], "cpu": []} for name in peers}
        for turn in range(turns + 1):  # the first one warms up
            if turn > 1 and enough():
                break
            for name in list(rates):
                try:
                    wall, cpu = peers[name].round()
                except RuntimeError as error:
                    reasons[name] = str(error)
                    del rates[name]
                    continue
                if turn:
                    rates[name]["wall"].append(peers[name].steps / wall)
                    rates[name]["cpu"].append(peers[name].steps / max(cpu, 0.01))
    rest = [name for name in rates if name != "ours"]
    return {
        "workload": vars(workload) | {"steps": workload.steps},
        "skipped": reasons,
        "steps_per_s": {name: summarised(rates[name]) for name in rates},
        "ratios": {f"ours / {name}": ratios(rates["ours"], rates[name]) for name in rest},
    }


def summarised(rates):
    """Summary by clock."""
    return {clock: summary(values) for clock, values in rates.items()}


def ratios(ours, peer):
    """Summary of the turns' ratios by clock."""
    return {clock: summary(quotients(ours[clock], peer[clock])) for clock in ours}


def audit(workload, turns, candidates=CANDIDATES, by_hand=20, enough=lambda: False):
    """Audited rounds and plain ones of one training in turn, and FedMIA's procedure by hand on the
    first candidates.

    Args:
        workload: what is trained.
        turns: number of audited rounds; the first one warms up.
        candidates: half of them members of the targets.
        by_hand: candidates of FedMIA's procedure, which takes as long for each.
        enough: whether to stop before.

    Returns:
        dict: medians and ranges of the ratios, and the largest difference of the gradient products
        from those by hand, over their largest.
    """
    federation = training(workload, 2 * turns + 2)
    flat, now = federation.setup.flat, clock_of(workload.device)
    x, y = candidates_of(workload, candidates)
    by_hand = min(by_hand, candidates)
    recorder = Recorder(
        flat,
        x,
        y,
        {"loss": Loss()},
        gradients=True,
        rows=[*range(workload.clients)],
        coalitions=(),
        sizes=federation.setup.weighing,
        n_rounds=turns + 1,
    )
    rounds = federation.rounds()
    seconds = {"plain": [], "audited": [], "audit": [], "by hand": []}

    def timed(name, function, *args):
        began = now()
        value = function(*args)
        seconds[name].append(now() - began)
        return value

    torch.set_deterministic_debug_mode("error")
    for turn in range(turns + 1):
        if turn > 1 and enough():
            break
        timed("plain", next, rounds)
        result = timed("audited", next, rounds)
        timed("audit", recorder.record, result)
        seconds["audited"][-1] += seconds["audit"][-1]
        products = timed("by hand", fedmia_procedure, flat, result, x[:by_hand], y[:by_hand])
    torch.set_deterministic_debug_mode("default")
    # measured of negative updates, those of absent clients are NaN
    measured = -recorder.arrays()["grad-dot"][-1][result.uploads.participants, :by_hand]
    difference = abs(measured - products.cpu().numpy()).max() / abs(measured).max()
    plain, audited, audit_s, hand_s = (values[1:] for values in seconds.values())
    return {
        "candidates": candidates,
        "candidates by hand": by_hand,
        "plain round, s": summary(plain),
        "audited / plain": summary(quotients(audited, plain)),
        "by hand / audit": summary(
            [candidates / by_hand * ratio for ratio in quotients(hand_s, audit_s)]
        ),
        "largest relative difference": float(difference),
    }


def candidates_of(workload, n):
    """x, y: samples of the targets, and as many that no client has."""
    targets = range(min(TARGETS, workload.clients))
    each = n // 2 // len(targets)
    members = [data_of(workload, client) for client in targets]
    outside = data_of(replace(workload, samples=n - each * len(targets)), workload.clients)
    x = torch.cat([*(x[:each] for x, _ in members), outside[0]])
    return x, torch.cat([*(y[:each] for _, y in members), outside[1]])


def fedmia_procedure(flat, result, x, y):
    """The products at the model that the clients received, with their updates."""
    uploads = result.uploads
    flat.load(uploads.starts[0])
    with evaluating(flat.module):
        return one_pass_a_sample_and_client(flat.module, x, y, uploads.updates)


def goals(document):
    """Goal -> its value and whether it is reached."""
    audit, federations = document["audit"], document["federations"]["ratios"]
    values = {
        "audited / plain <= 1.5": (audit["audited / plain"]["median"], operator.le, 1.5),
        "by hand / audit >= 10": (audit["by hand / audit"]["median"], operator.ge, 10.0),
    }
    frameworks = [of["wall"]["median"] for name, of in federations.items() if "bare" not in name]
    if frameworks:
        values["ours / best framework >= 1.15"] = (min(frameworks), operator.ge, 1.15)
    return {
        goal: {"value": value, "reached": compare(value, limit)}
        for goal, (value, compare, limit) in values.items()
    }


def main():
    """Measure, and write the document after each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the JSON file")
    parser.add_argument("--workload", choices=WORKLOADS, default="blazefl")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--epochs", type=int, help="local epochs")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=9, metavar="N")
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="the interpreter of a framework: flower=ENV/bin/python",
    )
    parser.add_argument(
        "--only", choices=("federations", "audit"), action="append", help="the other part stays"
    )
    args = parser.parse_args()
    workload = WORKLOADS[args.workload]
    workload = replace(
        workload,
        clients=args.clients,
        cohort=min(workload.cohort, args.clients),
        epochs=args.epochs or workload.epochs,
        cores=args.cores,
        device=args.device,
    )
    torch.set_num_threads(1)
    pythons = dict(pair.split("=", 1) for pair in args.python)
    parts = {
        "federations": lambda: federations(workload, args.turns, pythons),
        "audit": lambda: audit(workload, args.turns, args.candidates),
    }
    document = json.loads(args.output.read_text()) if args.output.exists() else {}
    for name in args.only or parts:
        about = {"command": shlex.join(sys.argv), "machine": machine(args.device)}
        document[name] = about | parts[name]()
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    if document.keys() >= parts.keys():
        document["goals"] = goals(document)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        print(json.dumps(document["goals"], indent=1))


if __name__ == "__main__":
    main()
