"""Which strength of each defense is taken, told from the tuning seeds alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.contract.section import Section, Standing

_ROUNDING = 1e-9  # a mean of differences that is the bar itself does not fall below it by its last digit


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Of one ``family``: its ``strengths`` as they stand on the tuning seeds, and the labels of two of them: ``matched`` and
    ``best``, each None where none can be taken."""

    family: str
    strengths: tuple[Standing, ...]
    matched: str | None
    best: str | None

    @classmethod
    def chosen(cls, tuning: Section, within: float) -> list[Strengths]:
        """One a family, by ``tuning`` and nothing else; ``within``: points of accuracy that a matched strength may lose.

        ``matched``: the lowest worst case AUC among the strengths whose mean delta-accuracy is at least ``-within`` points.
        ``best``: the largest :meth:`area`. A strength counts if every cell of it has scores on the tuning seeds; of two that are
        alike the more accurate one is taken, then the first by label.
        """
        return [cls._of_family(family.name, family.labels, tuning, within) for family in tuning.families()]

    @classmethod
    def unknown(cls, family: str) -> Strengths:
        """Of a defense without a run of a tuning seed."""
        return cls(family=family, strengths=(), matched=None, best=None)

    @classmethod
    def _of_family(cls, name: str, labels: tuple[str, ...], tuning: Section, within: float) -> Strengths:
        strengths = tuple(s for label in sorted(labels) if (s := tuning.standing(label)) is not None)
        known = [s for s in strengths if s.complete and s.worst is not None and s.accuracy is not None]
        near = [s for s in known if s.delta_accuracy is not None and 100 * s.delta_accuracy.mean >= -within - _ROUNDING]
        matched = min(near, key=lambda s: (cls.advantage(s), -cls.accuracy(s), s.label), default=None)
        best = min(known, key=lambda s: (-cls.area(s), -cls.accuracy(s), s.label), default=None)
        return cls(
            family=name, strengths=strengths, matched=matched.label if matched else None, best=best.label if best else None
        )

    @staticmethod
    def advantage(standing: Standing) -> float:
        """2 AUC - 1 of the worst case, in [0, 1]; an AUC below one half is the noise of a row that tells nothing."""
        assert standing.worst is not None
        return min(1.0, max(0.0, 2 * standing.worst.mean - 1))

    @staticmethod
    def accuracy(standing: Standing) -> float:
        """Mean test accuracy, a fraction."""
        assert standing.accuracy is not None
        return standing.accuracy.mean

    @staticmethod
    def area(standing: Standing) -> float:
        """(1 - advantage) x accuracy: the hypervolume of the one point (advantage, test error) with the reference (1, 1).

        What FedMIA (CVPR 2025, appendix, definition 1) measures a front by, of a front of one: no weight between privacy and
        utility has to be chosen, and neither guessing (accuracy near 0) nor leaking everything (advantage 1) is worth anything.
        """
        return (1 - Strengths.advantage(standing)) * Strengths.accuracy(standing)
