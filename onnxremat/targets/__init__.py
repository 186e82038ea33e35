"""Where a rewritten model will run: one module a target (the table is `onnxremat.target_table`)."""
