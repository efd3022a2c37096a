"""From a dataset to clients and audit sets."""
