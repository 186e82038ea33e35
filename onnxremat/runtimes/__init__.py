"""What a runtime really does: order, buffers, workspace, session settings, and measuring it.

`recipe` says how a session is opened, `rules` what ONNX Runtime then does with buffers, `inputs`
makes values to run on. Everything that executes a model (`profiling`, `measure`) does so in a
child process, `worker`, started by `process`. `record` is the plan's record in the file, and
`session` opens a file that carries one. Import the modules themselves: this package imports
nothing of its own, so that a child starts quickly.

ONNX Runtime has telemetry from 1.31 on: where it is imported it starts a thread, writes a file to
the folder for temporary files, and warns on stderr if there is no home. Nothing of that belongs to
measuring a model, or to a command that says one line: it is switched off where onnxremat is what
imports the runtime, unless the environment says otherwise.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
