"""Sequences to learn from."""
