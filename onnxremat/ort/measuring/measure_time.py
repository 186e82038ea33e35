"""The time that measuring may take, and what has which share of it.

Some runs have to be made: one with a profile, one whose heap peak is counted, of each model that is
compared. Everything else that is measured repeats those runs or looks into them; it is begun only
if it is expected to end in time.
"""

MEASURE_SECONDS = 60.0
"""How long measuring a model may take, unless the user says how long."""

PROFILE_SHARE, HEAP_SHARE = 0.25, 0.5
"""Of a model that is learned: for repeated profiled runs, and for counting its heap by node."""

PEAK_SHARE, TIMES_SHARE = 0.125, 0.5
"""For repeated runs whose heap peak is counted, of each of two models, and for comparing their
times."""
