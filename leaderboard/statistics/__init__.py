"""Records to numbers: sections, rows, entries and what is computed of them. No prose and nothing of
how it is shown.
"""
