#!/usr/bin/env python3
"""What a GPU gives, in at most eight minutes: python tests/benchmarks/gpu.py --output DIR (docs/gpu.md).

Sections, each written to DIR as soon as it has something: ``steps`` (steps/s of ours and of a bare loop, eager and captured, by
precision and memory format, with peak memory), ``side_by_side`` (several runs on one card), ``audit`` (its share of a training),
``toys`` (every suite's toy version twice on the device, once on the CPU). ``--paper`` runs the paper's recipe instead; the
same command goes on where it was cut off. Without a CUDA device it ends with status 2; ``--device cpu --tiny`` runs the code of
every section at toy size.
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
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

SHARES = {"steps": 0.35, "side_by_side": 0.15, "audit": 0.15, "toys": 0.35}  # of the budget; what one leaves, the next has
SUITE = "fedmia_cifar100_gpu"


class Report:
    """The files of the sections, and the time that is left."""

    def __init__(self, folder: Path, budget: float, args: argparse.Namespace) -> None:
        self.folder, self._args, self._end = folder, args, time.monotonic() + budget
        folder.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        """Seconds of the budget."""
        return self._end - time.monotonic()

    def write(self, section: str, found: dict[str, Any]) -> None:
        """What a section has so far, on which device."""
        import torch

        device = torch.device(self._args.device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        facts = {"device": name, "torch": torch.__version__, "tiny": self._args.tiny}
        path = self.folder / f"{section}.json"
        path.with_suffix(".part").write_text(json.dumps({**facts, **found}, indent=1) + "\n")
        path.with_suffix(".part").rename(path)


def steps(args: argparse.Namespace, report: Report, enough: Callable[[], bool]) -> None:
    """Steps/s by precision and memory format."""
    import torch
    from gpu_steps import Workload, measured

    device, found = torch.device(args.device), dict[str, Any]()
    for precision in ("fp32", "bf16"):
        for memory_format in ("contiguous", "channels_last"):
            if found and enough():
                return
            forget_peak(device)
            work = Workload(device, args.tiny, precision, memory_format)
            found[f"{precision} {memory_format}"] = measured(work, args.repeats, enough) | {"peak_memory_gib": peak(device)}
            report.write("steps", {"configurations": found, "steps_a_round": work.steps})


def forget_peak(device: Any) -> None:
    """Begin anew."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: Any) -> float:
    """GiB: what torch reserved on the device at most; of a CPU, what the process had."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def side_by_side(args: argparse.Namespace, report: Report, enough: Callable[[], bool]) -> None:
    """Rounds of 1, 2, 4, 8 processes at once on one card; ends where memory does."""
    found: dict[str, Any] = {}
    for n in (1, 2) if args.tiny else (1, 2, 4, 8):
        if found and enough():
            break
        children = [_child(args) for _ in range(n)]
        try:
            ready = [c.stdout.readline().strip() == "ready" for c in children]  # type: ignore[union-attr]
            for c in children:
                c.stdin.write("go\n")  # type: ignore[union-attr]
                c.stdin.flush()  # type: ignore[union-attr]
            said = [json.loads(c.stdout.readline() or "{}") for c in children]  # type: ignore[union-attr]
        except (OSError, ValueError):
            said, ready = [], [False]
        finally:
            for c in children:
                c.kill()
                c.wait()
        if not all(ready) or not all(said):
            found[str(n)] = {"failed": "a process ended early: out of memory?"}
            break
        found[str(n)] = {"steps_per_s": sum(s["steps"] / s["seconds"] for s in said),
                         "peak_memory_gib_each": max(s["peak_gib"] for s in said)}  # fmt: skip
        report.write("side_by_side", {"processes": found})
    report.write("side_by_side", {"processes": found})


def _child(args: argparse.Namespace) -> subprocess.Popen[str]:
    return subprocess.Popen(_again(args, "--child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _again(args: argparse.Namespace, *more: str) -> list[str]:
    """This script on the same device and size."""
    words = [sys.executable, str(Path(__file__).resolve()), "--device", args.device, "--output", str(args.output)]
    return [*words, "--repeats", str(args.repeats), *(["--tiny"] if args.tiny else []), *more]


def child(args: argparse.Namespace) -> None:
    """One of the runs side by side: trains for some seconds after it was told to."""
    import torch
    from gpu_steps import Workload, ours, seconds

    torch.set_num_threads(1)
    device = torch.device(args.device)
    work = Workload(device, args.tiny)
    _, rounds = ours(work, captured=True)
    next(rounds)
    one = seconds(lambda: next(rounds), device)
    print("ready", flush=True)
    sys.stdin.readline()
    n = math.ceil((0.2 if args.tiny else 6.0) / one)  # alone: about so many seconds; side by side each takes longer
    took = seconds(lambda: [next(rounds) for _ in range(n)], device)
    print(json.dumps({"steps": n * work.steps, "seconds": took, "peak_gib": peak(device)}), flush=True)


def audit(args: argparse.Namespace, report: Report, enough: Callable[[], bool]) -> None:
    """What an audited round takes beyond a plain one, over the training between two audits."""
    import torch
    from gpu_steps import wait
    from running import suite

    from fedbench.core import UserError
    from fedbench.core.cli.run import build_plan
    from fedbench.core.experiment.parts import build
    from fedbench.core.experiment.process import settle
    from fedbench.core.experiment.scene import set_scene
    from fedbench.core.experiment.train import train

    name = str(suite(args.output)) if args.tiny else SUITE
    shorter = ("seeds=[0]", "settings.0.federation.rounds=6", "settings.0.audit.every=3")
    try:
        job = build_plan(name, shorter, args.output, args.device).jobs[0]
    except UserError as why:
        report.write("audit", {"skipped": str(why)})
        return
    settle(job, "start")  # deterministic, as a run is
    parts = build(job)
    scene, device, marks = set_scene(job, parts), torch.device(args.device), [time.perf_counter()]

    def on_round(t: int) -> None:
        wait(device)
        marks.append(time.perf_counter())

    train(job, parts, scene, [c.look for c in job.cells], on_round)
    took = [b - a for a, b in pairwise(marks)]
    plain = statistics.median(took[i] for i in (1, 3, 4))  # the first one warms up
    extra, every = statistics.median(took[i] - plain for i in (2, 5)), 10
    report.write("audit", {
        "round_s": plain, "audit_s": extra, "every": every, "audit_over_training": extra / (every * plain), "n": 2,
        "suite": name,
    })  # fmt: skip


def paper(args: argparse.Namespace) -> int:
    """The paper's recipe and its board: again, it goes on from the runs that are done."""
    words = [sys.executable, "-m", "fedbench.core.cli.main", "run", SUITE, "--set", "seeds=[0]", "--device", args.device]
    return subprocess.run([*words, "--results", str(args.output / SUITE)]).returncode


