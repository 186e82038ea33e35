"""Retention intervals and stages in constraint programming, and proofs of time."""
