"""Is a row on the front of privacy and accuracy, beside one other row?"""

from __future__ import annotations

from fedbench.leaderboard.statistics.claims_measures import Found


def undominated(leak: Found, accuracy: Found) -> tuple[bool, Found]:
    """(whether accuracy decides, what decides): the differences of a row from another in what it leaks and in accuracy.

    The other row dominates where the leak is higher and accuracy lower, so both must be told for that: the p-value is the larger
    of the two (an intersection-union test; Berger, Technometrics 1982). One of them on the good side is enough against it: the
    smaller p-value of those that lie there, times how many do (Bonferroni), since the better one was looked for.
    """
    sides = ((False, leak, -1), (True, accuracy, 1))
    good = [(by_accuracy, found) for by_accuracy, found, sign in sides if found.interval.mean * sign > 0]
    if not good:
        by_accuracy, found = max(((b, f) for b, f, _ in sides), key=lambda side: side[1].p)
        return by_accuracy, found
    by_accuracy, found = min(good, key=lambda side: side[1].p)
    return by_accuracy, Found(found.interval, min(1.0, len(good) * found.p))
