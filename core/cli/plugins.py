"""`fedbench list`, `plugins` and `new`: installed components, plugins, and a new package."""

from __future__ import annotations

import shlex
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from fedbench.core.cli.options import examples, json_option
from fedbench.core.cli.output import say, say_json, show_table
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import ask_each, plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.component import RegisteredComponent, is_here
from fedbench.core.registry.components import PluginStatus, Registry
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.words import one_line
from fedbench.suites import shipped_suites, title_of

_KINDS = {plural: kind for kind, plural in PLURAL.items()}
_PARAM_COLUMNS = ("name", "type", "default", "range", "description")
_SUITE_COLUMNS = ("name", "title")
_DATASET_COLUMNS = ("name", "summary", "licence", "size_mb", "here", "citation")
_FACTS = ("licence", "citation", "home", "size_mb")


@click.command(
    "list",
    epilog=examples(
        "fedbench list",
        "fedbench list defenses --params",
        "fedbench list suites",
        "fedbench list attacks --json",
    ),
)
@click.argument("section", required=False, type=click.Choice([*_KINDS, "suites"]))
@click.option("--params", is_flag=True, help="Also their parameters; this imports them.")
@json_option
def list_(section: str | None, params: bool, as_json: bool) -> None:
    """List the installed defenses, attacks, analyses, datasets, models, signals and reports, and
    the shipped suites.
    """
    if section == "suites" and params:
        raise click.UsageError("suites have no parameters: leave out --params")
    registry = Registry.discover()
    sections = {}
    for name, kind in _KINDS.items():
        if section in (None, name):
            facts = section == "datasets"
            sections[name] = _entries(registry.components(kind), params, facts)
    if section in (None, "suites") and not params:
        sections["suites"] = [
            {"name": name, "title": title_of(path), "path": str(path)}
            for name, path in shipped_suites().items()
        ]
    if as_json:
        say_json(sections)
    else:
        for name, entries in sections.items():
            if not section:
                say(f"\n{name}")
            _show(entries, params)
    if registry.broken:
        say(f"{len(registry.broken)} broken plugin(s): see `fedbench plugins`", err=True)


def _entries(
    components: list[RegisteredComponent], params: bool, facts: bool
) -> list[dict[str, Any]]:
    """Return one entry a component.

    Args:
        params: also its parameters, which imports it in a separate process.
        facts: also what only the class of a dataset knows, which imports it, too.
    """

    def ask(registered: RegisteredComponent) -> dict[str, Any]:
        answer = {}
        if facts:
            dataset = registered.load()
            answer = {name: getattr(dataset, name) for name in _FACTS}
            answer["here"] = is_here(dataset, str(registered))
        if params:
            answer["params"] = _params(registered)
        return answer

    entries = []
    for registered in components:
        component = registered.component
        entries.append(
            {
                "name": component.name,
                "summary": component.summary,
                "paper": component.paper,
                "package": registered.distribution,
                "version": registered.version,
                "target": component.target,
            }
        )
    if params or facts:
        for entry, answer in zip(entries, ask_each(components, ask), strict=True):
            entry |= {"error": str(answer.error)} if answer.error else answer.get()
    return entries


def _params(registered: RegisteredComponent) -> list[dict[str, str]]:
    """Return the rows of a component's parameters."""
    from fedbench.core.spec.schema import parameters

    params = registered.load().Params
    with at_work(f"{registered}: its Params", plugin_limits()):
        rows = list(parameters(params))
    return [dict(zip(_PARAM_COLUMNS, map(one_line, row), strict=True)) for row in rows]


def _show(entries: list[dict[str, Any]], params: bool) -> None:
    """Print the entries as a table; errors of those that fail go to standard error."""
    columns: tuple[str, ...] = ("name", "summary", "paper", "package", "version")
    for special in (_SUITE_COLUMNS, _DATASET_COLUMNS):
        if any(special[-1] in entry for entry in entries):
            columns = special
    rows = [[entry.get(name, "") for name in columns] for entry in entries]
    if params:
        columns = ("component", *_PARAM_COLUMNS)
        rows = []
        for entry in entries:
            own_rows = entry.get("params") or [{"name": "-", "description": "no parameters"}]
            for row in own_rows:
                rows.append([entry["name"], *(row.get(name, "") for name in _PARAM_COLUMNS)])
    show_table(columns, rows)
    for entry in entries:
        if "error" in entry:
            say(entry["error"], err=True)


