"""The regression gate: baseline files, and the table of what changed since one."""
