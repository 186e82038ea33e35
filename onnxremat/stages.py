"""What a command is doing, in words, where more than the words depends on it."""

COMPILING = "compiling the planner"
"""How a stage begins that is worth telling even where progress is not shown."""

PLANNING, CHOOSING = "planning", "choosing regions to tile"
"""The stages that time limits, and that an interruption ends with the best plan so far."""
