"""Quantize trained ONNX models for NPUs."""
