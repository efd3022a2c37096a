"""Partitions of the samples among clients, groups of clients, targets and their audit sets."""
