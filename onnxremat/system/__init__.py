"""The machine around a run: temporary files, signals, compiled kernels."""
