"""Scripts written for AMD Quark, vai_q_onnx and onnxruntime's quantizer, run on Detent.

    detent run quantize.py --model_input float.onnx        the script as it is

`quark`, `vai_q_onnx` and `onnxruntime_quantization` hold the names that such scripts import; the other modules are the
translation: `translate` turns a configuration into a Recipe, `options` says of every option what becomes of it.
"""
