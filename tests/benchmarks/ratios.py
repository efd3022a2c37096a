#!/usr/bin/env python3
"""Compare ratios of benchmarks with the committed ones, never times.

    pytest -n 0 -m benchmark tests/benchmarks --benchmark-json=FILE
    python tests/benchmarks/ratios.py FILE

A ratio has moved where its median is outside the committed range, the committed median is outside
its range, and one median is more than twice the other. Exit status 1 then, unless another model of
processor gave the committed ones.
``--accept`` writes the ratios of FILE to ratios.json; those of other benchmarks stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from workloads import shown, summary

COMMITTED = Path(__file__).with_name("ratios.json")
# calm runs on one machine differ by more than the range of one run: medians of 72, 93 and 108 of
# ``test_gradient_features[mlp]``, of 15, 19 and 24 of [cnn-small]
LEAST_FACTOR = 2.0


def measured(report):
    """ "test: way / way" -> median, low, high and n, of a file of pytest-benchmark."""
    return {
        f"{benchmark['name']}: {name}": summary(values)
        for benchmark in report["benchmarks"]
        for name, values in benchmark["extra_info"].get("ratios", {}).items()
    }


def moved(now, before):
    """Whether each median is outside the other's range, and they differ by the least factor."""
    low, high = sorted((now["median"], before["median"]))
    return high > LEAST_FACTOR * low and not (
        before["low"] <= now["median"] <= before["high"]
        or now["low"] <= before["median"] <= now["high"]
    )


def main():
    """Print every ratio beside the committed one; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="written by --benchmark-json")
    parser.add_argument("--accept", action="store_true", help="commit these ratios")
    args = parser.parse_args()
    report = json.loads(args.file.read_text())
    ratios, processor = measured(report), report["machine_info"]["cpu"]["brand_raw"]
    committed = json.loads(COMMITTED.read_text())
    if args.accept:
        ratios = dict(sorted((committed["ratios"] | ratios).items()))
        document = {"processor": processor, "ratios": ratios}
        COMMITTED.write_text(json.dumps(document, indent=1) + "\n")
        return 0
    changes = 0
    for name, now in ratios.items():
        before = committed["ratios"].get(name)
        if before is None:
            print(f"new    {name}: {shown(now)}")
            continue
        change = moved(now, before)
        changes += change
        print(f"{'MOVED' if change else 'same'}  {name}: {shown(now)}, committed {shown(before)}")
    print(f"{changes} of {len(ratios)} ratios moved")
    if processor != committed["processor"]:
        print(f"measured on {processor}, committed of {committed['processor']}: not compared")
        return 0
    return min(changes, 1)


if __name__ == "__main__":
    sys.exit(main())
