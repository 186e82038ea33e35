"""Local search over schedules with repetitions, compiled: what several planners share."""
