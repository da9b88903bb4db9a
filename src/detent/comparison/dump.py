"""Write a model's values to files: its outputs for every sample, or for one sample the codes of every quantized value.

Codes are for a comparison with a device, bit by bit. A value becomes `NAME.bin`, its codes in row order, and
`NAME.txt`, the same as one number per line. Codes are what a QuantizeLinear (of any domain) writes and what a
DequantizeLinear reads from a constant; a FixNeuron does both at once, so its codes are its output divided by its scale.
The device has int8 operands, so uint8 codes around 128 are written as the int8 numbers that they stand for. With
`floats`, every float value is written too, into the folder `float`.

onnxruntime computes the values, without integer kernels, which saturate on some CPUs. With a rounding, the integer
emulator does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from detent.emulator.emulator import Emulator
from detent.errors import ModelError, UsageError
from detent.evaluation.candidate import AnyModel, Candidate
from detent.evaluation.dataset import open_dataset
from detent.execute.inference import Batch, map_in_order
from detent.execute.output_folder import OutputFolder, file_stems, new_folder
from detent.graph.load import ModelLike, name_of, read
from detent.graph.session import DEFAULT_PROVIDERS, Feeds, Runner
from detent.graph.values import constant, input_at
from detent.numerics.rounding import DeviceRounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent

INFER_STAGE = "infer"
FLOAT_FOLDER = "float"

Parts = tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]]
"""The codes that a run computes, the codes of constants, and float values."""


@dataclass(frozen=True)
class Dump:
    """What was written. `codes` and `floats` map the name of each file, without extension, to that of its value."""

    folder: str
    origin: str
    activations: int
    constants: int
    codes: Mapping[str, str]
    floats: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def dump_codes(
    model: ModelLike,
    feeds: Feeds,
    folder: Path,
    *,
    floats: bool = False,
    rounding: DeviceRounding | None = None,
    origin: str = "the dumped sample",
    overwrite: bool = False,
) -> Dump:
    """Run a quantized model on one sample and write its values into `folder`, all or none; see `new_folder`."""
    if floats and rounding is not None:
        raise UsageError("--float writes what onnxruntime computes, which has one rounding: leave --rounding out.")
    if rounding is None:
        codes, constants, numbers = _from_onnxruntime(model, feeds, floats, origin)
    else:
        codes, constants, numbers = _emulated(model, feeds, rounding, origin)
    with new_folder(folder, overwrite=overwrite) as results:
        written = _write_all(results, {**codes, **constants})
        numbered = _write_all(results / FLOAT_FOLDER, numbers) if floats else {}
    return Dump(str(folder), origin, len(codes), len(constants), written, numbered)


def _emulated(model: ModelLike, feeds: Feeds, rounding: DeviceRounding, origin: str) -> Parts:
    emulator = Emulator(model, rounding=rounding)
    constants = {name: _signed(array) for name, array in emulator.constants.items()}
    return {name: _signed(array) for name, array in emulator.codes(feeds, origin).items()}, constants, {}


def _from_onnxruntime(model: ModelLike, feeds: Feeds, floats: bool, origin: str) -> Parts:
    graph_model = read(model)
    scales, constants = _written_codes(graph_model), _constant_codes(graph_model)
    if not scales and not constants and not floats:
        raise ModelError(
            f"{name_of(model)} is not quantized: there are no codes to dump. Quantize it, or give --float"
            " for its float values."
        )
    wanted = _float_values(graph_model) if floats else []
    fetched = list(dict.fromkeys([*scales, *wanted]))
    runner = Runner(graph_model, fetched, exact=True) if fetched else None
    values = {} if runner is None else dict(zip(fetched, runner(feeds, origin), strict=True))
    centred = _around_128(graph_model)
    codes = {
        name: (_signed(values[name]) if name in centred else values[name])
        if scale is None
        else np.rint(values[name] / scale).astype(np.int8)
        for name, scale in scales.items()
    }
    constants = {name: _signed(array) if name in centred else array for name, array in constants.items()}
    return codes, constants, {name: values[name] for name in wanted}


def _signed(codes: Array) -> Array:
    """Return uint8 codes around 128 as the int8 numbers that they stand for; others as they are."""
    return (codes.astype(np.int16) - 128).astype(np.int8) if codes.dtype == np.uint8 else codes


def _written_codes(model: ir.Model) -> dict[str, Array | None]:
    """Map each value that holds codes to None, and each that holds code times scale to its scale."""
    found: dict[str, Array | None] = {}
    for node in model.graph:
        if node.op_type.endswith("QuantizeLinear") and node.op_type != "DynamicQuantizeLinear":
            found[str(node.outputs[0].name)] = None
        elif node.op_type == "FixNeuron" and node.inputs[1] is not None:
            found[str(node.outputs[0].name)] = constant(node.inputs[1])
    return found


def _around_128(model: ir.Model) -> set[str]:
    """Return the uint8 codes, computed or constant, whose zero point is 128."""
    found = set()
    for node in (node for node in model.graph if node.op_type.endswith("uantizeLinear")):
        zero = constant(input_at(node, 2))
        if zero is not None and zero.dtype == np.uint8 and (zero == 128).all():
            codes = node.outputs[0] if node.op_type.endswith("QuantizeLinear") else node.inputs[0]
            found.add(str(codes.name) if codes is not None else "")
    return found


def _constant_codes(model: ir.Model) -> dict[str, Array]:
    readers = (node for node in model.graph if node.op_type.lower().endswith("dequantizelinear"))
    sources = (node.inputs[0] for node in readers)
    return {str(value.name): array for value in sources if value is not None and (array := constant(value)) is not None}


def _float_values(model: ir.Model) -> list[str]:
    values = (value for node in model.graph for value in node.outputs)
    return [str(value.name) for value in values if value.name and value.dtype in (ir.DataType.FLOAT, None)]


def _write_all(folder: Path, arrays: Mapping[str, Array]) -> dict[str, str]:
    """Write two files for each value. Return the names of the files, without extension, and of the values."""
    folder.mkdir(exist_ok=True)
    stems = file_stems(list(arrays))
    for stem, array in zip(stems, arrays.values(), strict=True):
        np.ascontiguousarray(array).tofile(folder / f"{stem}.bin")
        np.savetxt(folder / f"{stem}.txt", array.reshape(-1), fmt="%d" if array.dtype.kind in "iu" else "%.9g")
    return dict(zip(stems, arrays, strict=True))


def save_outputs(
    model: AnyModel,
    data: Any,
    out: Path,
    *,
    preprocess: PreprocessOptions | None = None,
    limit: int | None = None,
    batch: int | None = None,
    threads: int = 0,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    progress: Progress = silent,
) -> list[Path]:
    """Run the model on all samples and write its outputs into the new folder `out`. Return the files."""
    candidate = Candidate(model, providers)
    dataset = open_dataset(data, candidate.inputs, labels=None, preprocess=preprocess, limit=limit, batch=batch)

    def run(batch: Batch) -> dict[str, Array]:
        return candidate(batch.pending.load())

    files: list[str] = []
    with new_folder(out) as folder:
        writer = OutputFolder(folder)
        progress(INFER_STAGE, 0, dataset.batches)
        for done, (item, outputs) in enumerate(map_in_order(run, dataset, threads), 1):
            for name, each in zip(item.names, item.split(outputs), strict=True):
                files += writer.save(each, name)
            progress(INFER_STAGE, done, dataset.batches)
    return [out / file for file in files]
