"""Tests of benchmarks.instruments: what they say is checked on ONNX Runtime."""
