"""`dump_model`: every quantized value of a model, as integer codes in files, to compare bit by bit with a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from detent.errors import UsageError
from detent.graph.load import ModelLike


def dump_model(
    model_input: ModelLike,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: str | Path = "./dump_results",
) -> NoReturn:
    """Not there yet."""
    del model_input, dump_data_reader, random_data_reader_input_shape, dump_float, output_dir
    raise UsageError("dump_model is not part of Detent.")
