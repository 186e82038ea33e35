"""What ONNX Runtime does with memory, emulated without running anything."""
