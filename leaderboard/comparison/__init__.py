"""Compare two sets of records: the gate, reproductions and merges are three uses of it.

*Matched*: cells by their names (setting, coalition, defense, attack, view, adversary), seeds within
a cell, and samples within a seed where both sides have scores. A cell or seed of one side alone is
missing or new.

*Compared exactly*: identities, where a difference in data or protocol makes a cell not comparable
and one in code is named; and digests of scores, where equal ones are the same bits.

*Compared with a tolerance*: AUC, TF01 and test accuracy of every cell. The tolerance is a floor or
the half-width of the change's interval, whichever is larger, at a level corrected for the number of
comparisons. Other fields of records (facts, history, findings) are compared by ``fields.py``.

*Results*: one row a number with its verdict. The gate pools the seeds of a cell, compares with a
baseline file and prints a table. A reproduction compares two records of one key target by target,
with paired errors, and prints one verdict a record.
"""
