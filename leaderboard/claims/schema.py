"""A file of claims as types: what can be asked of a board's rows, and where. ``load.py`` reads it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from fedbench.core.spec.base import LABEL_PATTERN, Name, SpecModel, all_shown, mistake

Measure = Literal[
    "worst-auc", "mean-auc", "auc", "worst-tf01", "mean-tf01", "tf01", "accuracy", "delta-accuracy", "runtime",
    "attack-accuracy", "finding", "fact", "last-loss",
]  # fmt: skip
MEASURES: tuple[str, ...] = get_args(Measure)
OF_AN_ATTACK = ("auc", "tf01", "attack-accuracy")  # an attack must be named
LEAKS = ("worst-auc", "mean-auc", "auc", "worst-tf01", "mean-tf01", "tf01")  # what attacks find: the lower, the more private
LOSSES = tuple(f"{part} {side}" for part in ("clean", "canary") for side in ("members", "inside", "outside"))
_FIELDS = {  # field -> the measures that may have it
    "attack": (*OF_AN_ATTACK, "finding"), "group": ("attack-accuracy",), "analysis": ("finding", "last-loss"),
    "name": ("finding", "fact", "last-loss"), "minus": ("finding", "last-loss"),
}  # fmt: skip
_NEEDED = {
    **dict.fromkeys(("finding", "last-loss"), ("analysis", "name")), "fact": ("name",),
    **dict.fromkeys(OF_AN_ATTACK, ("attack",)),
}  # fmt: skip
_MOST = 100
RowLabel = Annotated[str, Field(min_length=1, max_length=120)]  # a grid's has brackets
Label = Annotated[str, Field(pattern=LABEL_PATTERN, max_length=80)]
Sentence = Annotated[str, Field(min_length=1, max_length=400)]


class Elsewhere(SpecModel):
    """Another section of the same suite, by what differs from the section at hand."""

    setting: Name | None = Field(None, description="its setting")
    coalition: str | None = Field(None, max_length=80, description="its coalition")
    view: str | None = Field(None, max_length=80, description="its view")
    attack: Label | None = Field(None, description="the attack to look at there; by default the same")

    @model_validator(mode="after")
    def _is_another(self) -> Elsewhere:
        if self.setting is None and self.coalition is None and self.view is None:
            raise mistake("names no other section: give a setting, a coalition or a view")
        return self


class Other(SpecModel):
    """What a row is compared with: the same quantity of other rows, attacks or groups, or in another section."""

    rows: list[RowLabel] | None = Field(None, min_length=1, max_length=_MOST, description="labels of other rows")
    tuned: Literal[True] | None = Field(None, description="of a quantity with chosen: every other tuned defense of the section")
    attacks: list[Label] | None = Field(None, min_length=1, max_length=_MOST, description="other attacks on the same row")
    groups: list[Label] | None = Field(None, min_length=1, max_length=_MOST, description="other groups of clients")
    section: Elsewhere | None = Field(None, description="the same row in another section")

    @model_validator(mode="after")
    def _is_one_thing(self) -> Other:
        given = [name for name in Other.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise mistake(f"takes one of {', '.join(Other.model_fields)}; found {', '.join(given) or 'none'}")
        return self


class Quantity(SpecModel):
    """A number of a board's row. AUCs and rates are against outside non-members; TF01, accuracy and delta-accuracy in
    percent or percentage points, attack accuracy (last round, the attack's own threshold) and AUC as fractions,
    runtime relative. ``last-loss``: of the analysis ``loss-trajectories``, mean loss (nats) in the last audited round
    that has one, over the clients that the section is about."""

    measure: Measure = Field(description="which number")
    row: RowLabel = Field(description="label of the row; with chosen, name of the defense")
    chosen: Literal["matched", "best"] | None = Field(
        None, description="rows are defenses, each at the strength that the tuning seeds choose, as in the analysis tuned"
    )
    attack: Label | None = Field(None, description="of auc, tf01, attack-accuracy; of a finding that differs by attack")
    group: Label | None = Field(None, description="attack-accuracy: of one group of clients")
    analysis: Label | None = Field(None, description="finding, last-loss: label of the analysis")
    name: str | None = Field(None, min_length=1, max_length=80, description="finding, fact: its name; last-loss: whose loss")
    minus: str | None = Field(None, min_length=1, max_length=80, description="finding, last-loss: another name, taken off")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Quantity:
        for field in _NEEDED.get(self.measure, ()):
            if getattr(self, field) is None:
                raise mistake(f"measure {self.measure} needs {field}")
        for field, measures in _FIELDS.items():
            if getattr(self, field) is not None and self.measure not in measures:
                raise mistake(f"measure {self.measure} takes no {field}: only {', '.join(measures)} do")
        for name in (self.name, self.minus) if self.measure == "last-loss" else ():
            if name not in (None, *LOSSES):
                raise mistake(f"measure last-loss is of {', '.join(LOSSES)}; found '{name}'")
        return self


class Bound(Quantity):
    """A quantity against a number that the paper prints."""

    value: float = Field(ge=-1e9, le=1e9, description="the number, in the quantity's unit")


class Contrast(Quantity):
    """A quantity against others of its kind."""

    than: Other = Field(description="the others: every one of them")
    slack: float = Field(0.0, ge=0, le=1e9, description="how far on the wrong side still counts, from the paper's own numbers")

    @model_validator(mode="after")
    def _can_be_varied(self) -> Contrast:
        if self.than.attacks is not None and self.attack is None:
            raise mistake(f"measure {self.measure} is of no single attack, so other attacks are no comparison")
        if self.than.groups is not None and self.group is None:
            raise mistake("names no group that others could be compared with")
        if self.than.tuned and self.chosen is None:
            raise mistake("tuned defenses have several strengths: say under chosen which one is compared")
        if self.chosen is not None and self.than.rows is None and self.than.tuned is None:
            raise mistake("with chosen, a defense is compared with rows, or with tuned ones")
        own = (("rows", self.row), ("attacks", self.attack), ("groups", self.group))
        for field, mine in own:
            if mine in (getattr(self.than, field) or ()):
                raise mistake(f"'{mine}' is compared with itself")
        return self


class Undominated(Contrast):
    """A leak held against others together with accuracy: none of them has the lower leak and the higher accuracy at
    once."""

    @model_validator(mode="after")
    def _is_a_leak_of_rows(self) -> Undominated:
        if self.measure not in LEAKS:
            raise mistake(f"measure {self.measure} is no leak: accuracy is held against {', '.join(LEAKS)}")
        if self.than.rows is None and self.than.tuned is None:
            raise mistake("rows dominate rows: compare with rows, or with tuned ones")
        if self.slack:
            raise mistake("takes no slack: it has two quantities, and one number is no slack of both")
        return self


class Predicate(SpecModel):
    """One of five comparisons."""

    below: Bound | None = Field(None, description="the quantity is below a value")
    above: Bound | None = Field(None, description="the quantity is above a value")
    lower: Contrast | None = Field(None, description="the quantity is lower than all others, or above by less than the slack")
    higher: Contrast | None = Field(None, description="the quantity is higher than all others, or below by less than the slack")
    undominated: Undominated | None = Field(
        None, description="against each other row the quantity, a leak, is lower or accuracy is higher: the row is on their front"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Predicate:
        given = [name for name in Predicate.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise mistake(f"takes one of {', '.join(Predicate.model_fields)}; found {', '.join(given) or 'none'}")
        return self

    @property
    def asked(self) -> Bound | Contrast:
        """The one that is given."""
        return next(q for q in (self.below, self.above, self.lower, self.higher, self.undominated) if q is not None)

    @property
    def direction(self) -> int:
        """-1: small values are claimed; +1: large ones."""
        return 1 if self.above is not None or self.higher is not None else -1


class Place(SpecModel):
    """A section of a suite's board."""

    suite: Name = Field(description="name of the suite")
    setting: Name = Field(description="name of its setting")
    coalition: str = Field(min_length=1, max_length=80, description="name of its coalition")
    view: str = Field(min_length=1, max_length=80, description="the view of its attacks")


class Claim(SpecModel):
    """One sentence of a paper and what must hold on a board."""

    id: Name = Field(description="unique over all papers")
    text: Sentence = Field(description="the claim in our words, one sentence")
    place: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="where the paper makes it")
    where: list[Label] = Field(min_length=1, max_length=_MOST, description="names of sections: it must hold in each")
    holds: list[Predicate] = Field(min_length=1, max_length=_MOST, description="what must hold: all of it")

    @field_validator("text", "place")
    @classmethod
    def _shown(cls, text: str) -> str:
        return all_shown(text)


class Paper(SpecModel):
    """All claims of one paper."""

    paper: Annotated[str, Field(min_length=1, max_length=80)] = Field(description="what the paper calls its method")
    sections: dict[str, Place] = Field(max_length=_MOST, description="name -> where on which board")
    differs: dict[str, Sentence] = Field(max_length=_MOST, description="suite -> what its settings differ in from the paper's")
    claims: list[Claim] = Field(min_length=1, max_length=1000, description="in the order of the paper")

    @field_validator("paper")
    @classmethod
    def _shown(cls, text: str) -> str:
        return all_shown(text)

    def places(self, claim: Claim, suite: str | None = None) -> list[Place]:
        """The sections that a claim names, of all suites or of one."""
        return [p for name in claim.where if (p := self.sections[name]) and suite in (None, p.suite)]

    def suites(self, claim: Claim) -> list[str]:
        """The suites that a claim can be judged by, in the order of its sections."""
        return list(dict.fromkeys(p.suite for p in self.places(claim)))
