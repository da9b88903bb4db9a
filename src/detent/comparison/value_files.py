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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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
from detent.numerics.ties import DeviceRounding
from detent.observe.preprocess import PreprocessOptions
from detent.observe.samples import Array
from detent.progress import Progress, silent
from detent.qdq.families import is_fix_neuron, quantize_family
from detent.qdq.reader import LinearParams, dequantized, params_of
from detent.results import Result

INFER_STAGE = "infer"
FLOAT_FOLDER = "float"

Parts = tuple[Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]]
"""The codes that a run computes, the codes of constants, and float values."""


@dataclass(frozen=True)
class Dump(Result):
    """What was written. `codes` and `floats` map the name of each file, without extension, to that of its value."""

    not_in_json: ClassVar[tuple[str, ...]] = ("source",)

    folder: str
    origin: str
    activations: int
    constants: int
    codes: Mapping[str, str]
    floats: Mapping[str, str]
    source: str = ""


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
    return Dump(str(folder), origin, len(codes), len(constants), written, numbered, name_of(model))


def _emulated(model: ModelLike, feeds: Feeds, rounding: DeviceRounding, origin: str) -> Parts:
    emulator = Emulator(model, rounding=rounding)
    constants = {name: _signed(array) for name, array in emulator.constants.items()}
    return {name: _signed(array) for name, array in emulator.codes(feeds, origin).items()}, constants, {}


def _from_onnxruntime(model: ModelLike, feeds: Feeds, floats: bool, origin: str) -> Parts:
    graph_model = read(model)
    found = _find_codes(graph_model)
    if not found.computed and not found.constants and not floats:
        raise ModelError(
            f"{name_of(model)} is not quantized: there are no codes to dump. Quantize it, or give --float"
            " for its float values."
        )
    wanted = _float_values(graph_model) if floats else []
    fetched = list(dict.fromkeys([*found.computed, *wanted]))
    runner = Runner(graph_model, fetched, exact=True) if fetched else None
    values = {} if runner is None else dict(zip(fetched, runner(feeds, origin), strict=True))
    codes = {
        name: values[name] if params is None else np.rint(values[name] / params.scale).astype(params.dtype)
        for name, params in found.computed.items()
    }
    codes, constants = (
        {name: _signed(array) if name in found.around_128 else array for name, array in each.items()}
        for each in (codes, found.constants)
    )
    return codes, constants, {name: values[name] for name in wanted}


def _signed(codes: Array) -> Array:
    """Return uint8 codes around 128 as the int8 numbers that they stand for; others as they are."""
    return (codes.astype(np.int16) - 128).astype(np.int8) if codes.dtype == np.uint8 else codes


@dataclass(frozen=True)
class _Codes:
    """The values of a model that hold codes; parameters where a value is code times scale, as after a FixNeuron."""

    computed: dict[str, LinearParams | None] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    around_128: set[str] = field(default_factory=set)


def _find_codes(model: ir.Model) -> _Codes:
    found = _Codes()
    for node in model.graph:
        if is_fix_neuron(node):
            found.computed[str(node.outputs[0].name)] = params_of(node)
            continue
        entry = dequantized(node)
        if entry is not None and entry.stored is not None:
            found.constants[str(entry.codes.name)] = entry.stored
        elif quantize_family(node) is not None:
            found.computed[str(node.outputs[0].name)] = None
        elif entry is None:
            continue
        codes = node.outputs[0] if entry is None else entry.codes
        params = params_of(node) if entry is None else entry.params
        if params is not None and params.dtype == np.uint8 and (params.zero_point == 128).all():
            found.around_128.add(str(codes.name))
    return found


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
