"""Suites that once took minutes or gigabytes, or ended in a traceback or a message that nobody could read."""

from __future__ import annotations

from good_suite import edited


def many(line: str, n: int) -> str:
    return "".join(line.format(i) for i in range(n))


# What was found by hand, and stays tried.
EXAMPLES: dict[str, str] = {
    "a list as recipe": edited(("      clients: 4\n", "      recipe: [1]\n      clients: 4\n")),
    "a mapping as recipe": edited(("      clients: 4\n", "      recipe: {a: 1}\n      clients: 4\n")),
    "a number of 900,000 digits": edited(("seeds: [0, 1]", f"seeds: [{'9' * 900_000}]")),
    "a hexadecimal number of 9,000 digits": edited(("lr: 0.1", f"lr: 0x{'f' * 9_000}")),
    "a billion clients": edited(("clients: 4", "clients: 1000000000")),
    "1e9 clients": edited(("clients: 4", "clients: 1e9")),
    "a terabyte of terabytes": edited(("attacks:", "limits: {memory_gb: 1e12}\nattacks:")),
    "a batch of 1e30": edited(("batch_size: 20", "batch_size: 1e30")),
    "a step of 1e308": edited(("lr: 0.1", "lr: 1e308")),
    "a delay of 1e30": edited(("rounds: 10", "rounds: 10\n      max_delay: 1e30")),
    "a delay of a large integer": edited(("rounds: 10", f"rounds: 10\n      max_delay: {10**30}")),
    "8,000 unknown fields": edited(("      rounds: 10\n", "      rounds: 10\n" + many("      unknown_{}: 1\n", 8_000))),
    "a range of two types": edited(("audit: {every: 5}", "adversary: {clients: 0.0}")),
    "millions of cells": edited(
        ("seeds: [0, 1]", f"seeds: {list(range(1000))}"),
        ("params: {sigma: 0.01}", f"grid: {{sigma: {[i / 1000 for i in range(1000)]}}}"),
    ),
    "millions of rows": edited(
        ("{name: grad-noise, params: {sigma: 0.01}}", "{name: grad-noise, grid: &g {sigma: [1, 2, 3, 4, 5, 6, 7, 8, 9], "
         "a: [1, 2, 3, 4, 5, 6, 7, 8, 9], b: [1, 2, 3, 4, 5, 6, 7, 8, 9]}}" + "\n  - {name: grad-noise, grid: *g}" * 500),
    ),
    "thousands of aliases": edited(("- none", "- &n {name: none, label: x}" + "\n  - *n" * 9_000)),
    "brackets without end": "[" * 400_000,
    "dashes without end": "- " * 400_000,
    "values without end": edited(("seeds: [0, 1]", f"seeds: [{'0, ' * 300_000}0]")),
    "25,000 clients twice": edited(("pair, half", f"{{name: m, clients: {[0] * 25_000}}}")),
    "a name of 900,000 letters": edited(("schema: 1", f"schema: 1\n{'x' * 900_000}: 1")),
    "a component of 900,000 letters": edited(("- none", f"- {'x' * 900_000}")),
    "direction marks": edited(("name: small", 'name: small\n"a\\u202eb\\e[2J": "\\u2066"')),
    "half a character": edited(("name: small", 'name: small\ntitle: "\\ud800"')),
}  # fmt: skip
