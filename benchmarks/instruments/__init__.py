"""Instruments that only benchmarks use: hard caps on the arena, and what a session with default
options will take, predicted. Each is tested as the package is, in `tests/benchmarks`."""
