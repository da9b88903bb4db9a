"""The whole way, on the demo model and on small ones: what comes out is right, complete and the same every time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import detent
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.errors import DataError, ModelError, UsageError
from detent.methods import METHODS
from detent.observe.preprocess import PreprocessOptions
from detent.recipe.file import find_recipe
from detent.recipe.recipe import POWER_OF_TWO_INT8, POWER_OF_TWO_UINT8
from tests.conftest import tiny_model
from tests.models import build, info

DEMO = {"calibration": CALIBRATION, "preprocess": PreprocessOptions(file=PREPROCESS)}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return detent.quantize(MODEL, tmp_path_factory.mktemp("demo") / "out.onnx", **DEMO)


def test_the_output_is_a_valid_model_in_order(report):
    onnx.checker.check_model(report.output, full_check=True)


def test_the_next_command_names_the_same_data(report):
    assert report.calibration.path == str(CALIBRATION)
    poor = dataclasses.replace(report, fidelity=dataclasses.replace(report.fidelity, agreement=None), trials=[])
    for name, close in poor.fidelity.outputs.items():
        noisy = {**poor.fidelity.outputs, name: dataclasses.replace(close, sqnr_db=5.0)}
        poor = dataclasses.replace(poor, fidelity=dataclasses.replace(poor.fidelity, outputs=noisy))
    assert f"--calib {CALIBRATION} --preprocess {PREPROCESS}" in str(poor).splitlines()[-1]


def test_it_runs_on_plain_onnxruntime_with_the_same_names(report):
    session = onnxruntime.InferenceSession(report.output)
    assert [value.name for value in session.get_inputs()] == ["image"]
    assert [value.name for value in session.get_outputs()] == ["logits"]
    assert session.run(None, {"image": np.zeros((1, 1, 32, 32), np.float32)})[0].shape == (1, 10)


def test_all_scales_are_powers_of_two_and_all_codes_eight_bits(report):
    model = onnx.load(report.output)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {node.domain for node in pairs} == {""}
    for node in pairs:
        assert math.frexp(float(arrays[node.input[1]]))[0] == 0.5
        zero_point = arrays[node.input[2]]
        assert (zero_point.dtype, int(zero_point)) in ((np.uint8, 128), (np.int8, 0))
    weights = [array for name, array in arrays.items() if name.endswith("_quantized")]
    assert weights
    assert all(array.dtype == np.int8 and array.min() >= -127 for array in weights)


def test_the_input_file_is_not_touched(report):
    before = MODEL.read_bytes()
    detent.quantize(MODEL, calibration=CALIBRATION, limit=3)
    assert MODEL.read_bytes() == before


def test_same_inputs_same_bytes(report, tmp_path):
    again = detent.quantize(MODEL, tmp_path / "again.onnx", threads=1, **DEMO)
    with open(report.output, "rb") as first, open(again.output, "rb") as second:  # noqa: PTH123
        assert first.read() == second.read()
    ignored = {"seconds", "output"}
    first, second = report.to_dict(), again.to_dict()
    assert {key: value for key, value in first.items() if key not in ignored} == {
        key: value for key, value in second.items() if key not in ignored
    }


STAGES = ["load", "prepare", "equalize", "calibrate", "plan", "refine", "emit", "measure", "save"]


def test_the_report_has_every_node_and_tensor(report):
    assert {node.node for node in report.nodes} >= {"stem/conv", "head/gemm", "mix/concat"}
    assert report.left_float() == []
    by_role = {tensor.role for tensor in report.tensors}
    assert by_role == {"activation", "weight", "bias"}
    for tensor in report.tensors:
        assert tensor.minimum <= tensor.maximum
        assert tensor.scale == 2.0**-tensor.position
        assert 0 <= tensor.clipped < 0.2
    assert report.bytes_after < report.bytes_before
    assert list(report.seconds) == STAGES


def test_the_figures_are_measured_on_held_out_samples(report):
    assert not report.in_sample
    assert (report.fidelity.samples, report.fidelity.counted) == (32, 24)  # those that only gave ranges fill it up
    assert report.calibration.samples == 56
    assert report.fidelity.outputs["logits"].sqnr_db > 12
    assert report.worst_tensors()[0].closeness.sqnr_db <= report.worst_tensors()[-1].closeness.sqnr_db
    assert len(report.worst_tensors()) == 10


def test_a_few_numbers_are_judged_on_as_many_samples_as_a_class():
    weight = np.random.default_rng(0).standard_normal((8, 1)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["rating"], "layer")]
    model = build(nodes, [info("rating", (1, 1))], {"weight": weight}, [info("x", (1, 8))])
    report = detent.quantize(model, None, np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32))
    assert report.fidelity.agreement.task == "regress" and report.judgement.level == "close"
    assert (report.fidelity.samples, report.fidelity.counted) == (32, 24)  # 8 are held out


def test_a_modelproto_in_and_out(samples):
    model = tiny_model()
    before = model.SerializeToString(deterministic=True)
    report = detent.quantize(model, calibration=samples)
    assert model.SerializeToString(deterministic=True) == before
    assert report.output is None
    onnx.checker.check_model(report.model, full_check=True)


def test_int8_and_uint8_activations_compute_the_same(samples):
    recipe = find_recipe("XINT8")
    outputs = []
    for fmt in (POWER_OF_TWO_UINT8, POWER_OF_TWO_INT8):
        model = detent.quantize(tiny_model(), calibration=samples, recipe=recipe.replace(activations=fmt)).model
        outputs.append(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": samples[:1]})[0])
    # The two grids differ in the code -128 alone, and the base scale in 254 against 255 steps.
    np.testing.assert_allclose(outputs[0], outputs[1], atol=0.3)


def test_non_overflow_clips_nothing(samples):
    recipe = find_recipe("XINT8").replace(method=METHODS["NonOverflow"])
    report = detent.quantize(tiny_model(), calibration=samples, recipe=recipe)
    assert all(tensor.clipped == 0 for tensor in report.tensors)


def test_the_cpu_target_rewrites_nothing(samples):
    model = tiny_model()
    model.graph.node[1].op_type = "Sigmoid"
    on_npu = detent.quantize(model, calibration=samples)
    on_cpu = detent.quantize(model, calibration=samples, target="cpu")
    assert "HardSigmoid" in {node.op_type for node in on_npu.model.graph.node}
    assert "Sigmoid" in {node.op_type for node in on_cpu.model.graph.node}
    assert any("HardSigmoid" in warning for warning in on_npu.warnings)
    assert not any("HardSigmoid" in warning for warning in on_cpu.warnings)


@pytest.mark.filterwarnings("ignore:Calibrated with random data")
def test_random_data_is_allowed_and_loudly_said():
    report = detent.quantize(tiny_model(batch=1))
    assert report.calibration.random
    assert any("random data" in warning for warning in report.warnings)


def test_samples_without_a_holdout_are_said_to_be_in_sample(samples):
    report = detent.quantize(tiny_model(), calibration=samples[:4])
    assert report.in_sample
    assert any("held out" in warning for warning in report.warnings)


def test_excluded_nodes_stay_float_and_say_why(samples):
    report = detent.quantize(tiny_model(), calibration=samples, exclude=["fir*"])
    assert {node.node: node.reason for node in report.left_float()} == {"first": "excluded by 'fir*'"}
    names = {tensor.name for tensor in report.model.graph.initializer}
    assert "w1" in names
    assert "w2_quantized" in names


def test_a_dry_run_decides_and_writes_nothing(tmp_path):
    report = detent.quantize(MODEL, tmp_path / "out.onnx", dry_run=True, **DEMO)
    assert report.fidelity is None
    assert report.nodes
    assert list(tmp_path.iterdir()) == []


def test_fixed_shapes_are_written(samples):
    report = detent.quantize(tiny_model(), calibration=samples, fix_shapes={"x": (1, 3, 8, 8)})
    dims = report.model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 3, 8, 8]


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 1),
        ({"keep_batch": True}, "N"),
        ({"target": "cpu"}, "N"),
        ({"fix_shape": {"x": (2, 3, 8, 8)}}, 2),
        ({"batch": 4}, 1),  # calibration runs four samples at a time
    ],
)
def test_an_open_batch_is_fixed_for_an_npu_alone(samples, options, batch):
    report = detent.quantize(tiny_model(), calibration=samples, **options)
    dim = report.model.graph.input[0].type.tensor_type.shape.dim[0]
    assert (dim.dim_value or dim.dim_param) == batch
    assert ("fixed to 1" in str(report)) == (batch == 1)


def test_a_batch_that_cannot_be_1_is_refused_before_the_file_is_written(tmp_path):
    """Three fixed rows beside rows that are open: with one of these the file would not load."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "m"),
        helper.make_node("Concat", ["m", "z"], ["y"], "c", axis=1),
    ]
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [3, 4]), ("z", ["n", 2]))]
    output = helper.make_tensor_value_info("y", 1, None)
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "g", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stream = [{"x": np.ones((3, 4), np.float32), "z": np.ones((3, 2), np.float32)}]
    with pytest.raises(ModelError, match="--keep-batch"):
        detent.quantize(model, tmp_path / "q.onnx", stream)
    assert list(tmp_path.iterdir()) == []
    detent.quantize(model, tmp_path / "q.onnx", stream, keep_batch=True)
    onnxruntime.InferenceSession(tmp_path / "q.onnx")


