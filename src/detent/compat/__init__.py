"""Scripts written for AMD Quark, vai_q_onnx and onnxruntime's quantizer, run on Detent.

    detent run quantize.py --model_input float.onnx        the script as it is
    from detent.compat.quark.onnx import ModelQuantizer    the same names, without `detent run`

Data: `tool_names` (modules and names of the tools), `enums`, `data_types`, `algorithms`, `configs`, `tools`, and
`table`, which says what becomes of every option. Code: `finder` serves the names, `entry_points` has what scripts call,
and `translate` turns a configuration into a Recipe.
"""

from detent.compat.finder import serve

serve()
