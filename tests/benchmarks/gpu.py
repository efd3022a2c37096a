#!/usr/bin/env python3
"""What a GPU gives, in at most eight minutes: python tests/benchmarks/gpu.py --output DIR
(docs/gpu.md).

Sections, each written to DIR as soon as it has something: ``steps`` (steps/s of ours and of a bare
loop, by precision and memory format, with peak memory), ``side_by_side`` (several runs on one
card), ``audit`` (its share of a training), ``toys`` (every suite's toy version twice on the device,
once on the CPU). ``--paper`` runs the paper's recipe instead; the same command goes on where it was
cut off. Without a CUDA device it ends with status 2; ``--device cpu --tiny`` runs the code of every
section at toy size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from itertools import pairwise, product
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

SUITE = "fedmia_cifar100_gpu"


def write(args, section, found):
    """What a section has so far, on which device."""
    import torch

    name = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else "cpu"
    facts = {"device": name, "torch": torch.__version__, "tiny": args.tiny}
    part = args.output / f"{section}.part"
    part.write_text(json.dumps({**facts, **found}, indent=1) + "\n")
    part.rename(part.with_suffix(".json"))


def steps(args, left):
    """Steps/s by precision and memory format."""
    import torch
    from gpu_steps import Workload, measured

    device, found = torch.device(args.device), {}
    for precision, memory_format in product(("fp32", "bf16"), ("contiguous", "channels_last")):
        if found and left() < 0:
            return
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        work = Workload(device, args.tiny, precision, memory_format)
        made = measured(work, 1 if args.tiny else 5, lambda: left() < 0)
        found[f"{precision} {memory_format}"] = made | {"peak_memory_gib": peak(device)}
        write(args, "steps", {"configurations": found, "steps_a_round": work.steps})


def peak(device):
    """GiB: what torch reserved on the device at most; of a CPU, what the process had."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def side_by_side(args, left):
    """Rounds of 1, 2, 4, 8 processes at once on one card; ends where memory does."""
    found, words = {}, again(args, "--child")
    for n in (1, 2) if args.tiny else (1, 2, 4, 8):
        if found and left() < 0:
            return
        children = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(n)
        ]
        try:
            for c in children:
                json.loads(c.stdout.readline())  # it is ready
            for c in children:
                print("go", file=c.stdin, flush=True)
            said = [json.loads(c.stdout.readline()) for c in children]
            rate = sum(s["steps"] / s["seconds"] for s in said)
            found[str(n)] = {
                "steps_per_s": rate,
                "peak_memory_gib_each": max(s["peak_gib"] for s in said),
            }
        except (OSError, ValueError):
            found[str(n)] = {"failed": "a process ended early: out of memory?"}
        finally:
            for c in children:
                c.kill()
                c.wait()
        write(args, "side_by_side", {"processes": found})
        if "failed" in found[str(n)]:
            return


def child(args):
    """One of the runs side by side: trains for some seconds after it was told to."""
    import torch
    from gpu_steps import Workload, now, ours

    device = torch.device(args.device)
    work = Workload(device, args.tiny)
    _, rounds = ours(work)

    def seconds(n):
        began = now(device)
        for _ in range(n):
            next(rounds)
        return now(device) - began

    seconds(1)
    # alone: about so many seconds; side by side each takes longer
    n = math.ceil((0.2 if args.tiny else 6.0) / seconds(1))
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    took = seconds(n)
    print(
        json.dumps({"steps": n * work.steps, "seconds": took, "peak_gib": peak(device)}), flush=True
    )


