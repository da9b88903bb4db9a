"""Models as graphs: reading, writing, naming and running them. Built on onnx_ir; nothing here knows of quantization."""
