"""A suite written out again: whatever the command line, a recipe or a default gave it stands in the file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from ruamel.yaml import YAML

from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec.component import MethodUse
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.suite import SuiteSpec

_HEAD = "# As it was resolved: changes of the command line, recipes and every default are written out.\n"


def written_out(loaded: LoadedSuite, resolved: Resolved) -> str:
    """The suite as a YAML text that asks for the very same: the same settings and components, so the same keys, whatever the
    defaults of a later version are."""
    spec = loaded.spec
    content = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for shown, setting in zip(content["settings"], resolved.settings, strict=True):
        shown["dataset"], shown["model"] = _used(setting.dataset), _used(setting.model)
    floors = [use for use in resolved.defenses if use.label in resolved.floors]
    rows = resolved.defenses[: len(resolved.defenses) - len(floors)]
    content["defenses"] = list(_methods(spec.defenses, rows))
    content["floors"] = [use.name for use in floors]
    content["attacks"] = list(_methods(spec.attacks, resolved.attacks))
    own = [MethodUse(name=use.name) for use in resolved.analyses]
    content["analyses"] = list(_methods(own if spec.analyses is None else spec.analyses, resolved.analyses))
    content["signals"] = [_used(resolved.signals[use.name]) for use in spec.signals]
    order = [info.alias or name for name, info in SuiteSpec.model_fields.items()]
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.dump({name: content[name] for name in order if name in content}, out)
    return _HEAD + out.getvalue()


def _used(use: ComponentUse) -> dict[str, Any]:
    return {"name": use.name, "params": use.params}


def _methods(uses: Sequence[MethodUse], rows: Sequence[ComponentUse]) -> Iterator[dict[str, Any]]:
    """Each use as the file has it, with every parameter that all of its rows share."""
    at = 0
    for use in uses:
        mine = rows[at : at + use.n_rows]
        at += len(mine)
        shared = {name: value for name, value in mine[0].params.items() if all(row.params.get(name) == value for row in mine)}
        given = {name: value for name, value in use.params.items() if name not in shared}
        params = {name: value for name, value in shared.items() if name not in use.grid} | given
        yield {"name": use.name, "params": params} | {
            name: value
            for name, value in (("label", use.label), ("grid", use.grid), ("then", [_used(part) for part in mine[0].then]))
            if value
        }