# -- plugins ---------------------------------------------------------------------------------------


@click.command(
    epilog=examples("fedbench plugins", "fedbench plugins | grep BROKEN", "fedbench plugins --json")
)
@json_option
def plugins(as_json: bool) -> None:
    """Show every installed plugin: its package, version, what it provides, and why it does not
    work.

    A package becomes a plugin by an entry point of the group `fedbench` that names a module with
    hooks: fedbench_defenses, fedbench_attacks, fedbench_analyses, fedbench_datasets,
    fedbench_models, fedbench_signals, fedbench_reports, and fedbench_events, which takes what a run
    tells. A broken plugin only stops suites that use what it should have provided.

    Every package is loaded in a process of its own, which is ended after FEDBENCH_PLUGIN_SECONDS
    (default 60) of CPU time, or as many without any sign of life; the same holds wherever a
    plugin's class is imported, made or asked, with 30 and 5 times as many where it loads data or
    writes a report.
    """
    registry = Registry.discover()
    if as_json:
        statuses = [_status(plugin) for plugin in registry.plugins]
        say_json({"plugins": statuses, "clashes": list(map(str, registry.clashes))})
        return
    rows = [
        (p.entry_point, p.distribution, p.version, "ok" if p.ok else "BROKEN", _provides(p))
        for p in registry.plugins
    ]
    show_table(("plugin", "package", "version", "status", "provides"), rows)
    for plugin in registry.broken:
        say(f"BROKEN {plugin}: {plugin.reason}")
    for clash in registry.clashes:
        say(f"CLASH {clash}")


def _status(plugin: PluginStatus) -> dict[str, Any]:
    return {
        "plugin": plugin.entry_point,
        "package": plugin.distribution,
        "version": plugin.version,
        "ok": plugin.ok,
        "reason": plugin.reason,
        "provides": [{"kind": c.kind, "name": c.name} for c in plugin.components],
        "events": plugin.listener is not None,
    }


def _provides(plugin: PluginStatus) -> str:
    counts = Counter(component.kind for component in plugin.components)
    words = [f"{n} {kind if n == 1 else PLURAL[kind]}" for kind, n in counts.items()]
    if plugin.listener is not None:
        words.append("takes events")
    return ", ".join(words) or "nothing"


# -- new -------------------------------------------------------------------------------------------

_NEW_KINDS = ("defense", "attack", "dataset", "model", "signal", "analysis")


@click.command(
    epilog=examples(
        "fedbench new defense my-defense",
        "fedbench new attack my-attack --into ~/work",
    )
)
@click.argument("kind", type=click.Choice(_NEW_KINDS), metavar=f"{{{'|'.join(_NEW_KINDS)}}}")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=".",
    metavar="FOLDER",
    help="Write the package's folder into this one (default: here).",
)
def new(kind: str, name: str, into: Path) -> None:
    """Write a package of your own: an installable fedbench-NAME with a working method to replace.

    It holds the announcement, the method with its parameters, tests of the contract and of the
    method's property, a suite that shows it beside built-in ones in under a minute, a README, a
    licence note in the name of git's user, and a CI workflow. All of it works as written. An
    existing folder is never touched.
    """
    from fedbench.core.scaffold import (
        author_of_git,
        names_of,
        package_files,
        refuse_existing,
        refuse_taken,
        write_folder,
    )

    names = names_of(kind, name)
    target = into.expanduser() / names.distribution
    files = package_files(names, author_of_git(), version(DISTRIBUTION))
    refuse_existing(target)
    refuse_taken(names, Registry.discover())
    write_folder(target, files)
    say(f"wrote {target}, {len(files)} files:")
    for path in files:
        say(f"  {path}")
    say("next:")
    say(f"  cd {shlex.quote(str(target))}")
    say("  pip install -e '.[test]' && pytest")
    say(f"  fedbench run suites/{names.name}.yaml")
