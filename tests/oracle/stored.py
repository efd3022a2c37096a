"""The stored oracle: one line a component in `oracle.json`, and what moved since it was made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle.reading import Numbers

# names the folder where the workers of pytest-xdist leave what they found
PARTS = "FEDBENCH_ORACLE_PARTS"
FILE = Path(__file__).parent / "oracle.json"
# Between CPU types: rounding grows in training, and a changed order moves an AUC by one pair.
RELATIVE, ABSOLUTE = 0.02, 0.005
# Rounding also changes which update is the median or which model a client joins, and then all
# numbers of that run; with AVX2 in place of AVX-512 up to a tenth of a suite's numbers. AMD's
# AVX-512 in place of Intel's moves up to a quarter of two suites of CIFAR-10.
SHARE = 0.15
SHARE_OF = {"papers/ifca_mir_trajectory": 0.27, "papers/membershield_cifar10_vgg": 0.27}


@dataclass(frozen=True)
class Moved:
    """A component with other numbers than the oracle's; ``by``: the largest difference of its
    values, None of words or sizes.
    """

    component: str
    kind: str
    by: float | None
    now: tuple[float, ...]

    def __str__(self) -> str:
        apart = "is new, gone or of another size" if self.by is None else f"by {self.by:.3g}"
        return f"{self.component}: {self.kind} " + (
            "other bits, the same values" if self.by == 0 else apart
        )


def load() -> dict[str, dict[str, Any]]:
    """Suite -> ``made`` (CPU type and versions) and ``numbers`` (component -> kind -> digest and
    values).
    """
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def save(content: dict[str, dict[str, Any]]) -> None:
    """Write the file, one line a component, so that a change of numbers is readable as a change of
    lines.
    """
    suites = []
    for suite in sorted(content):
        made, numbers = json.dumps(content[suite]["made"]), content[suite]["numbers"]
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in sorted(numbers.items())
        )
        suites.append(f'{json.dumps(suite)}: {{"made": {made}, "numbers": {{\n{lines}\n}}}}')
    FILE.write_text("{\n" + ",\n".join(suites) + "\n}\n")


def as_json(made: dict[str, str], found: Numbers) -> dict[str, Any]:
    """One suite's entry."""
    entries = {
        name: {
            kind: [part.digest, *(f"{v:.6g}" for v in part.values)] for kind, part in parts.items()
        }
        for name, parts in found.items()
    }
    return {"made": made, "numbers": entries}


def moved(
    stored: dict[str, Any], made: dict[str, str], found: Numbers, share: float = SHARE
) -> list[Moved]:
    """What differs: bit by bit where CPU type and versions are those of the oracle.

    Elsewhere beyond the tolerance, and nothing where that is no more than ``share`` of the suite's
    numbers.
    """
    same_bits = stored["made"] == made
    apart = list(_moved(stored["numbers"], as_json(made, found)["numbers"], same_bits))
    few = share * sum(len(parts) for parts in found.values())
    return apart if same_bits or len(apart) > few else []


def _moved(stored: dict[str, Any], found: dict[str, Any], same_bits: bool) -> Iterator[Moved]:
    for name in sorted(stored.keys() | found.keys()):
        before, now = stored.get(name, {}), found.get(name, {})
        for kind in sorted(before.keys() | now.keys()):
            old, new = before.get(kind, []), now.get(kind, [])
            apart = difference(old[1:], new[1:])
            if old != new if same_bits else beyond(old, new):
                yield Moved(name, kind, apart, tuple(map(float, new[1:])))


def difference(old: list[str], new: list[str]) -> float | None:
    """The largest absolute difference of two lists of values; None where they are not as many."""
    return (
        max((abs(float(a) - float(b)) for a, b in zip(old, new, strict=True)), default=0.0)
        if len(old) == len(new)
        else None
    )


def beyond(old: list[str], new: list[str]) -> bool:
    """Whether two parts differ by more than rounding: words, such as outcomes, by any
    difference.
    """
    if len(old) != len(new) or not old:
        return True
    if len(old) == 1:
        return old[0] != new[0]
    pairs = [(float(a), float(b)) for a, b in zip(old[1:], new[1:], strict=True)]
    return not all(math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in pairs)