def _over_sequences() -> onnx.ModelProto:
    """Rows of any length, each entry times a matrix, and a Reshape to the shape that this has."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "m"),
        helper.make_node("Shape", ["m"], ["s"], "s"),
        helper.make_node("Reshape", ["m", "s"], ["y"], "r"),
    ]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _rows(*lengths):
    draw = np.random.default_rng(0).standard_normal
    return [{"x": draw((1, length, 4)).astype(np.float32)} for length in lengths]


AUTO = {"target": "cpu", "fix_shape": "auto"}


@pytest.mark.parametrize(
    ("options", "fixed"), [({}, True), ({"target": "cpu"}, False), ({"fix_shape": "none"}, False), (AUTO, True)]
)
def test_an_open_length_becomes_that_of_all_samples_for_an_npu(tmp_path, options, fixed):
    for index, sample in enumerate(_rows(*[6] * 8)):
        np.savez(tmp_path / f"{index}.npz", **sample)
    report = detent.quantize(_over_sequences(), calibration=tmp_path, recipe="A8W8", **options)
    dims = report.model.graph.input[0].type.tensor_type.shape.dim
    assert dims[1].dim_value == (6 if fixed else 0)
    assert ("Shape" in [node.op_type for node in report.model.graph.node]) == (not fixed)
    assert ("--fix-shape none" in str(report)) == fixed


def test_an_open_length_stays_open_where_samples_differ(tmp_path):
    for index, sample in enumerate(_rows(6, 6, 5, 6)):
        np.savez(tmp_path / f"{index}.npz", **sample)
    report = detent.quantize(_over_sequences(), calibration=tmp_path, recipe="A8W8")
    assert report.model.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "length"
    assert any("is 6 in the first sample and 5 in" in warning for warning in report.warnings)
    with pytest.raises(DataError, match="--fix-shape auto: Axis 1 of input 'x'"):
        detent.quantize(_over_sequences(), calibration=tmp_path, recipe="A8W8", fix_shape="auto")
    with pytest.raises(UsageError, match="no iterator"):
        detent.quantize(_over_sequences(), calibration=iter(_rows(6)), recipe="A8W8", fix_shape="auto")
    with pytest.raises(UsageError, match="speaks of all inputs"):
        detent.quantize(_over_sequences(), recipe="A8W8", fix_shape=["auto", "x=1,6,4"])


@pytest.mark.parametrize(("imgsz", "options", "sides"), [("[8, 8]", {}, [8, 8]), ("", {"size": 8}, [8, 8])])
def test_the_open_size_of_images_is_fixed_if_it_is_known(tmp_path, imgsz, options, sides):
    model = tiny_model()
    for value in (*model.graph.input, *model.graph.output):
        for at, dim in enumerate(value.type.tensor_type.shape.dim[2:]):
            dim.dim_param = f"side{at}"
    metadata = {"stride": "4", "names": "{0: 'a'}", "task": "detect", **({"imgsz": imgsz} if imgsz else {})}
    onnx.helper.set_model_props(model, metadata)
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    report = detent.quantize(model, calibration=tmp_path, **options)
    dims = report.model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims[2:]] == sides
    assert ("fixed to [1, 3, 8, 8]" in str(report)) == bool(sides[0])


@pytest.mark.parametrize("steps", [1, 6])
def test_a_first_axis_of_time_is_that_of_the_samples(tmp_path, steps):
    """Beside a state, whose first axis is another, samples are no rows of it: an NPU is programmed for their shape."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "h"], ["y"])]
    inputs = [info("x", ("seq_len", 8)), info("h", (1, 8))]
    rng = np.random.default_rng(0)
    model = build(nodes, [info("y", ("steps", 8))], {"w": rng.standard_normal((8, 8)).astype(np.float32)}, inputs)
    for index in range(20):
        x, h = (rng.standard_normal((rows, 8)).astype(np.float32) for rows in (steps, 1))
        np.savez(tmp_path / f"{index}.npz", x=x, h=h)
    report = detent.quantize(model, calibration=tmp_path)
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == steps
    report = detent.quantize(model, calibration=tmp_path, fix_shape="none")
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "seq_len"


