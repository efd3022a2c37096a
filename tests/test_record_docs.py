"""docs/records.md is what the classes of a record say, field by field."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from fedbench.core.store.record import Record

SCRIPT = Path(__file__).parent.parent / "docs" / "records.py"


@pytest.fixture(scope="module")
def records() -> ModuleType:
    spec = importlib.util.spec_from_file_location("records_page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_classes_say(records):
    assert records.page() == records.PAGE.read_text(encoding="utf-8"), "run python docs/records.py"


def test_every_field_of_every_class_has_its_line(records):
    lines = records.page().splitlines()
    found = records.classes()
    assert found[0] is Record and {"Components", "ComponentUse", "Score", "Measured"} <= {cls.__name__ for cls in found}
    for cls in found:
        for name in records.fields(cls):
            (line, *_) = [line for line in lines if line.startswith(f"| `{name}` |")]
            assert len(line.split(" | ")[2]) > 5


class _Other(BaseModel):
    known: int
    """what it is"""
    unknown: str


def test_a_field_without_a_meaning_and_a_page_that_differs_are_seen(records, monkeypatch, tmp_path, capsys):
    with pytest.raises(records.Undocumented, match=r"_Other\.unknown has no text under it"):
        records._section(_Other)
    monkeypatch.setattr(records, "PAGE", tmp_path / "records.md")
    records.PAGE.write_text(records.page().replace("sha256", "sha1"))
    monkeypatch.setattr("sys.argv", ["records.py", "--check"])
    assert records.main() == 1 and "run python docs/records.py" in capsys.readouterr().err