def toys(args: argparse.Namespace, report: Report, enough: Callable[[], bool]) -> None:
    """Every suite's toy version twice on the device and once on the CPU."""
    from gpu_toys import all_toys

    for found in all_toys(args.output / "toys", args.device, args.tiny, report.left):
        report.write("toys", found)
        if enough():
            return


SECTIONS = {"steps": steps, "side_by_side": side_by_side, "audit": audit, "toys": toys}


def section(args: argparse.Namespace) -> None:
    """One of them, in this process: CUDA, once started, is lost in the processes that planning forks."""
    report = Report(args.output, args.budget, args)
    SECTIONS[args.section](args, report, lambda: report.left() < args.until)


def run(args: argparse.Namespace, sections: Sequence[str]) -> int:
    """The sections in turn, each in a process of its own. One that fails is told, and the next one runs; 1 if one failed."""
    end, failed = time.monotonic() + args.budget, 0
    for i, name in enumerate(sections):
        left = end - time.monotonic()
        mine = left * SHARES[name] / sum(SHARES[n] for n in sections[i:])
        words = _again(args, "--section", name, "--budget", f"{left:.0f}", "--until", f"{left - mine:.0f}")
        try:
            status: int | str = subprocess.run(words, timeout=max(left, 1.0)).returncode
        except subprocess.TimeoutExpired:
            status = "the budget ended"
        failed += status != 0
        print(f"{name}: {args.output / name}.json" if status == 0 else f"{name}: ended with {status}", flush=True)
    return 1 if failed else 0


def _inside(args: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    if args.child:
        child(args)
    else:
        section(args)
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for all sections")
    parser.add_argument("--repeats", type=int, default=5, help="turns of the four loops")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; several add up")
    parser.add_argument("--tiny", action="store_true", help="toy size")
    parser.add_argument("--paper", action="store_true", help="the paper's recipe instead, with its board")
    for word, kind in (("--section", str), ("--until", float)):
        parser.add_argument(word, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.output = args.output.absolute()
    if args.section or args.child:
        return _inside(args)
    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing was measured (--device cpu --tiny tries the script)", file=sys.stderr)
        return 2
    if args.paper:
        return paper(args)
    return run(args, args.only or list(SECTIONS))


if __name__ == "__main__":
    sys.exit(main())
