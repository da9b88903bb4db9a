"""Every bad input gets one clear message, an exit code that is not zero, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import detent as package
from detent.demo import CALIBRATION, MODEL, PREPROCESS
from detent.graph import save as saving
from tests.conftest import tiny_model

USAGE, MODEL_ERROR, DATA, OUTPUT = 2, 3, 4, 5


@pytest.fixture
def fails(detent, tmp_path):
    """Run, and check that it fails with this code and these words, in one message and with no file left over."""

    def run(code, *words, arguments):
        before = set(tmp_path.rglob("*"))
        outcome = detent(*arguments)
        message = " ".join(outcome.err.split())
        assert outcome.code == code, outcome
        for word in words:
            assert word in message, message
        assert outcome.out == ""
        assert "Traceback" not in message
        assert message.count("Error") <= 1
        assert set(tmp_path.rglob("*")) == before
        return message

    return run


@pytest.fixture
def quantize(tmp_path):
    """The arguments that quantize `model` with `calibration` to out.onnx."""

    def arguments(model, calibration, *more):
        return ["quantize", model, tmp_path / "out.onnx", "--calib", calibration, *more]

    return arguments


def saved(array, path):
    np.save(path, array)
    return path


def stored(model, path):
    onnx.save(model, path)
    return path


# -- the model --------------------------------------------------------------------------------------------------------


def test_missing_model(fails, quantize, tmp_path):
    fails(MODEL_ERROR, "There is no file", "absent.onnx", arguments=quantize(tmp_path / "absent.onnx", CALIBRATION))


def test_folder_as_model(fails, quantize, tmp_path):
    fails(MODEL_ERROR, "is a folder", arguments=quantize(tmp_path, CALIBRATION))


@pytest.mark.parametrize("content", [b"", b"not an onnx model at all", MODEL.read_bytes()[:20_000]])
def test_not_a_model(fails, quantize, tmp_path, content):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    fails(MODEL_ERROR, "broken.onnx is not an ONNX model", arguments=quantize(path, CALIBRATION))


def test_already_quantized(fails, quantize, tmp_path, samples):
    report = package.quantize(tiny_model(), calibration=samples)
    path = stored(report.model, tmp_path / "quantized.onnx")
    data = saved(samples, tmp_path / "x.npy")
    fails(MODEL_ERROR, "quantized already", "inspect", "--to float", arguments=quantize(path, data))
    report = package.quantize(tiny_model(), calibration=samples, recipe="A8W8", format="qoperator")
    path = stored(report.model, tmp_path / "computes on codes.onnx")
    message = fails(MODEL_ERROR, "quantized already", "inspect", arguments=quantize(path, data))
    assert "--to float" not in message  # which refuses such a model


def one_node_model(op_type, domain="", **attributes):
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], name="only", domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_nothing_to_quantize(fails, quantize, tmp_path):
    path = stored(one_node_model("Exp"), tmp_path / "exp.onnx")
    data = saved(np.zeros((3, 4), np.float32), tmp_path / "x.npy")
    fails(MODEL_ERROR, "no node to quantize", "operator Exp is not quantized", arguments=quantize(path, data))


def test_operator_unknown_to_onnxruntime(fails, quantize, tmp_path):
    model = tiny_model()
    model.graph.node.insert(0, helper.make_node("Wobble", ["x"], ["wobbled"], name="strange", domain="my.ops"))
    model.graph.node[1].input[0] = "wobbled"
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    path = stored(model, tmp_path / "custom.onnx")
    data = saved(np.zeros((3, 3, 8, 8), np.float32), tmp_path / "x.npy")
    fails(MODEL_ERROR, "'strange'", "my.ops::Wobble", "onnxruntime does not know", arguments=quantize(path, data))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["w1", "b1"])
def test_weights_that_are_not_numbers(fails, quantize, tmp_path, samples, name, value):
    good = {tensor.name: numpy_helper.to_array(tensor) for tensor in tiny_model().graph.initializer}
    bad = good[name].copy()
    bad.flat[1] = value
    path = stored(tiny_model(**{name: bad}), tmp_path / "nan.onnx")
    data = saved(samples, tmp_path / "x.npy")
    fails(MODEL_ERROR, f"'{name}'", "'first'", "NaN or infinity", arguments=quantize(path, data))


def test_external_data_outside_the_folder(fails, quantize, tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(432))
    folder = tmp_path / "model"
    folder.mkdir()
    model = tiny_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    path = stored(model, folder / "m.onnx")
    fails(MODEL_ERROR, "'w1'", "outside the model's folder", arguments=quantize(path, CALIBRATION))


def test_external_data_that_is_missing_or_short(fails, quantize, tmp_path):
    onnx.save(tiny_model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(b"short")
    fails(MODEL_ERROR, "m.data is too short", "'w1'", arguments=quantize(tmp_path / "m.onnx", CALIBRATION))
    (tmp_path / "m.data").unlink()
    fails(MODEL_ERROR, "m.data", "not there", arguments=quantize(tmp_path / "m.onnx", CALIBRATION))


# -- the data ---------------------------------------------------------------------------------------------------------


def test_empty_folder(fails, quantize, tmp_path):
    (tmp_path / "empty").mkdir()
    fails(DATA, "empty", arguments=quantize(MODEL, tmp_path / "empty"))


def test_missing_data(fails, quantize, tmp_path):
    fails(DATA, "absent", arguments=quantize(MODEL, tmp_path / "absent"))


def test_broken_image_names_the_file(fails, quantize, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    good = sorted(CALIBRATION.iterdir())[:5]
    for file in good:
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "zz_last.png").write_bytes(good[0].read_bytes()[:60])
    fails(DATA, "zz_last.png", arguments=quantize(MODEL, folder, "--preprocess", PREPROCESS, "--strict"))
    for file in good[1:]:
        (folder / file.name).write_bytes(b"")
    fails(DATA, "5 of 6 images", "zz_last.png", arguments=quantize(MODEL, folder, "--preprocess", PREPROCESS))


def folder_of(tmp_path, arrays):
    folder = tmp_path / "arrays"
    folder.mkdir()
    for index, array in enumerate(arrays):
        np.save(folder / f"{index:03}.npy", array)
    return folder


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (np.zeros((3, 9, 8), np.float32), ("shape", "[1, 3, 9, 8]")),
        (np.zeros((3, 8, 8), np.int32), ("int32", "astype(np.float32)")),
        (np.zeros((3, 8, 8), np.uint8), ("uint8",)),
        (np.full((3, 8, 8), np.nan, np.float32), ("NaN",)),
        (np.full((3, 8, 8), np.inf, np.float32), ("infinite",)),
    ],
)
def test_only_the_last_sample_is_wrong(fails, quantize, tmp_path, tiny, samples, last, words):
    folder = folder_of(tmp_path, [*samples, last])
    fails(DATA, "012.npy", "'x'", *words, arguments=quantize(tiny, folder))


def test_wrong_input_name(fails, quantize, tmp_path, tiny, samples):
    path = tmp_path / "x.npz"
    np.savez(path, inputs=samples)
    fails(DATA, "'inputs'", "Its inputs are 'x'", arguments=quantize(tiny, path))


def test_activation_that_overflows(fails, quantize, tmp_path, samples):
    large = np.full((2, 4, 1, 1), 3e38, np.float32)
    path = stored(tiny_model(w1=np.full((4, 3, 3, 3), 3e38, np.float32), w2=large), tmp_path / "big.onnx")
    data = saved(1000 * samples, tmp_path / "x.npy")
    fails(DATA, "x.npy[", "NaN or infinity", arguments=quantize(path, data))


def test_dynamic_size_that_images_do_not_settle(fails, quantize, tmp_path):
    model = tiny_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[2].dim_param = "H"
        value.type.tensor_type.shape.dim[3].dim_param = "W"
    path = stored(model, tmp_path / "dynamic.onnx")
    fails(USAGE, "--size H,W", "'x'", arguments=quantize(path, CALIBRATION))
    random = ["quantize", path, tmp_path / "out.onnx"]
    fails(USAGE, "--fix-shape", "'x'", arguments=random)


# -- the output -------------------------------------------------------------------------------------------------------


def test_output_is_the_input(fails, tmp_path, tiny):
    before = tiny.read_bytes()
    words = "would overwrite a file that this command reads"
    fails(OUTPUT, words, arguments=["quantize", tiny, tiny, "--calib", CALIBRATION])
    assert tiny.read_bytes() == before


def test_report_onto_a_model(fails, detent, tmp_path, tiny, samples):
    before = tiny.read_bytes()
    data = saved(samples, tmp_path / "x.npy")
    arguments = ["quantize", tiny, tmp_path / "out.onnx", "--calib", data, "--report"]
    fails(OUTPUT, "would overwrite", "tiny.onnx", arguments=[*arguments, tiny])
    fails(OUTPUT, "would overwrite", "out.onnx", arguments=[*arguments, tmp_path / "out.onnx"])
    fails(OUTPUT, "does not exist", arguments=[*arguments, tmp_path / "no" / "r.json"])
    assert tiny.read_bytes() == before


def test_output_onto_external_data(fails, quantize, tmp_path):
    onnx.save(tiny_model(), tmp_path / "m.onnx", save_as_external_data=True, location="out.onnx", size_threshold=0)
    fails(OUTPUT, "would overwrite", arguments=quantize(tmp_path / "m.onnx", CALIBRATION))


def test_output_is_a_pipe(fails, tmp_path, tiny):
    os.mkfifo(tmp_path / "pipe")
    fails(OUTPUT, "a device or a pipe", arguments=["quantize", tiny, tmp_path / "pipe", "--calib", CALIBRATION])


def test_output_folder_is_missing(fails, tmp_path, tiny):
    fails(OUTPUT, "does not exist", arguments=["quantize", tiny, tmp_path / "no" / "out.onnx", "--calib", CALIBRATION])


def test_output_is_a_folder(fails, tmp_path, tiny):
    fails(OUTPUT, "is a folder", arguments=["quantize", tiny, tmp_path, "--calib", CALIBRATION])


def test_output_is_not_writable(fails, tmp_path, tiny, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(saving.Path, "mkdir", refuse)
    arguments = ["quantize", tiny, tmp_path / "out.onnx", "--calib", CALIBRATION]
    fails(OUTPUT, "Cannot write", "out.onnx", "Permission denied", arguments=arguments)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("o" * 300, "File name too long"),
        ("x/" * 3000 + "o", "File name too long"),
        ("loop", "link"),
        ("", "is a folder"),
    ],
    ids=["long name", "long path", "link to itself", "no name"],
)
@pytest.mark.parametrize("command", ["quantize", "tune"])
def test_output_that_is_no_place_for_a_file(command, name, words, fails, tmp_path, tiny):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    output = tmp_path / name if name else ""
    fails(OUTPUT, words, arguments=[command, tiny, output, "--calib", CALIBRATION])


@pytest.mark.parametrize("option", ["--labels", "--metric"])
def test_a_name_that_is_too_long_is_told(option, fails, tmp_path, tiny):
    arguments = ["evaluate", tiny, "--data", CALIBRATION, option, tmp_path / ("z" * 300 + ".py")]
    fails(OUTPUT, "Cannot use", "zzz", "File name too long", arguments=arguments)


@pytest.mark.parametrize("arguments", [["quantize", "m.onnx", "o.onnx"], ["inspect", "m.onnx"]])
def test_a_current_folder_that_is_gone(arguments, fails, tmp_path, monkeypatch):
    monkeypatch.delenv("DETENT_TRUST", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    fails(OUTPUT, "current folder is gone", arguments=arguments)


@pytest.mark.parametrize(("name", "words"), [("o" * 300, "too long"), ("loop", "symbolic links"), ("pipe", "pipe")])
def test_data_that_is_no_file(name, words, fails, quantize, tmp_path, tiny):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    fails(DATA, words, arguments=quantize(tiny, tmp_path / name))
    fails(MODEL_ERROR, words, arguments=quantize(tmp_path / name, CALIBRATION))


def test_full_disk(fails, quantize, tmp_path, tiny, samples, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    data = saved(samples, tmp_path / "x.npy")
    (tmp_path / "out.onnx").write_text("an older result")
    monkeypatch.setattr(saving.os, "fsync", full)
    fails(OUTPUT, "the disk is full", "out.onnx", arguments=quantize(tiny, data))
    assert (tmp_path / "out.onnx").read_text() == "an older result"


def test_a_real_full_disk(tmp_path):
    """A file system of 64 kB, where that can be had."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        with pytest.raises(package.OutputError, match="the disk is full"):
            package.quantize(
                MODEL, mount / "out.onnx", np.zeros((4, 1, 32, 32), np.float32) + np.arange(32, dtype=np.float32)
            )
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


