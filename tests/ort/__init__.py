"""Tests of onnxremat.ort: every fact claimed about ONNX Runtime is checked on it."""
