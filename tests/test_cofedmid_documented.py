"""What the documents say of CoFedMID is what can be set, and every open point of the paper is named where it is settled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedbench.plugins.defenses import cofedmid
from fedbench.plugins.defenses.cofedmid import CoFedMID

DOCS = Path(__file__).parents[1] / "docs" / "methods" / "client-defenses.md"
SECTION = DOCS.read_text().partition("## CoFedMID\n")[2].partition("**Reading the paper")[0]
CODE = "\n".join(path.read_text() for path in sorted(Path(cofedmid.__file__).parent.glob("*.py")))


@pytest.mark.parametrize("number", range(1, 27))
def test_each_open_point_is_named_in_the_code_that_settles_it(number):
    assert re.search(rf"\bC{number}\b", CODE)


def test_the_documented_values_of_the_tables_are_valid_and_the_first_are_the_defaults():
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in SECTION.splitlines() if line.startswith(("| CIFAR", "| Tiny"))]
    made = [CoFedMID(**{n: float(c.split()[0]) for n, c in zip(("m_max", "m_min", "sigma", "ratio"), row[1:5], strict=True)})
            for row in rows]  # fmt: skip
    assert len(made) == 3 and made[0].params == CoFedMID().params
    strengths = [(m.params.m_max, m.params.m_min, m.params.sigma, m.params.ratio) for m in made]
    assert strengths == [(0.5, 0.2, 0.1, 0.2), (1.0, 0.2, 0.1, 0.3), (1.0, 0.2, 0.01, 0.01)]  # section 5.1, in this order


def test_every_parameter_is_documented_or_says_all_in_its_description():
    named = set(re.findall(r"`([a-z_0-9]+)(?:: [^`]*)?`", SECTION))
    fields = set(CoFedMID.Params.model_fields)
    modules = {"partition", "compensation", "perturbation", "n_intervals"}  # the headings name them, and M
    assert fields - named == modules and "recycle" in named
