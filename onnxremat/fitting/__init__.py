"""From a limit to a plan that keeps it where it is measured."""