EAGER = """
    from functools import partial
    from detent.pipeline import observed
    from detent.cli import main
    observed.Checkpoint = partial(observed.Checkpoint, every=0.2)
    main()
"""


def test_interrupted(tmp_path):
    """Ctrl-C in the middle of calibration: exit code 130, one line, no output, and what was counted is kept."""
    data = tmp_path / "data"
    data.mkdir()
    options = ["--no-equalize", "--refine", "none"]
    # A file of holes, so long that no machine is through with it before the interrupt.
    np.lib.format.open_memmap(data / "x.npy", "w+", np.float32, (100_000, 1, 32, 32))
    command = [sys.executable, "-c", textwrap.dedent(EAGER), "quantize", MODEL, tmp_path / "out.onnx", "--calib", data]
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    kept = tmp_path / "out.onnx.checkpoint"
    while not kept.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.strip() == f"Interrupted. What was counted is kept in {kept}: the same command continues."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", kept.name]


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "XINT9"], ("'XINT9'", "Did you mean 'XINT8'")),
        (["--target", "npu-cmm"], ("'npu-cmm'", "'npu-cnn'")),
        (["--method", "MinMSS"], ("'MinMSS'", "'MinMSE'")),
        (["--activations", "int9"], ("'int9'", "'int8'")),
        (["--exclude", "stem/conf"], ("--exclude 'stem/conf' matches no node", "'stem/conv'")),
        (["--include", "nothing*"], ("--include 'nothing*' matches no node",)),
        (["--op-types", "Convv"], ("Convv", "'Conv'")),
        (["--from", "head/gem"], ("--from 'head/gem'", "'head/gemm'")),
        (["--from", "head/gemm", "--to", "stem/conv"], ("No node lies between",)),
        (["--size", "big"], ("--size 'big'",)),
        (["--size", "nan"], ("--size 'nan'", "whole numbers")),
        (["--size", "1,2,3"], ("--size '1,2,3'", "H,W")),
        (["--fix-shape", "image=1.7,1,32,32"], ("--fix-shape", "whole numbers")),
        (["--seed", "3"], ("--seed", "--limit")),
        (["--mean", "1,2,3"], ("--mean",)),
        (["--fix-shape", "image:1"], ("--fix-shape", "INPUT=D,D")),
        (["--fix-shape", "imag=1,1,32,32"], ("'imag'", "'image'")),
        (["--fix-shape", "image=1,3,32,32"], ("image", "[1, 3, 32, 32]")),
        (["--order", "RBG"], ("RBG", "RGB")),
    ],
)
def test_bad_options(fails, demo_arguments, options, words):
    fails(USAGE, *words, arguments=[*demo_arguments, *options])


