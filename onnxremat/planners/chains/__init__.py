"""Chains of stages and lower sets: dynamic programs for training graphs."""
