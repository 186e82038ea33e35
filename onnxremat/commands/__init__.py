"""One module a command: what it does, from files to a result."""