def test_items_of_a_stream_may_be_batches_for_an_npu_too(samples):
    report = detent.quantize(tiny_model(), calibration=[samples[:4], samples[4:6]])
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_float16_models_are_converted(samples):
    half = tiny_model()
    for tensor in half.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    report = detent.quantize(half, calibration=samples.astype(np.float16))
    assert any(change.by == "HalfToFloat" for change in report.changes)
    assert report.model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    plain = detent.quantize(tiny_model(), calibration=samples)
    assert report.fidelity.outputs["y"].sqnr_db == pytest.approx(plain.fidelity.outputs["y"].sqnr_db, abs=3)


def with_if(model):
    """The model with an If whose branches read its result."""
    branch = lambda op: helper.make_graph(
        [helper.make_node(op, ["y"], ["z"], name=f"inner_{op}")],
        op,
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    model.graph.input.append(helper.make_tensor_value_info("flag_in", TensorProto.BOOL, []))
    model.graph.node.append(
        helper.make_node(
            "If", ["flag_in"], ["out"], name="choice", then_branch=branch("Relu"), else_branch=branch("Neg")
        )
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 2, 8, 8]))
    return model


def test_graphs_inside_if_stay_float_and_are_said_to(samples):
    data = [{"x": sample[np.newaxis], "flag_in": np.array(True)} for sample in samples]
    report = detent.quantize(with_if(tiny_model()), calibration=data)
    assert any("'choice'" in warning for warning in report.warnings)
    session = onnxruntime.InferenceSession(report.model.SerializeToString())
    assert session.run(None, {"x": samples[:1], "flag_in": np.array(False)})[0].shape == (1, 2, 8, 8)


