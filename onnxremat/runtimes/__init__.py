"""What a runtime really does: order, buffers, workspace, session settings, and measuring it.

`recipe` says how a session is opened, `rules` and `order` what ONNX Runtime then does, `inputs`
makes values to run on. Everything that executes a model (`profiling`, `measure`) does so in a
child process, `worker`, started by `process`. `record` is the plan's record in the file, and
`session` opens a file that carries one. Import the modules themselves: this package imports
nothing, so that a child starts quickly.
"""
