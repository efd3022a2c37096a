"""Every shipped suite at toy scale, and the main one at full scale, give the stored scores,
metrics, facts and board tables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from oracle.reading import Numbers, read
from oracle.stored import PARTS, SHARE, SHARE_OF, as_json, load, moved
from oracle.toys import toy

from fedbench.core.cli.main import cli
from fedbench.suites import shipped_suites

# the longest first, so that the last worker does not end long after the others
LONGEST = [
    "poisoning",
    "cross_threats",
    "tuned_baselines",
    "partial_defense",
    "partial_defense_location30",
    "overfitting",
]
SUITES = sorted(
    shipped_suites(),
    key=lambda name: (LONGEST.index(name) if name in LONGEST else len(LONGEST), name),
)
FULL = "partial_defense at full scale"


def run(suite: Path | str, results: Path, *options: str) -> tuple[dict[str, str], Numbers]:
    """Versions and numbers of a run."""
    ended = CliRunner().invoke(
        cli, ["run", str(suite), "--results", str(results), "--no-plots", *options]
    )
    assert ended.exit_code == 0, ended.output
    return read(results)


def check(name: str, made: dict[str, str], found: Numbers, renew: bool) -> None:
    """Compare with the stored numbers; with ``renew`` keep the new ones for the end of the
    session.
    """
    stored = load().get(name, {"made": made, "numbers": {}})
    share = SHARE_OF.get(name, SHARE)
    changed = [f"{name}: {part}" for part in moved(stored, made, found, share)]
    if renew:
        content = {"suite": name, "entry": as_json(made, found), "moved": changed}
        (Path(os.environ[PARTS]) / f"{name.replace('/', '-')}.json").write_text(json.dumps(content))
    else:
        assert not changed, "\n".join(
            ["moved (write the oracle anew with --renew if they should):", *changed[:60]]
        )


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_gives_the_numbers_of_the_oracle(
    name: str, images: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    suite = toy(name, images, tmp_path)
    check(
        name,
        *run(suite, tmp_path / "results", "--workers", "1"),
        request.config.getoption("--renew"),
    )


@pytest.mark.slow
@pytest.mark.nightly
def test_the_main_suite_gives_the_numbers_of_the_oracle_at_full_scale(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Digests alone: after 60 rounds other rounding gives another model, so other CPU types have
    nothing to compare with.
    """
    made, found = run("partial_defense", tmp_path / "results")
    renew = request.config.getoption("--renew")
    stored = load().get(FULL)
    if not renew and stored and stored["made"] != made:
        pytest.skip(f"the oracle has the bits of {stored['made']}; this is {made}")
    check(
        FULL,
        made,
        {
            name: {kind: part.bare() for kind, part in parts.items()}
            for name, parts in found.items()
        },
        renew,
    )