def test_shift_cut_is_solved_on_the_plan_and_weights_are_encoded_afterwards():
    """Weights of 1e-4 beside a bias of 10: the shift must shrink by six, and the result must stay accurate."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": (1e-4 * rng.standard_normal((4, 3, 3, 3))).astype(np.float32),
        "b1": (10 + rng.standard_normal(4)).astype(np.float32),
        "w2": rng.standard_normal((2, 4, 1, 1)).astype(np.float32),
    }
    samples = rng.standard_normal((16, 3, 8, 8)).astype(np.float32)
    report = detent.quantize(tiny_model(**weights), calibration=samples)
    assert "shift cut" in {move.rule for move in report.moves}
    assert report.fidelity.outputs["y"].sqnr_db > 30


def test_progress_names_every_stage(samples):
    stages = []
    detent.quantize(tiny_model(), calibration=samples, progress=lambda stage, done, total: stages.append((stage, done)))
    assert list(dict(stages)) == STAGES
    assert max(done for stage, done in stages if stage == "calibrate") == len(samples)


def test_a_tensor_of_zeros_drags_nobody_along(samples):
    """Concat of an activation with zeros, and Add of zeros: the zeros take the other's position."""
    model = tiny_model()
    del model.graph.node[2]
    model.graph.node.append(helper.make_node("Concat", ["r1", "zeros"], ["joined"], name="join", axis=1))
    model.graph.node.append(helper.make_node("Add", ["joined", "none"], ["y"], name="add"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 2, 8, 8), np.float32), "zeros"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 6, 1, 1), np.float32), "none"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 6
    report = detent.quantize(model, calibration=samples)
    assert report.fidelity.outputs["y"].sqnr_db > 30
    assert {move.rule for move in report.moves} == {"zero throughout"}


def test_a_constant_that_is_an_output_and_data(samples):
    model = tiny_model()
    constant = helper.make_node("Constant", [], ["k"], name="k", value=numpy_helper.from_array(np.float32(0.5)))
    model.graph.node.insert(0, constant)
    model.graph.node[2].CopyFrom(helper.make_node("Mul", ["c1", "k"], ["r1"], name="half"))
    model.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, []))
    report = detent.quantize(model, calibration=samples)
    session = onnxruntime.InferenceSession(report.model.SerializeToString())
    assert session.run(["k"], {"x": samples[:1]})[0] == pytest.approx(0.5, abs=0.01)


