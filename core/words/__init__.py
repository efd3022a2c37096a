"""Sentences for people: the nearest good name, one line about an exception."""