def test_unknown_option_offers_the_nearest(detent, demo_arguments):
    outcome = detent(*demo_arguments, "--exlude", "x")
    assert outcome.code == USAGE
    assert "--exclude" in outcome.err


def test_no_output_and_no_dry_run(fails):
    fails(USAGE, "OUTPUT", arguments=["quantize", MODEL])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "A8W9"], ("'A8W9'", "'A8W8'")),
        (["--recipe", "missing.toml"], ("missing.toml", "--toml")),
        (["--set", "weights"], ("--set 'weights'", "FIELD=VALUE")),
        (["--set", "wights=int8"], ("'wights'", "'weights'")),
        (["--set", "weights.granularity=per_chanel"], ("per_chanel", "per_channel")),
        (["--activations", "int9"], ("'int9'", "'int8'")),
        (["--format", "qqdq"], ("qqdq", "qdq")),
        (["--format", "fix-neuron"], ("uint8", "fix-neuron")),
        (["--opset", "99"], ("99",)),
        (["--method", "Entropy"], ("Entropy", "power-of-two")),
        (["--set", 'overrides=[{nodes=["nowhere"],leave_float=true}]'], ("'nowhere'", "matches no node")),
        (["--set", 'overrides=[{tensors=["nothing"],range=[0,1]}]'], ("'nothing'", "none that is quantized")),
    ],
)
def test_bad_recipes(fails, demo_arguments, options, words):
    fails(USAGE, *words, arguments=[*demo_arguments, *options])


