"""`dump_model`: the codes of every quantized value for a reader's first sample, as files. `measure.dump` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detent.comparison.value_files import dump_codes
from detent.compat.readers import RandomDataReader
from detent.errors import DataError
from detent.graph.load import ModelLike


def dump_model(
    model_input: ModelLike,
    dump_data_reader: Any = None,
    random_data_reader_input_shape: Any = None,
    dump_float: bool = False,
    output_dir: str | Path = "./dump_results",
) -> None:
    """Run the quantized model on the reader's first sample (random numbers without one) and write its values."""
    reader = dump_data_reader or RandomDataReader(model_input, random_data_reader_input_shape)
    feeds = reader.get_next()
    if feeds is None:
        raise DataError("dump_model: the data reader has no sample to run the model on.")
    dump_codes(model_input, dict(feeds), Path(output_dir), floats=dump_float, overwrite=True)
