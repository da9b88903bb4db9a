"""`dump_model`: the codes of every quantized value for one sample, as files, to compare bit by bit with a device.

A value becomes `NAME.bin`, its codes in row order, and `NAME.txt`, the same as one number per line. Codes are what a
QuantizeLinear (of any domain) writes and what a DequantizeLinear reads from a constant; a FixNeuron holds both in one,
so its codes are its output divided by its scale. With `dump_float`, every float value is written too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from detent.compat.readers import RandomDataReader
from detent.errors import DataError, ModelError
from detent.graph.load import ModelLike, name_of, read
from detent.graph.session import Runner
from detent.graph.values import constant

Array = npt.NDArray[Any]


def dump_model(
    model_input: ModelLike,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: str | Path = "./dump_results",
) -> None:
    """Run the quantized model on the reader's first sample (random numbers without one) and write its values."""
    model = read(model_input)
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feeds = reader.get_next()
    if feeds is None:
        raise DataError("dump_model: the data reader has no sample to run the model on.")
    codes = _written_codes(model)
    constants = _constant_codes(model)
    if not codes and not constants and not dump_float:
        raise ModelError(f"{name_of(model_input)} is not quantized: there are no codes to dump. Give dump_float=True.")
    fetched = list(dict.fromkeys([*codes, *(_float_values(model) if dump_float else ())]))
    values = (
        dict(zip(fetched, Runner(model, fetched)(dict(feeds), "the dumped sample"), strict=True)) if fetched else {}
    )
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for name, scale in codes.items():
        _write(folder, name, values[name] if scale is None else np.rint(values[name] / scale).astype(np.int8))
    for name, array in constants.items():
        _write(folder, name, array)
    if dump_float:
        for name in _float_values(model):
            _write(folder / "float", name, values[name])


def _written_codes(model: ir.Model) -> dict[str, Array | None]:
    """The values that hold codes, and for those that hold code times scale, the scale."""
    found: dict[str, Array | None] = {}
    for node in model.graph:
        if node.op_type.endswith("QuantizeLinear") and node.op_type != "DynamicQuantizeLinear":
            found[str(node.outputs[0].name)] = None
        elif node.op_type == "FixNeuron" and node.inputs[1] is not None:
            found[str(node.outputs[0].name)] = constant(node.inputs[1])
    return found


def _constant_codes(model: ir.Model) -> dict[str, Array]:
    readers = (node for node in model.graph if node.op_type.lower().endswith("dequantizelinear"))
    sources = (node.inputs[0] for node in readers)
    return {str(value.name): array for value in sources if value is not None and (array := constant(value)) is not None}


def _float_values(model: ir.Model) -> list[str]:
    values = (value for node in model.graph for value in node.outputs)
    return [str(value.name) for value in values if value.name and value.dtype in (ir.DataType.FLOAT, None)]


def _write(folder: Path, name: str, array: Array) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]", "_", name)
    array.tofile(folder / f"{stem}.bin")
    np.savetxt(folder / f"{stem}.txt", array.reshape(-1), fmt="%d" if array.dtype.kind in "iu" else "%.9g")