def test_recipes_that_cannot_be_shown(fails, tmp_path):
    fails(USAGE, "NAME", arguments=["recipes", "--toml"])
    fails(USAGE, "NAME", arguments=["recipes", "--set", "weights=int8"])
    fails(USAGE, "'XINT9'", "'XINT8'", arguments=["recipes", "XINT9"])
    (tmp_path / "mine.toml").write_text("wights = 4")
    fails(USAGE, "mine.toml", "'wights'", "'weights'", arguments=["recipes", tmp_path / "mine.toml"])


# -- models whose outputs have as many rows as they find something ----------------------------------------------------


def detections_above(threshold):
    """64 rows of 6 numbers from an image, of which those stay whose fifth is above a threshold."""
    constants = {
        "w": np.random.default_rng(0).standard_normal((6, 3, 3, 3)).astype(np.float32),
        "columns": np.array([6, 64]),
        "five": np.array(4),
        "least": np.float32(threshold),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["maps"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Reshape", ["maps", "columns"], ["flat"], name="flatten"),
        helper.make_node("Transpose", ["flat"], ["rows"], perm=[1, 0], name="turn"),
        helper.make_node("Gather", ["rows", "five"], ["scores"], axis=1, name="score"),
        helper.make_node("Greater", ["scores", "least"], ["kept"], name="compare"),
        helper.make_node("Compress", ["rows", "kept"], ["found"], axis=0, name="keep"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def images(tmp_path):
    return saved(np.random.default_rng(1).standard_normal((64, 3, 8, 8)).astype(np.float32), tmp_path / "x.npy")


@pytest.mark.parametrize("command", [["sensitivity"], ["mix", "--mean-bits", "6"], ["tune"], ["evaluate"]])
def test_a_model_that_finds_nothing(fails, tmp_path, images, command):
    model = stored(detections_above(1e9), tmp_path / "blind.onnx")
    verb, *more = command
    output = [tmp_path / "out.onnx"] if verb == "tune" else [model] if verb == "evaluate" else []
    data = "--data" if verb == "evaluate" else "--calib"
    fails(DATA, "no rows", "samples", arguments=[verb, model, *output, data, images, *more])


@pytest.mark.parametrize("verb", ["sensitivity", "tune"])
def test_rows_that_come_and_go_are_all_error(detent, tmp_path, images, verb):
    model = stored(detections_above(0.5), tmp_path / "some.onnx")
    output = [tmp_path / "out.onnx", "--budget", "1s"] if verb == "tune" else []
    outcome = detent(verb, model, *output, "--calib", images, "--json")
    assert outcome.code in (0, 6), outcome.err
