#!/usr/bin/env python3
"""What a GPU gives, in ten minutes and one JSON file: python tests/benchmarks/gpu.py gpu.json
(docs/gpu.md).

Sections, each written as soon as it has something; none needs a data set:

* ``steps``: steps/s, TFLOP/s and profiles of ours and of bare loops, by precision; equal bits
* ``peers``: BlazeFL's benchmark and pfl-research's workload in every framework that is installed
* ``audit``: an audited round beside a plain one
* ``side_by_side``: several runs on one card
* ``toys``: every suite's toy version twice on the device, once on the CPU

Without a CUDA device it ends with status 2; ``--device cpu --tiny`` runs the code of every section
at toy size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def write(args, section, values):
    """Put what a section has so far into the document."""
    document = json.loads(args.output.read_text()) | {section: values}
    part = args.output.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.rename(args.output)


def steps(args, left):
    """Cost of a step by network and precision."""
    import torch
    from gpu_steps import (
        CASES,
        PRECISIONS,
        Steps,
        configurations,
        measured,
        tiny,
        variants_of,
    )

    on_gpu, results = args.device.startswith("cuda"), {}
    for case, precision in configurations():
        name = f"{case} {precision}"
        if precision == "tf32" and not on_gpu:
            results[name] = "not available: arithmetic of NVIDIA GPUs"
            continue
        if results and left() < 0:
            results[name] = "not reached"
            continue
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(args.device)
        workload = replace(CASES[case], device=args.device)
        work = Steps(tiny(workload) if args.tiny else workload, **PRECISIONS[precision])
        turns = 1 if args.tiny else 5
        results[name] = measured(work, variants_of(name), turns, lambda: left() < 0)
        write(args, "steps", results)
    write(args, "steps", results)


def peers(args, left):
    """The published workloads of two frameworks in all frameworks."""
    from audit1 import WORKLOADS, federations

    results = {}
    for name, published in WORKLOADS.items():
        workload = replace(published, device=args.device)
        if args.tiny:
            workload = replace(workload, clients=2, cohort=2, samples=20, epochs=1)
        results[name] = federations(workload, 1 if args.tiny else 5, enough=lambda: left() < 0)
        write(args, "peers", results)


def audit(args, left):
    """An audited round beside a plain one, of BlazeFL's CNN and of FedMIA's recipe at a tenth of
    its samples, which audits every tenth round.
    """
    from audit1 import audit as measured
    from peers import Workload

    from fedbench.core.numerics.wrappers import matmuls

    blazefl = Workload(device=args.device)
    fedmia = Workload("resnet18", 10, 10, 500, 100, 1, 0.01, classes=100, device=args.device)
    cases = {"blazefl": (blazefl, 2000, "fp32"), "fedmia": (fedmia, 1500, "fp32")}
    if args.device.startswith("cuda"):
        cases["fedmia, signals in tf32"] = (fedmia, 1500, "tf32")
    results = {}
    for name, (workload, candidates, precision) in cases.items():
        if args.tiny:
            workload, candidates = replace(workload, clients=2, cohort=2, samples=10, epochs=1), 16
        with matmuls(precision):
            results[name] = measured(
                workload, 1 if args.tiny else 5, candidates, enough=lambda: left() < 0
            )
        write(args, "audit", results)


def side_by_side(args, left):
    """Rounds of 1, 2, 4, 8 processes at once on one card; ends where memory does."""
    from gpu_steps import CASES, tiny
    from peers import Peer

    results, case = {}, CASES["resnet18"]
    for n in (1, 2) if args.tiny else (1, 2, 4, 8):
        if results and left() < 0:
            return
        workload = replace(tiny(case) if args.tiny else case, device=args.device, cores=n)
        with closing(Peer("ours", workload)) as peer:
            if not peer.failed:
                peer.round()  # warms up
                seconds, _ = peer.round()
                rate = {"steps_per_s": peer.steps / seconds, "peak_memory_gib": peer.peak_gib}
            results[str(n)] = {"failed": peer.failed} if peer.failed else rate
        write(args, "side_by_side", results)
        if peer.failed:
            return


def toys(args, left):
    """Every suite's toy version twice on the device and once on the CPU."""
    from gpu_toys import compared
    from oracle.toys import images_in, toy
    from running import suite

    from fedbench.suites import shipped_suites

    names = ["tiny"] if args.tiny else sorted(shipped_suites(), key=lambda n: ("/" in n, n))
    results = {}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "images").mkdir()
        images = images_in(folder / "images")
        for name in names:
            path = suite(folder) if args.tiny else toy(name, images, folder)
            results[name] = compared(path, folder, args.device, left)
            missing = [name for name in names if name not in results]
            write(args, "toys", {"suites": results, "not_reached": missing})
            if left() < 0:
                return


SECTIONS = {
    "steps": (steps, 0.35),
    "peers": (peers, 0.2),
    "audit": (audit, 0.1),
    "side_by_side": (side_by_side, 0.1),
    "toys": (toys, 0.25),
}
"""with their shares of the budget; what one leaves, the next has"""


def run(args, sections):
    """The sections in turn, each in a process of its own, as CUDA, once started, is lost in the
    processes that planning forks. One that fails is told, and the next one runs; 1 if one failed.
    """
    words = [sys.executable, __file__, str(args.output), "--device", args.device]
    words += ["--tiny"] if args.tiny else []
    end, failures = time.monotonic() + args.budget, 0
    for i, name in enumerate(sections):
        left = end - time.monotonic()
        share = left * SECTIONS[name][1] / sum(SECTIONS[n][1] for n in sections[i:])
        section = ["--section", name, "--budget", str(share)]
        try:
            status = subprocess.run([*words, *section], timeout=max(left, 1.0)).returncode
        except subprocess.TimeoutExpired:
            status = "the budget ended"
        failures += status != 0
        print(f"{name}: {'failed: ' + str(status) if status else 'done'}", flush=True)
    return 1 if failures else 0


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, help="the JSON file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for all sections")
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="a section; several add up"
    )
    parser.add_argument("--tiny", action="store_true", help="toy size")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.output = args.output.absolute()
    import torch

    torch.set_num_threads(1)
    if args.section:
        end = time.monotonic() + args.budget
        return SECTIONS[args.section][0](args, lambda: end - time.monotonic())
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (try --device cpu --tiny)", file=sys.stderr)
        return 2
    from audit1 import machine

    args.output.write_text(json.dumps({"machine": machine(args.device), "tiny": args.tiny}))
    return run(args, args.only or list(SECTIONS))


if __name__ == "__main__":
    sys.exit(main())
