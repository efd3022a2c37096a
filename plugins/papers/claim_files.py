"""Claims of the papers: comparisons of numbers that a board has, read from a YAML file each."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from fedbench.core.spec import messages
from fedbench.core.spec.base import LABEL_PATTERN, Name, SpecModel, mistake
from fedbench.core.spec.document import read
from fedbench.leaderboard.statistics.scores import Population

Measure = Literal[
    "worst-auc",
    "mean-auc",
    "auc",
    "mean-tf01",
    "tf01",
    "accuracy",
    "delta-accuracy",
    "runtime",
    "attack-accuracy",
    "max-advantage",
    "finding",
    "last-loss",
]
RowLabel = Annotated[str, Field(min_length=1, max_length=120)]  # a grid's has brackets
Label = Annotated[str, Field(pattern=LABEL_PATTERN, max_length=80)]
# of plugins/papers/reference
Column = Annotated[str, Field(pattern="^(table|dataset|model|partition|case)$")]
Sentence = Annotated[str, Field(min_length=1, max_length=400)]


def _require_one(part: SpecModel, fields: tuple[str, ...]) -> None:
    present = [name for name in fields if getattr(part, name) is not None]
    if len(present) != 1:
        raise mistake(f"takes one of {', '.join(fields)}; found {', '.join(present) or 'none'}")


class Elsewhere(SpecModel):
    """Another section of the same suite, by what differs from the section at hand."""

    setting: Name | None = Field(None, description="its setting")
    coalition: str | None = Field(None, description="its coalition")
    view: str | None = Field(None, description="its view")
    attack: Label | None = Field(None, description="the attack there; by default the same")

    @property
    def name(self) -> str:
        """Differences in words."""
        return ", ".join(
            f"{field} {value}" for field, value in self.model_dump(exclude_none=True).items()
        )


class Other(SpecModel):
    """Other side of a comparison: the same quantity of other rows, attacks or groups, or in
    another section.
    """

    rows: list[RowLabel] | None = Field(None, description="labels of other rows")
    attacks: list[Label] | None = Field(None, description="other attacks on the same row")
    groups: list[Label] | None = Field(None, description="other groups of clients")
    section: Elsewhere | None = Field(None, description="the same row in another section")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Other:
        _require_one(self, tuple(Other.model_fields))
        return self


class Quantity(SpecModel):
    """A number of a board's row. AUCs and rates are against the claim's non-members; TF01, accuracy
    and delta-accuracy in percent or percentage points, attack accuracy (last round, the attack's
    own threshold) and AUC as fractions, runtime relative. ``max-advantage``: the largest TPR - FPR
    over the view's attacks and rounds, against the records' own non-members. ``last-loss``: of the
    analysis ``loss-trajectories``, mean loss (nats) in the last audited round that has one, over
    the clients that the section is about; its name is ``clean`` or ``canary``, then ``members``,
    ``inside`` or ``outside``.
    """

    measure: Measure = Field(description="which number")
    row: RowLabel = Field(description="label of the row")
    attack: Label | None = Field(
        None, description="of auc, tf01, attack-accuracy; of a finding that differs by attack"
    )
    group: Label | None = Field(None, description="attack-accuracy: of one group of clients")
    analysis: Label | None = Field(None, description="finding, last-loss: label of the analysis")
    name: str | None = Field(None, description="finding: its name; last-loss: of which samples")
    minus: str | None = Field(None, description="finding, last-loss: another name, subtracted")


class Bound(Quantity):
    """A quantity against a number that the paper prints."""

    value: float = Field(description="the number, in the quantity's unit")


class Contrast(Quantity):
    """A quantity against others of its kind."""

    than: Other = Field(description="the others: every one of them")
    slack: float = Field(
        0.0,
        description="how far on the wrong side still counts; negative: least distance on the right "
        "side",
    )


class Along(SpecModel):
    """Points of a sweep: names of settings, coalitions or rows of one suite, in the order in which
    the swept quantity grows; all else is the claim's section and the quantity's row.
    """

    settings: list[Name] | None = Field(None, min_length=3, description="of settings")
    coalitions: list[Name] | None = Field(None, min_length=3, description="of coalitions")
    rows: list[RowLabel] | None = Field(None, min_length=3, description="of rows")

    @model_validator(mode="after")
    def _is_one_kind(self) -> Along:
        _require_one(self, tuple(Along.model_fields))
        return self

    @property
    def points(self) -> list[tuple[str, str]]:
        """(field of :class:`Place` or ``row``, name) of each point."""
        ((kind, names),) = self.model_dump(exclude_none=True).items()
        return [(kind.removesuffix("s"), name) for name in names]


class Sweep(Quantity):
    """A quantity along a sweep: a direction is claimed, and no value."""

    along: Along = Field(description="the points of the sweep")


class Predicate(SpecModel):
    """Comparison of one of six kinds."""

    below: Bound | None = Field(None, description="the quantity is below a value")
    above: Bound | None = Field(None, description="the quantity is above a value")
    lower: Contrast | None = Field(
        None, description="the quantity is lower than all others, or above by less than the slack"
    )
    higher: Contrast | None = Field(
        None, description="the quantity is higher than all others, or below by less than the slack"
    )
    rises: Sweep | None = Field(
        None, description="the quantity is correlated with the order of the points, by rank"
    )
    falls: Sweep | None = Field(None, description="the same, negatively")

    @model_validator(mode="after")
    def _is_one(self) -> Predicate:
        _require_one(self, tuple(Predicate.model_fields))
        return self

    @property
    def asked(self) -> Bound | Contrast | Sweep:
        """Return the one that is given."""
        kinds = self.below, self.above, self.lower, self.higher, self.rises, self.falls
        return next(q for q in kinds if q is not None)

    @property
    def direction(self) -> int:
        """-1: small values are claimed; +1: large ones."""
        large = self.above, self.higher, self.rises
        return -1 if all(q is None for q in large) else 1


class Place(SpecModel):
    """A section of a suite's board."""

    suite: Name = Field(description="name of the suite")
    setting: Name = Field(description="name of its setting")
    coalition: str = Field(description="name of its coalition")
    view: str = Field(description="the view of its attacks")


