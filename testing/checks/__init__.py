"""The checks: functions of a subject that return, or raise what `fedbench.testing.results` defines."""
