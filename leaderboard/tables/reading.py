"""How to read a board, for somebody who opens it first."""

from __future__ import annotations

from fedbench.core.contract.board import Note, Words

READING = Note((
    Words(
        "How to read it: an attack's AUC is the chance that it ranks a member above a non-member; 0.5 is guessing. TF01 is the\n"
        "share of members it finds, in percent, while at most 0.1 % of the non-members are called members; "
    ),
    Words("n/a", "code"), Words(" with fewer than\n1,000 non-members. "), Words("±", "code"),
    Words(
        " is the half-width of a 95 % interval over seeds x targets (from 5 of them on, and never narrower\n"
        "than what resampling members and non-members gives; with fewer, that alone). Lower is better; "
    ),
    Words("bold", "strong"),
    Words(
        " is the lowest\ncomplete cell of a column. Rows are ranked by their worst case over the attacks; a row with scores "
        "missing has no rank.\nDelta-accuracy is paired with the undefended run of the same seed, in percentage points of test "
        "accuracy; runtime is\ntraining CPU time relative to that run (n/a across different machines)."
    ),
))  # fmt: skip
