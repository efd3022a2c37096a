"""Parameters of the data sets that are merged and split by seed."""

from __future__ import annotations

from pydantic import Field, field_validator

from fedbench.core import Params as Base


class Resplit(Base):
    """Train, test and hold-out are drawn from all samples, disjoint, each class keeping its share in every split."""

    train: int | None = Field(
        None, ge=1, description="training samples, drawn by seed, each class keeping its share; null: all that is left"
    )
    test: int | float = Field(0.25, gt=0, description="test samples, clean labels; a count, or a share of all below 1")
    holdout: int | float = Field(
        0.25, gt=0, description="outside non-members, never trained on; a count, or a share of all below 1"
    )
    label_noise: float = Field(0.0, ge=0, le=1, description="share of mislabelled canaries in train and hold-out, as a fraction")

    @field_validator("test", "holdout")
    @classmethod
    def _count_or_share(cls, value: int | float) -> int | float:
        if isinstance(value, float) and value >= 1:
            raise ValueError(f"{value} is neither a whole number of samples nor a share below 1")
        return value