def audit(args, left):
    """What an audited round takes beyond a plain one, over the training between two audits."""
    import torch
    from gpu_steps import now
    from running import suite

    from fedbench.core import UserError
    from fedbench.core.cli.run import build_plan
    from fedbench.core.run.process import settle
    from fedbench.core.run.scene import build, set_scene
    from fedbench.core.run.train import train

    name = str(suite(args.output)) if args.tiny else SUITE
    shorter = ("seeds=[0]", "settings.0.federation.rounds=6", "settings.0.audit.every=3")
    try:
        job = build_plan(name, shorter, args.output, args.device).jobs[0]
    except UserError as why:
        write(args, "audit", {"skipped": str(why)})
        return
    settle(job, "start")  # deterministic, as a run is
    parts, device = build(job), torch.device(args.device)
    scene, marks = set_scene(job, parts), [now(device)]
    train(job, parts, scene, [c.request for c in job.cells], lambda t: marks.append(now(device)))
    took = [b - a for a, b in pairwise(marks)]
    plain = statistics.median(took[i] for i in (1, 3, 4))  # the first one warms up
    extra, every = statistics.median(took[i] - plain for i in (2, 5)), 10
    write(
        args,
        "audit",
        {
            "round_s": plain,
            "audit_s": extra,
            "every": every,
            "audit_over_training": extra / (every * plain),
            "n": 2,
            "suite": name,
        },
    )


def toys(args, left):
    """Every suite's toy version twice on the device and once on the CPU."""
    from gpu_toys import compared
    from oracle.toys import images_in, toy
    from running import suite

    from fedbench.suites import shipped_suites

    folder, found = args.output / "toys", {}
    (folder / "images").mkdir(parents=True, exist_ok=True)
    images = (
        folder / "images" if any((folder / "images").iterdir()) else images_in(folder / "images")
    )
    names = ["tiny"] if args.tiny else sorted(shipped_suites(), key=lambda n: ("/" in n, n))
    for name in names:
        path = suite(folder) if args.tiny else toy(name, images, folder)
        found[name] = compared(path, folder, args.device, left)
        write(args, "toys", {"suites": found, "not_reached": [n for n in names if n not in found]})
        if left() < 0:
            return


SECTIONS = {
    "steps": (steps, 0.35),
    "side_by_side": (side_by_side, 0.15),
    "audit": (audit, 0.15),
    "toys": (toys, 0.35),
}
"""with their shares of the budget; what one leaves, the next has"""


def again(args, *more):
    """This script on the same device and size."""
    words = [sys.executable, __file__, "--device", args.device, "--output", args.output]
    return [*map(str, words), *(["--tiny"] if args.tiny else []), *more]


def run(args, sections):
    """The sections in turn, each in a process of its own, as CUDA, once started, is lost in the
    processes that planning forks. One that fails is told, and the next one runs; 1 if one failed.
    """
    end, failed = time.monotonic() + args.budget, 0
    for i, name in enumerate(sections):
        left = end - time.monotonic()
        mine = left * SECTIONS[name][1] / sum(SECTIONS[n][1] for n in sections[i:])
        try:
            status = subprocess.run(
                again(args, "--section", name, "--budget", str(mine)), timeout=max(left, 1.0)
            ).returncode
        except subprocess.TimeoutExpired:
            status = "the budget ended"
        failed += status != 0
        print(
            f"{name}: ended with {status}" if status else f"{name}: {args.output / name}.json",
            flush=True,
        )
    return 1 if failed else 0


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for all sections")
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="a section; several add up"
    )
    parser.add_argument("--tiny", action="store_true", help="toy size")
    parser.add_argument(
        "--paper", action="store_true", help="the paper's recipe instead, with its board"
    )
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.output = args.output.absolute()
    args.output.mkdir(parents=True, exist_ok=True)
    import torch

    if args.section or args.child:
        end = time.monotonic() + args.budget
        torch.set_num_threads(1)
        return (
            child(args)
            if args.child
            else SECTIONS[args.section][0](args, lambda: end - time.monotonic())
        )
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "no CUDA device on this machine: nothing was measured (--device cpu --tiny tries the "
            "script)",
            file=sys.stderr,
        )
        return 2
    if args.paper:  # again, it goes on from the runs that are done
        words = [
            sys.executable,
            "-m",
            "fedbench.core.cli.main",
            "run",
            SUITE,
            "--set",
            "seeds=[0]",
            "--device",
            args.device,
        ]
        return subprocess.run([*words, "--results", args.output / SUITE]).returncode
    return run(args, args.only or list(SECTIONS))


if __name__ == "__main__":
    sys.exit(main())
