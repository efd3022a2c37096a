"""Clustered federations: the server keeps several global models and every client picks the one it trains. One method a file."""
