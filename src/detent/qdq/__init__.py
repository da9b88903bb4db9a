"""Quantizing operators of all tools: which families there are, how to read them from a graph, how to write them.

families.py          the table of operators, and questions to a node
reader.py            what a node quantizes with: scale, zero point, codes
float_network.py     the float network inside a quantized model, and the codes of its values
builder.py           nodes of a family, written into a graph
functions.py         model-local functions for operators that ONNX does not have, with
                     function_body.py, block_functions.py
"""
