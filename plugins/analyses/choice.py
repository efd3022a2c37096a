"""Choice of each defense's strengths on the tuning seeds."""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.core.report import RowSummary, Section

_ROUNDING = 1e-9  # tolerance: a mean equal to the limit must not fall below it by rounding


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Strengths of one ``family`` on the tuning seeds, and the labels of two of them; None where
    none qualifies.
    """

    family: str
    strengths: tuple[RowSummary, ...]
    matched: str | None
    best: str | None

    @classmethod
    def chosen(cls, tuning: Section, within: float) -> list[Strengths]:
        """Choose strengths of each family on the section ``tuning`` alone.

        ``matched``: the lowest worst-case AUC among the strengths with a mean delta-accuracy of at
        least ``-within`` points. ``best``: the largest :meth:`area`. A strength qualifies if all
        its cells have scores on the tuning seeds; ties go to the more accurate one, then to the
        first label.
        """
        families = tuning.families().items()
        return [cls._of_family(name, labels, tuning, within) for name, labels in families]

    @classmethod
    def unknown(cls, family: str) -> Strengths:
        """Entry of a defense without a run of a tuning seed."""
        return cls(family=family, strengths=(), matched=None, best=None)

    @classmethod
    def _of_family(
        cls, name: str, labels: tuple[str, ...], tuning: Section, within: float
    ) -> Strengths:
        summaries = [tuning.summary(label) for label in sorted(labels)]
        strengths = [s for s in summaries if s is not None]
        matched: list[tuple[float, float, str]] = []
        best: list[tuple[float, float, str]] = []
        for s in strengths:
            if s.complete and s.worst is not None and s.accuracy is not None:
                order = -cls.accuracy(s), s.label
                best.append((-cls.area(s), *order))
                delta = s.delta_accuracy
                if delta is not None and 100 * delta.mean >= -within - _ROUNDING:
                    matched.append((cls.advantage(s), *order))
        return cls(
            family=name,
            strengths=tuple(strengths),
            matched=min(matched)[-1] if matched else None,
            best=min(best)[-1] if best else None,
        )

    @staticmethod
    def advantage(row: RowSummary) -> float:
        """2 AUC - 1 of the worst case, cut to [0, 1]."""
        assert row.worst is not None
        return min(1.0, max(0.0, 2 * row.worst.mean - 1))

    @staticmethod
    def accuracy(row: RowSummary) -> float:
        """Mean test accuracy, a fraction."""
        assert row.accuracy is not None
        return row.accuracy.mean

    @staticmethod
    def area(row: RowSummary) -> float:
        """(1 - advantage) x accuracy: the hypervolume of the one point (advantage, test error) with
        the reference (1, 1).

        FedMIA's measure of a front (CVPR 2025, appendix, definition 1), for a front of one point:
        it needs no weight between privacy and utility.
        """
        return (1 - Strengths.advantage(row)) * Strengths.accuracy(row)