class Printed(SpecModel):
    """Where the paper prints a claim's numbers: values of columns of
    ``plugins/papers/reference``.
    """

    table: str | None = Field(None, description="as in the reference, such as Table 1")
    dataset: str | None = Field(
        None, description="by default each one, separately; so are the following"
    )
    model: str | None = Field(None, description="the paper's name of it")
    partition: str | None = Field(None, description="how samples are distributed")
    case: str | None = Field(None, description="the coalition; undefended rows are of every case")
    defenses: dict[RowLabel, str] = Field(
        {}, description="names of our rows that this table alone has"
    )
    attacks: dict[Label, str] = Field({}, description="the same of attacks")
    than: dict[Column, str] = Field(
        {}, description="what differs where the other section of a comparison is printed"
    )


class Names(SpecModel):
    """Our labels -> the paper's names, where these differ by more than punctuation."""

    defenses: dict[RowLabel, str] = Field({}, description="of rows")
    attacks: dict[Label, str] = Field({}, description="of attacks")


class Claim(SpecModel):
    """Sentence of a paper and what must hold on a board."""

    id: Name = Field(description="unique over all papers")
    text: Sentence = Field(description="the claim in our words, one sentence")
    place: str = Field(description="where the paper makes it")
    where: list[Label] = Field(min_length=1, description="names of sections: it must hold in each")
    holds: list[Predicate] = Field(min_length=1, description="what must hold: all of it")
    nonmembers: Population | None = Field(
        None, description="of AUCs and rates, where not the paper's"
    )
    printed: list[Printed] = Field([], description="where its numbers are printed; empty: nowhere")
    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="least share of these tables that hold it; below 1 where the sentence says "
        "generally",
    )


class Paper(SpecModel):
    """All claims of one paper."""

    paper: str = Field(description="the paper's name of its method")
    nonmembers: Population = Field(description="which non-members its AUCs and rates are of")
    ours: list[Label] = Field([], description="attacks that no paper has: in no worst case or mean")
    at_scale: list[Name] = Field(
        [], description="suites with its data, model and rounds: absolute values hold there, too"
    )
    names: Names = Field(Names(), description="what plugins/papers/reference calls otherwise")
    sections: dict[str, Place] = Field(description="name -> where on which board")
    differs: dict[str, Sentence] = Field(
        description="suite -> how its settings differ from the paper's"
    )
    claims: list[Claim] = Field(min_length=1, description="in the order of the paper")

    def places(self, claim: Claim) -> list[Place]:
        """Return the sections that a claim names."""
        return [self.sections[name] for name in claim.where]

    @property
    def source(self) -> str:
        """Name of the file in ``plugins/papers/reference``."""
        return self.paper.lower().replace("-", "_")

    def suites(self, claim: Claim) -> list[str]:
        """Return the suites that a claim can be judged by, in the order of its sections."""
        return list(dict.fromkeys(p.suite for p in self.places(claim)))


@cache
def shipped_papers() -> dict[str, Paper]:
    """Name of the file -> its claims, by name."""
    folder = Path(str(files("fedbench.plugins.papers") / "claims"))
    return {path.stem: load_paper(path) for path in sorted(folder.glob("*.yaml"))}


def load_paper(path: Path) -> Paper:
    """Read a file. Raises UserError with file, line and column of everything wrong with it."""
    document = read(path)
    try:
        return Paper.model_validate(document.data)
    except ValidationError as error:
        raise document.error(messages.problems(error, Paper, document.data)) from None
