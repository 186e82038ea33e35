"""ONNX Runtime: how a session is opened, what it does with order and memory, and measuring it.

`recipe` says how a session is opened, `record` is the plan's record in a file, and `session` opens
a file that carries one. Everything that executes a model does so in a process of its own (`child`).
Import the modules themselves: this package imports nothing of its own, so that a child starts
quickly.

ONNX Runtime has telemetry from 1.31 on: where it is imported it starts a thread, writes a file to
the folder for temporary files, and warns on stderr if there is no home. Nothing of that belongs to
measuring a model, or to a command that says one line: it is switched off where onnxremat is what
imports the runtime, unless the environment says otherwise.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
