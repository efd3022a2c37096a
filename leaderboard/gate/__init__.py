"""The regression gate: what a results folder says, kept in a small file, and what changed since."""
