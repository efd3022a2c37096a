"""Aggregation rules: what a server computes from the rows it receives, each a plain function on [K,
P].
"""
