"""Tiny federations for tests, where everybody's conformance checks have them."""

from fedbench.testing.tiny import OPTIMIZER, tiny_clients, tiny_federation, tiny_insider, tiny_module, tiny_setup, train_all

__all__ = ["OPTIMIZER", "tiny_clients", "tiny_federation", "tiny_insider", "tiny_module", "tiny_setup", "train_all"]
