"""What a run really takes: memory, time, bits, told by the runtime and by the system."""
