"""Tests of onnxremat.runtimes: every fact claimed about ONNX Runtime is checked on it."""