def test_an_infinite_result_is_an_error_that_names_the_output(samples):
    """Log of Softmax: the smallest probabilities round to zero."""
    model = tiny_model()
    model.graph.node[2].output[0] = "z"
    model.graph.node.append(helper.make_node("Softmax", ["z"], ["s"], name="softmax", axis=-1))
    model.graph.node.append(helper.make_node("Log", ["s"], ["y"], name="log"))
    with pytest.raises(detent.ModelError, match="'y'.*'log'"):
        detent.quantize(model, calibration=4 * samples)


def test_a_preparation_that_changes_the_function_is_an_error(samples, monkeypatch):
    from detent.prepare.constants import FoldConstants

    def spoil(self, model):
        model.graph.initializers["w2"].const_value = ir.tensor(np.zeros((2, 4, 1, 1), np.float32))

    monkeypatch.setattr(FoldConstants, "run", spoil)
    with pytest.raises(detent.ModelError, match="changed what it computes: output 'y' differs"):
        detent.quantize(tiny_model(), calibration=samples)


def test_patterns_and_preprocessing_in_the_forms_that_people_write(tmp_path):
    report = detent.quantize(
        MODEL, calibration=CALIBRATION, limit=8, exclude="stem/*", preprocess={"size": 32, "mean": 77.85, "std": 82.46}
    )
    assert {node.node for node in report.left_float()} == {"stem/conv", "stem/relu6"}
    assert report.calibration.preprocess["mean"] == [77.85]
    by_file = detent.quantize(MODEL, calibration=CALIBRATION, limit=8, preprocess=str(PREPROCESS))
    assert by_file.calibration.preprocess == report.calibration.preprocess


@pytest.mark.parametrize(("target", "kept"), [("npu-cnn", False), ("cpu", True)])
def test_only_the_npu_asks_for_other_operators(samples, target, kept):
    model = tiny_model()
    model.graph.node[2].output[0] = "z"
    model.graph.node.append(helper.make_node("Split", ["z"], ["y", "rest"], name="split", axis=1))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    report = detent.quantize(model, calibration=samples, target=target)
    assert ("Split" in {node.op_type for node in report.model.graph.node}) == kept


def test_random_data_warns_in_python():
    with pytest.warns(UserWarning, match="random data"):
        detent.quantize(tiny_model(batch=1))


def test_a_report_prints_as_text(report):
    text = str(report)
    assert "worst tensors" in text
    assert "XINT8 for npu-xint8" in text
    # The three closing lines hold paths and commands, which are not broken.
    assert max(len(line) for line in text.splitlines()[:-3]) <= 120


def test_public_names():
    for name in detent.__all__:
        assert getattr(detent, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        detent.quantise


def test_clipped_fractions_are_of_the_values_themselves(samples):
    """One sample ten times as large: the others decide, and what saturates is counted."""
    wide = samples.copy()
    wide[0] *= 10
    report = detent.quantize(tiny_model(), calibration=wide, hold_out=0)
    entry = next(tensor for tensor in report.tensors if tensor.name == "x")
    levels = np.rint(wide / entry.scale)
    assert entry.clipped == pytest.approx(float(((levels < -128) | (levels > 127)).mean()), abs=1e-6)


def test_measuring_does_not_use_integer_kernels(monkeypatch, samples):
    """They saturate on some processors: the same file would then score differently there."""
    from detent.evaluation import fidelity

    asked = []

    class Spy(fidelity.Runner):
        def __init__(self, model, outputs=None, *, exact=False):
            asked.append(exact)
            super().__init__(model, outputs, exact=exact)

    monkeypatch.setattr(fidelity, "Runner", Spy)
    detent.quantize(tiny_model(), calibration=samples)
    assert asked == [True]


def test_graphs_inside_if_compute_what_they_did(samples):
    data = [{"x": sample[np.newaxis], "flag_in": np.array(True)} for sample in samples]
    report = detent.quantize(with_if(tiny_model()), calibration=data)
    session = onnxruntime.InferenceSession(report.model.SerializeToString())
    both = [session.run(None, {"x": samples[:1], "flag_in": np.array(flag)})[0] for flag in (True, False)]
    np.testing.assert_array_equal(both[0], np.maximum(-both[1], 0))
