"""How many rows a rule needs for the number of malicious ones it expects."""

from __future__ import annotations

from pydantic import Field

from fedbench.core import Federation, Params, ServerContext, UserError


class ExpectsMalicious(Params):
    """Params of a rule that is told how many rows may be malicious."""

    f: int | None = Field(None, ge=0, description="malicious rows to expect a round; null: as many as the federation assumes")


def expected(f: int | None, known: Federation | ServerContext) -> int:
    """``f``, or where it is None what the server was told: the federation's number. In a round less its rejected rows: they
    were among those to expect, and sending rows that are not finite must not leave a rule with too few to work on."""
    if f is None:
        return known.assumed_malicious
    rejected = known.federation.assumed_malicious - known.assumed_malicious if isinstance(known, ServerContext) else 0
    return max(0, f - rejected)


def require(rule: str, number: str, formula: str, least: int, rows: int) -> None:
    """Raise ``UserError`` when ``rows`` < ``least``; ``number``: what was expected, ``formula``: how ``least`` comes of it."""
    if rows < least:
        raise UserError(
            f"{rule} with {number} needs at least {formula} = {least} rows a round and has {rows}: "
            "expect fewer malicious clients, or let more clients take part"
        )


def require_majority(rule: str, known: Federation) -> None:
    """Raise ``UserError`` unless the federation assumes fewer malicious rows than honest ones."""
    f = known.assumed_malicious
    if f and 2 * f >= known.cohort:
        raise UserError(
            f"{rule} needs more honest than malicious rows, and {f} of {known.cohort} rows a round are assumed malicious: "
            "lower adversary.assumed, or let more clients take part"
        )
