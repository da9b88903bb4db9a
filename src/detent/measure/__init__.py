"""What quantization cost: the quantized model beside the float one."""
