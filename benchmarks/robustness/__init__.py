"""Damage on purpose: the backend suite, mutants, kills and environments (`python -m` this).

    backend, mutants, kills, environments -> Line -> table

Each part yields `Line`s: what was tried, how often, and what did not hold. `processes` starts the
product, in forks of a process that has imported it or as a process of its own, and says how it
ended; `direct` runs models in ONNX Runtime without the product.
"""

import os

TELEMETRY = "ORT_DISABLE_TELEMETRY"
os.environ.setdefault(TELEMETRY, "1")
"""For this process; what it starts as processes of their own has to see to it itself."""
