"""Quantizing as the other tools' entry points do it: a configuration, a model, and data from a reader or a path."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

import detent
from detent.compat.configs import AnyConfig, Config, QConfig, QuantizationConfig
from detent.compat.option_kinds import Request
from detent.compat.readers import RandomDataReader
from detent.compat.translate import translate
from detent.convert.conversion import parse_steps
from detent.convert.step import ConversionNotes
from detent.errors import UsageError
from detent.graph.load import ModelLike, load, read
from detent.graph.save import check_output, save
from detent.pipeline.job import Job, make_job
from detent.qdq.functions import add_functions

if TYPE_CHECKING:
    from detent.results.quantized import Report


class ModelQuantizer:
    """Quark's quantizer: `ModelQuantizer(config).quantize_model(model, output, reader)`."""

    def __init__(self, config: AnyConfig) -> None:
        if not isinstance(config, (Config, QConfig, QuantizationConfig)):
            raise UsageError(f"ModelQuantizer takes a Config or a QConfig, found {type(config).__name__}.")
        self.config = config

    def quantize_model(
        self,
        model_input: ModelLike,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
        algorithms: Any = None,
    ) -> onnx.ModelProto | None:
        """Quantize `model_input` and write it to `model_output`; without one, return the model."""
        if algorithms:
            raise UsageError("algorithms: list them in QConfig(algo_config=[...]).")
        data = one_of(calibration_data_reader, calibration_data_path)
        return quantize_with(self.config, model_input, model_output, data)


def one_of(reader: Any, path: str | Path | None) -> Any:
    """The data, which may come as a reader or as a path."""
    if reader is not None and path is not None:
        raise UsageError(f"calibration_data_path is {path}, and there is a calibration_data_reader too. Give one.")
    return path if reader is None else reader


def quantize_with(config: AnyConfig, model: ModelLike, output: str | Path | None, data: Any) -> onnx.ModelProto | None:
    """Quantize as the configuration says. Data is a reader, a path or None for random numbers."""
    request = translate(config)
    later = bool(request.conversions) or _overwrites(output, model)
    if later and output is not None:
        check_output(Path(output))  # before the work, not after it
    report = _quantize(request, model, None if later else output, data)
    result = report.model
    if later and result is not None:
        result = _converted(result, request.conversions, None if output is None else Path(output))
    if request.external_data and output is not None:
        move_tensors_out(Path(output))
    if request.summary:
        sys.stdout.write(f"{report}\n")
    return result if output is None else None


def _overwrites(output: str | Path | None, model: ModelLike) -> bool:
    """Whether the result takes the place of the float model, which other tools allow."""
    if output is None or isinstance(model, onnx.ModelProto):
        return False
    return Path(output).exists() and Path(output).samefile(model)


def _converted(proto: onnx.ModelProto, steps: tuple[str, ...], output: Path | None) -> onnx.ModelProto:
    """The quantized model after more steps, written where that was asked for. A step may find nothing to do."""
    model = read(proto)
    for name, step in parse_steps(steps) if steps else ():
        model = step.apply(model, ConversionNotes(name))
    add_functions(model)
    if output is not None:
        save(model, output)
    return ir.to_proto(model)


def _quantize(request: Request, model: ModelLike, output: str | Path | None, data: Any) -> Report:
    kept = request.statistics
    known = kept is not None and kept.exists()
    data = _data(request, model, data)
    request = request.replace(exclude=(*request.exclude, *_matching(request.patterns, model)), patterns=())
    if request.search is not None:
        data = _readable_again(data)
        request = request.replace(recipe=request.search.run(_job(request, model, data)).recipe, search=None)
    return detent.quantize(
        model,
        output,
        data,
        request.recipe,
        include=request.include,
        exclude=request.exclude,
        start=request.start,
        end=request.end,
        fix_shape=request.fix_shapes,
        limit=request.limit,
        hold_out="beyond",
        threads=request.threads,
        providers=request.providers,
        stats=kept if known else None,
        save_stats=None if known else kept,
    )


def _job(request: Request, model: ModelLike, data: Any) -> Job:
    """What a search is told: the same as the quantization after it."""
    return make_job(
        model,
        data,
        request.recipe,
        include=request.include,
        exclude=request.exclude,
        start=request.start,
        end=request.end,
        fix_shape=request.fix_shapes,
        limit=request.limit,
        hold_out="beyond",
        threads=request.threads,
        providers=request.providers,
    )


def _readable_again(data: Any) -> Any:
    """The data, kept where it comes from a reader: that gives it once, and a search needs it more often."""
    return list(iter(data.get_next, None)) if hasattr(data, "get_next") else data


def _data(request: Request, model: ModelLike, data: Any) -> Any:
    """The given data; random numbers where there is none, in the ranges that were asked for."""
    if data is not None and not request.always_random:
        return data
    asked = request.random
    if asked.shapes is None and asked.ranges is None:
        return None  # detent.quantize makes random numbers itself, and warns
    warnings.warn("Calibrated with random data: the accuracy of this model is not real.", stacklevel=2)
    return RandomDataReader(model, asked.shapes, asked.ranges)


def _matching(patterns: tuple[str, ...], model: ModelLike) -> tuple[str, ...]:
    """The nodes that regular expressions name; one that names none is an error."""
    if not patterns:
        return ()
    names = [str(node.name) for node in load(model).graph]
    found: dict[str, None] = {}
    for pattern in patterns:
        hits = [name for name in names if re.match(pattern, name)]
        if not hits:
            raise UsageError(
                f"nodes_to_exclude: '{pattern}' matches no node. `detent inspect MODEL --nodes` lists them."
            )
        found.update(dict.fromkeys(hits))
    return tuple(found)


def move_tensors_out(path: Path) -> None:
    """Put the tensors into a file beside the model, as use_external_data_format asks for."""
    proto = onnx.load(path)
    (path.parent / f"{path.name}.data").unlink(missing_ok=True)  # onnx would add to what an earlier run left
    onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)
