"""JSON schemas of written files: those that fedbench wrote fit; one more field, or one less, does
not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from boards import Folder
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[1]
BOARDS = {path.stem: path for path in (ROOT / "leaderboard" / "boards").glob("*.json")}
SMALL = "ifca_world"


def check(words_of, kind, content, *places):
    """Check a file's content, and that the objects at these places have no other fields."""
    schema = json.loads(words_of("schema", kind))
    Draft202012Validator.check_schema(schema)
    assert f"/schemas/{kind}-" in schema["$id"]
    validator = Draft202012Validator(schema)
    assert [error.message[:200] for error in validator.iter_errors(content)] == []
    for place in (content, *places):
        place["other"] = 0
        assert not validator.is_valid(content)
        del place["other"]
    del content["digest"]
    assert not validator.is_valid(content)


def test_records_fit_their_schema(words_of, tmp_path):
    folder = Folder(tmp_path, {"none": 1.0})
    folder.add("none", "fedmia-ii", 0)
    path = folder.add("none", "loss-series", 0, outcome="failed", reason="out of memory")
    content = json.loads(path.read_text())
    cells = content["cells"]
    assert [cell["outcome"] for cell in cells] == ["ok", "failed"]
    check(words_of, "record", content, content["run"], *cells, cells[0]["targets"][0])


def test_the_committed_baseline_fits_its_schema(words_of):
    content = json.loads((ROOT / ".ci" / "baseline.json").read_text())
    check(words_of, "baseline", content, content["cells"][0])


def test_a_committed_board_fits_its_schema(words_of):
    content = json.loads(BOARDS[SMALL].read_text())
    check(words_of, "board", content, content["rows"][0], content["cells"])


@pytest.mark.slow
def test_all_committed_boards_fit_their_schema(words_of):
    validator = Draft202012Validator(json.loads(words_of("schema", "board")))
    contents = {name: json.loads(path.read_text()) for name, path in BOARDS.items()}
    assert {name for name in contents if not validator.is_valid(contents[name])} == set()
