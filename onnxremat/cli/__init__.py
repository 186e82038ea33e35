"""The command line: options, progress, results as text and JSON."""
