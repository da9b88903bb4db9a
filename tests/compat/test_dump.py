from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from detent.compat.entry_points import dump_model, vai_quantize_static
from detent.compat.enums import QuantFormat, VitisQuantFormat
from detent.errors import DataError, ModelError
from tests.compat.test_entry_points import Reader
from tests.conftest import tiny_model
from tests.models import values_of


@pytest.mark.parametrize("written", [QuantFormat.QDQ, VitisQuantFormat.QDQ, VitisQuantFormat.FixNeuron])
def test_codes_of_every_value(tiny, tmp_path, samples, written):
    output = tmp_path / "out.onnx"
    vai_quantize_static(tiny, output, Reader(samples), written, print_summary=False)
    dump_model(output, Reader(samples), output_dir=tmp_path / "dump", dump_float=True)
    model = onnx.load(output)
    files = {path.name for path in (tmp_path / "dump").iterdir()}
    assert {path.suffix for path in (tmp_path / "dump").iterdir()} == {".bin", ".txt", ""}
    for made in (each for each in model.graph.node if each.op_type == "QuantizeLinear"):
        expected = values_of(model, [made.output[0]], {"x": samples[:1]})[made.output[0]]
        assert f"{made.output[0]}.bin" in files
        found = np.fromfile(tmp_path / "dump" / f"{made.output[0]}.bin", expected.dtype)
        np.testing.assert_array_equal(found, expected.reshape(-1))
    text = next((tmp_path / "dump").glob("*.txt")).read_text().split()
    assert all(-128 <= int(code) <= 255 for code in text)
    assert (tmp_path / "dump" / "float").is_dir()


def test_constants_are_dumped_as_they_are_stored(tiny, tmp_path, samples):
    output = tmp_path / "out.onnx"
    vai_quantize_static(tiny, output, Reader(samples), QuantFormat.QDQ, print_summary=False)
    dump_model(str(output), Reader(samples), output_dir=str(tmp_path / "dump"))
    model = onnx.load(output)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    read = {each.input[0] for each in model.graph.node if each.op_type == "DequantizeLinear"} & set(stored)
    assert len(read) == 3
    for name in read:
        found = np.fromfile(tmp_path / "dump" / f"{name}.bin", stored[name].dtype)
        np.testing.assert_array_equal(found, stored[name].reshape(-1))


def test_bad_input(tmp_path, samples):
    with pytest.raises(ModelError, match="not quantized"):
        dump_model(tiny_model(), Reader(samples), output_dir=tmp_path)
    with pytest.raises(DataError, match="no sample"):
        dump_model(tiny_model(), Reader([]), output_dir=tmp_path, dump_float=True)
    dump_model(tiny_model(), output_dir=tmp_path / "random", dump_float=True)
    assert (tmp_path / "random" / "float" / "y.bin").stat().st_size == 4 * 2 * 64
