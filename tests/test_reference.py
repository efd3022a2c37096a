"""The reference says what the code says, has a place for everything, and its examples run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fake_packages import install
from ruamel.yaml import YAML
from running import invoke, outcomes, records, suite
from tiny import tiny_setup, train_all

from fedbench.core import Defense, MemberContext, UserError
from fedbench.core.cli.main import cli
from fedbench.core.contract.hooks import Hooks
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.answering import answered
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import HOOKS
from fedbench.core.spec.resolve import load_and_check

DOCS = Path(__file__).parent.parent / "docs"
PAGES = DOCS / "reference"


@pytest.fixture
def reference(monkeypatch) -> Any:
    """``docs/reference.py`` as a module of this test's own."""
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("reference_script", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", ["reference.py", "--check"])
    return module


def examples(page: Path, language: str = "python") -> list[str]:
    """Blocks of code that stand on a page by themselves, not in what is made of the code."""
    text = re.sub(r"<!-- made:.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# --- it is up to date and complete


def test_the_pages_are_what_the_code_says(reference, capsys):
    assert reference.main() == 0, capsys.readouterr().err


def test_every_hook_and_every_phase_has_a_page_of_its_own():
    for folder, names in (("hooks", [n for n in vars(Hooks) if not n.startswith("_")]), ("phases", PHASES)):
        assert {p.stem for p in (PAGES / folder).glob("*.md")} == set(names)


@pytest.fixture
def copy(reference, tmp_path, monkeypatch) -> Path:
    """The pages in a folder of their own, to be spoilt."""
    import shutil

    shutil.copytree(PAGES, tmp_path / "reference")
    monkeypatch.setattr(reference, "PAGES", tmp_path / "reference")
    return tmp_path / "reference"


@pytest.mark.parametrize(("page", "old", "new", "complaint"), [
    ("hooks/fedbench_attacks.md", None, None, "docs/reference/hooks/fedbench_attacks.md: no block 'hook fedbench_attacks'"),
    ("phases/protect.md", None, None, "docs/reference/phases/protect.md: no block 'phase protect'"),
    ("phases/protect.md", "made: phase protect", "made: phase protekt", "there is no phase 'protekt'"),
    ("phases/protect.md", "update: torch.Tensor, ctx", "ctx", "phases/protect.md is not what the code says"),
    ("suite.md", "learning rate of round 1", "a number", "suite.md is not what the code says"),
    ("classes/model.md", "made: method Model.build", "made: method Model.make", "Model has no public method 'make'"),
    ("contexts.md", "made: class Layer", "made: clas Layer", "unknown block 'clas'"),
    ("contexts.md", "<!-- end -->\n\n## Of a defense", "\n\n## Of a defense", "a block is not closed"),
    ("contexts.md", "made: class MemberContext", "made: class Layer", "no page has 'class MemberContext'"),
])  # fmt: skip
def test_a_page_that_is_gone_or_differs_is_a_mistake(reference, copy, capsys, page, old, new, complaint):
    if old is None:
        (copy / page).unlink()
    else:
        text = (copy / page).read_text()
        assert old in text
        (copy / page).write_text(text.replace(old, new, 1))
    assert reference.main() == 1
    assert complaint in capsys.readouterr().err


def test_a_page_of_a_hook_that_is_gone_is_a_mistake(reference, copy, capsys):
    gone = "fedbench_codecs"
    (copy / "hooks" / f"{gone}.md").write_text(f"# {gone}\n")
    assert reference.main() == 1
    assert f"docs/reference/hooks/{gone}.md: there is no such hook" in capsys.readouterr().err


def test_a_field_that_no_docstring_names_is_a_mistake(reference):
    from dataclasses import dataclass

    import reference_parts

    @dataclass
    class Bare:
        """Something with ``named``."""

        named: int
        unsaid: int

    reference_parts.CONTEXTS["Bare"] = Bare
    try:
        with pytest.raises(reference_parts.Mistake, match="the docstring of Bare says nothing of 'unsaid'"):
            reference_parts.class_block("Bare")
    finally:
        del reference_parts.CONTEXTS["Bare"]


def test_writing_makes_the_pages_anew(reference, copy, monkeypatch):
    page = copy / "phases" / "loss.md"
    right = page.read_text()
    page.write_text(right.replace("exclusive", "every"))
    monkeypatch.setattr("sys.argv", ["reference.py"])
    assert reference.main() == 0 and page.read_text() == right


# --- the examples run


def defense_of(code: str) -> type[Defense]:
    """The defense that an example makes."""
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec", dont_inherit=True), space)
    (found,) = (v for v in space.values() if isinstance(v, type) and issubclass(v, Defense) and v is not Defense)
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_the_example_of_a_phase_is_called_in_it_and_changes_something(phase):
    (code,) = examples(PAGES / "phases" / f"{phase}.md")
    cls = defense_of(code)
    assert cls.__doc__ and phase in vars(cls)
    calls: list[int] = []
    original = getattr(cls, phase)

    def counted(self, *args):
        calls.append(len(args))
        return original(self, *args)

    setattr(cls, phase, counted)
    n_models = cls.n_models
    plain, _ = train_all(tiny_setup(Defense(), n_models=n_models))
    defended, _ = train_all(tiny_setup(cls(), n_models=n_models))
    same = torch.equal(plain.models, defended.models)
    assert same == (phase in ("report", "answer"))  # which say something of a run, or to whoever asks, and change nothing
    logits = torch.tensor([[1.234, -0.5, 3.0]])
    assert torch.equal(answered(defended, 0, logits), logits) == (phase != "answer")
    facts = defended.facts()
    assert facts == ({"bytes sent": 6 * 4 * plain.models.shape[1]} if phase == "report" else {})
    assert calls


def test_the_example_of_the_helpers_uses_them():
    (code,) = examples(PAGES / "contexts.md")
    cls = defense_of(code)
    federation, _ = train_all(tiny_setup(cls()))
    assert federation.parties.memory(0)["steps"] > 0
    assert "ctx.gradient(" in code and "ctx.per_sample_gradients(" in code


def test_the_examples_of_params_and_check():
    (rounded,) = examples(PAGES / "classes" / "component.md")
    (pairs,) = examples(PAGES / "classes" / "defense.md")
    train_all(tiny_setup(defense_of(rounded)(way="down")))
    train_all(tiny_setup(defense_of(pairs)()))
    with pytest.raises(UserError, match="an even number of clients, found 3"):
        train_all(tiny_setup(defense_of(pairs)(), clients=tiny_setup().clients[:3]))


HOOK_PAGES = {name: examples(PAGES / "hooks" / f"{name}.md")[0] for name in HOOKS.values()}
CLASS_PAGES = {p.stem: examples(p)[0] for p in sorted((PAGES / "classes").glob("*.md")) if "@hookimpl" in p.read_text()}


def module_of(code: str) -> str:
    """The module that an example announces its classes in."""
    (name,) = set(re.findall(r'"(\w+):\w+"', code))
    return name


@pytest.fixture
def all_installed(site) -> dict[str, str]:
    """Every example that announces something, each as a package of its own."""
    pages = {**HOOK_PAGES, **CLASS_PAGES}
    for code in pages.values():
        install(site, module_of(code), code)
    return pages


def test_the_examples_of_hooks_and_classes_are_found_and_sound(all_installed):
    registry = Registry.discover()
    assert [str(p) for p in registry.broken] == []
    theirs = {module_of(code) for code in all_installed.values()}
    found = {kind: [c for c in registry.components(kind) if c.distribution in theirs] for kind in HOOKS}
    assert all(found.values())
    for components in found.values():
        for component in components:
            assert component.load().__doc__


def test_the_examples_run_together_in_a_suite_and_make_their_reports(all_installed, tmp_path):
    federation = {"clients": 4, "rounds": 2, "batch_size": 20, "optimizer": {"lr": 0.1}}
    passive = {"coalitions": ["pair"], "defenses": ["half-update"], "audit": {"nonmembers": 40}, "federation": federation}
    path = suite(
        tmp_path, coalitions=["none"], defenses=["none", "half-update"],
        attacks=["first-loss", "learnt-loss", "tempered-last", "boost"], analyses=["how-many", "loss-spread"],
        settings=[
            {"name": "rings", "dataset": "rings", "model": "one-layer", **passive,
             "attacks": ["first-loss", "learnt-loss", "tempered-last"]},
            {"name": "wide", "dataset": "rings", "model": "wide", **passive, "attacks": ["first-loss"]},
            {"name": "stripes", "dataset": "stripes", "federation": federation, "defenses": ["none"], "attacks": ["boost"],
             "adversary": {"mask_set": 10}, "audit": {"targets": "honest", "members": 20, "nonmembers": 20}},
        ],
    )  # fmt: skip
    invoke(path, "--results", tmp_path / "r")
    assert outcomes(tmp_path / "r") == dict.fromkeys(("first-loss", "learnt-loss", "tempered-last", "boost"), ("ok", ""))
    learnt = records(tmp_path / "r")["half-update", "learnt-loss", 0]
    assert learnt["analyses"]["how-many"]["numbers"]["members"]["value"] == 2
    assert set(learnt["analyses"]["loss-spread"]["arrays"]) == {"loss"} and learnt["targets"][0]["decision"]
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "The spread is over the clients of rings." in board
    made = CliRunner().invoke(cli, ["leaderboard", str(tmp_path / "r"), "--report", "count", "--report", "outcomes"])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "r" / "leaderboard" / "count.txt").read_text() == "5 records\n"
    assert "half-update,learnt-loss,ok" in (tmp_path / "r" / "leaderboard" / "outcomes.csv").read_text()


# --- the suite of the reference


def test_the_example_suite_is_valid_and_names_every_field(tmp_path, reference):
    import reference_parts

    (text,) = examples(PAGES / "suite.md", "yaml")
    (tmp_path / "example.yaml").write_text(text)
    load_and_check(tmp_path / "example.yaml", Registry.discover())
    words = set(re.findall(r"\w+", text))
    fields = {name: set(model.model_fields) for name, model in reference_parts.SPECS.items()}
    rare = {  # what excludes another field of the example, has no other value than its default, or is a way to say the same
        "weight_order", "local_batches", "betas", "keep_state", "bias", "min_samples", "align_nonmembers", "members_from",
        "schema_version", "case", "validation_on",
    }  # fmt: skip
    assert {f for names in fields.values() for f in names} - words == rare


def test_the_example_suite_fits_the_schema_of_editors():
    import json

    from jsonschema import Draft202012Validator

    (text,) = examples(PAGES / "suite.md", "yaml")
    schema = json.loads((DOCS.parent / "suites" / "suite.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(YAML(typ="safe").load(text))) == []


# --- ctx.gradient


def test_gradient_is_that_of_the_loss_in_the_order_of_the_parameters():
    seen: dict[str, torch.Tensor] = {}

    class Looks(Defense):
        """Keeps both."""

        def local_step(self, batch, ctx: MemberContext):
            if "ours" not in seen:
                self.loss(ctx.model(batch.x), batch, ctx).backward()
                seen["torch"] = torch.cat([p.grad.reshape(-1) for p in ctx.model.parameters()])
                seen["ours"] = ctx.gradient(self.loss(ctx.model(batch.x), batch, ctx))
                first = next(ctx.model.parameters())
                seen["part"] = ctx.gradient(first.sum())
            return None

    train_all(tiny_setup(Looks(), rounds=1))
    assert torch.equal(seen["torch"], seen["ours"]) and seen["ours"].abs().sum() > 0
    assert seen["part"][:24].eq(1).all() and seen["part"][24:].eq(0).all()  # 6 x 4 weights of the first layer


def test_a_defense_made_of_gradients_trains_as_the_standard_way_does():
    class Same(Defense):
        """The gradient that the engine would have taken."""

        def local_step(self, batch, ctx):
            return ctx.gradient(self.loss(ctx.model(batch.x), batch, ctx))

    plain, same = (train_all(tiny_setup(d))[0].models for d in (Defense(), Same()))
    assert torch.equal(plain, same)
