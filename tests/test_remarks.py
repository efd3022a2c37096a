"""What a defense says of a federation before anything is trained reaches every command and the records."""

from __future__ import annotations

from click.testing import CliRunner
from fake_packages import install
from running import changed, invoke, records

from fedbench.core.cli.validate import command as validate

TALKS = """
    from fedbench.core import Component, Defense, hookimpl

    class Talks(Defense):
        def protect(self, update, ctx):
            return update / 2
        def remarks(self, federation):
            return [f"{federation.rounds} rounds\\nare few", "P is known" if federation.n_params > 10 else "P is not known"]

    class Mumbles(Talks):
        def remarks(self, federation):
            return "few"

    class Breaks(Talks):
        def remarks(self, federation):
            raise ValueError("speechless")

    @hookimpl
    def fedbench_defenses():
        yield Component("talks", "talking:Talks", "says something")
        yield Component("mumbles", "talking:Mumbles", "says nothing of use")
        yield Component("breaks", "talking:Breaks", "fails at saying anything")
"""


def test_remarks_are_printed_by_every_command_and_kept_by_the_records_of_their_rows(site, tmp_path):
    install(site, "talking", TALKS)
    path = changed(
        tmp_path, {"audit": {"every": 4, "nonmembers": 10}}, attacks=["loss-series"],
        defenses=["none", "talks", {"name": "grad-noise", "label": "both", "then": ["talks"]}],
    )  # fmt: skip
    said = [
        CliRunner().invoke(validate, [str(path)]).output, invoke(path, "--dry-run", "--results", tmp_path / "r"),
        invoke(path, "--results", tmp_path / "r"),
    ]  # fmt: skip
    found = {who[0]: r["notes"] for who, r in records(tmp_path / "r").items()}
    assert found["none"] == []
    rounds, known = found["talks"]
    assert rounds.startswith("defense 'talks' in setting '") and rounds.endswith(" rounds are few") and "P is known" in known
    assert [note.partition("': ")[2] for note in found["both"]] == [
        f"Talks: {rounds.rpartition(': ')[2]}", "Talks: P is known"
    ]  # fmt: skip
    for output in said:
        assert all(output.count(note) == 1 for row in ("talks", "both") for note in found[row]), output


def test_remarks_that_fail_are_refused_with_the_defense_and_its_place(site, tmp_path):
    install(site, "talking", TALKS)
    path = changed(tmp_path, {}, defenses=["none", "mumbles", "breaks"], attacks=["loss-series"])
    result = CliRunner().invoke(validate, [str(path)])
    text = result.output + str(result.exception)
    assert result.exit_code != 0
    assert "Mumbles.remarks returned str; expected a list of texts" in text
    assert "defense 'breaks' (talking 1.0): ValueError: speechless" in text
