"""How to read a board, for somebody who opens it first."""

from __future__ import annotations

from fedbench.core.contract.board import Note, Words

READING = Note((
    Words(
        "How to read it: an attack's AUC is the chance that it ranks a member above a non-member; 0.5 is guessing. TF01 is the\n"
        "share of members it finds, in percent, while 0.1 % of the non-members are called members. The adversary has a data set\n"
        "of its own: the sign of a score, and which attack is the worst case, are chosen on the other seeds' federations and\n"
        "judged on the one at hand, so without a leak both are 0.5. Non-members are from outside the federation. Only attacks\n"
        "that beat chance on the undefended run count. "
    ),
    Words("±", "code"),
    Words(
        " and brackets are 95 % intervals: the widest of resampling the\ncandidates, Student's t over seeds x targets and over "
        "seeds; none is too narrow for the largest of all attacks. Lower is better; "
    ),
    Words("bold", "strong"),
    Words(
        " is lower than every other defense with\nsignificance. A range of ranks holds all places that paired tests leave open "
        "(Holm); a row with scores missing has no rank. "
    ),
    Words("free-rider", "code"), Words(" (members upload nothing) and "), Words("placebo", "code"),
    Words(
        " (members train plainly in another\norder) are floors: what does not differ from them is no effect. Delta-accuracy is "
        "paired with the undefended run of the same\nseed, in percentage points of test accuracy, with the variance of training; "
        "runtime is training CPU time relative to that\nrun (n/a across machines and on busy ones). docs/method.md says how each "
        "of these is made."
    ),
))  # fmt: skip
