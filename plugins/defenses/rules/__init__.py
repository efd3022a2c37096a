"""Aggregation rules: what a server computes from the rows it receives. One rule a file, each a plain function on [K, P]."""
