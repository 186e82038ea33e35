"""Orders without repetitions: the smallest peak, proved, and fast ones."""
