from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import detent
from detent.errors import UsageError
from detent.observe.preprocess import PreprocessOptions
from detent.option_values import constants_of, image_options, names_of, noise_of, providers_of, shapes_of
from detent.options import ImageOptions, QuantizeOptions, TuneOptions, settled
from tests.conftest import tiny_model


def images(**given):
    return image_options(settled(ImageOptions, given))


def test_options_are_those_of_the_first_provider():
    assert providers_of("A") == ("A",)
    assert providers_of(()) == ("CPUExecutionProvider",)
    assert providers_of(["A", "B"], ["x=1", "y=C:\\z"]) == ("A:x=1,y=C:\\z", "B")
    assert providers_of("A:x=1", "y=2") == ("A:x=1,y=2",)


def test_providers_are_given_their_options(monkeypatch):
    import onnxruntime

    from detent.graph.session import open_session, session_options

    asked = []
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *given, **named: asked.append(named["providers"]) or real(given[0])
    )
    open_session(tiny_model().SerializeToString(), session_options(), ["CPUExecutionProvider:use_arena=0,path=C:\\x"])
    assert asked == [[("CPUExecutionProvider", {"use_arena": "0", "path": "C:\\x"})]]


def test_images_as_written_and_as_meant():
    meant = PreprocessOptions(
        size=(8, 6), mean=(1.0,), std=(2.0, 3.0, 4.0), order="BGR", layout="NHWC", resample="bicubic"
    )
    assert images(size="8,6", mean="1", std="2,3,4", order="bgr", layout="nhwc", resample="Bicubic") == meant
    assert (
        images(size=(8, 6), mean=(1.0,), std=[2.0, 3.0, 4.0], order="BGR", layout="NHWC", resample="bicubic") == meant
    )
    assert images(size="8") == images(size=8) == images(preprocess={"size": 8}) == PreprocessOptions(size=8)
    assert images(preprocess={"size": 8, "order": "BGR"}, size=4) == PreprocessOptions(size=4, order="BGR")
    assert images().given() == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": "1,2,3"}, "--size '1,2,3'"),
        ({"size": "8.5"}, "--size '8.5'"),
        ({"mean": "red"}, "--mean 'red'"),
    ],
)
def test_images_that_cannot_be_meant(given, words):
    with pytest.raises(UsageError, match=words):
        images(**given)


def test_shapes_as_text_and_as_a_mapping():
    assert shapes_of(["x=1,3,8,8", "y=2"]) == {"x": [1, 3, 8, 8], "y": [2]}
    assert shapes_of("x=1,3") == {"x": [1, 3]}
    assert shapes_of({"x": (1, 3)}) == {"x": (1, 3)}
    assert shapes_of([]) is shapes_of(None) is None


def test_one_name_or_several():
    assert names_of("Conv") == ("Conv",)
    assert names_of(["Conv", "Gemm"]) == ("Conv", "Gemm")
    assert names_of(()) == ()


def test_errors_in_decibels_or_as_a_share_of_the_power():
    assert noise_of("-20dB") == pytest.approx(0.01)
    assert noise_of("0.003") == noise_of(0.003) == 0.003
    assert noise_of(None) is None


def test_earlier_names_stay_accepted():
    assert settled(QuantizeOptions, {"fix_shapes": {"x": [1]}})["fix_shape"] == {"x": [1]}
    assert settled(TuneOptions, {"evaluation_limit": 3, "recipe_file": "a.toml"})["eval_limit"] == 3


def test_defaults_are_those_of_the_declaration():
    given = settled(TuneOptions, {})
    assert (given["max_drop"], given["labels"], given["resume"], given["threads"]) == (1.0, "find", True, 0)


def test_an_option_that_is_unknown_is_an_error_that_names_the_nearest(samples):
    with pytest.raises(TypeError, match="quantize.* 'limt'.*'limit'"):
        detent.quantize(tiny_model(), None, samples, limt=3)


def test_options_are_in_the_documentation_of_a_verb():
    assert "limit: Read at most N samples" in detent.quantize.__doc__


def test_python_takes_the_words_of_the_command_line(samples):
    report = detent.quantize(
        tiny_model(), None, samples, refine="none", method="MinMax", set="opset=19", equalize=False
    )
    assert (report.recipe.refinement, report.recipe.equalize, report.recipe.opset) == (None, None, 19)


def test_workers_of_one_kind(samples):
    with pytest.raises(UsageError, match="give one of them"):
        detent.quantize(tiny_model(), None, samples, workers=2, dask="host:1")


def test_constants_of_inputs():
    assert constants_of(["sr=16000", "a=b=1,-2.5", "flag=True"]) == {"sr": [16000], "a=b": [1, -2.5], "flag": [1]}
    assert constants_of({"sr": 16000, "v": (1, 2)}) == {"sr": [16000], "v": [1, 2]}
    assert constants_of(None) == constants_of([]) == {}
    for wrong in ("sr", "=1", "sr=fast"):
        with pytest.raises(UsageError, match=wrong):
            constants_of(wrong)


@pytest.mark.parametrize(
    ("name", "wrong", "takes", "rights"),
    [
        ("limit", "8", "a whole number or None. Read at most", [np.int64(8), None]),
        ("limit", 3.5, "a whole number or None", []),
        ("threads", None, "a whole number", []),
        ("threads", True, "a whole number", []),
        ("widen", [], "a number or None", [30, np.float32(3)]),
        ("hold_out", "x", "a whole number, 'beyond' or None", [5, "beyond"]),
        ("task", "clasify", "or None. Did you mean \"'classify'\"", ["classify"]),
        ("keep_batch", "no", "True or False", [1, np.True_]),
        ("method", 5, "a Method, text or None", ["MinMax", detent.MinMax()]),
        ("activations", detent.MinMax(), "a NumberFormat, text or None", [detent.IntegerFormat("int8")]),
        ("refine", object, "a Refinement, text or None", [detent.Rounding()]),
        ("exclude", 5, "text or a list of texts", ["a", ("a", "b"), {"a"}, np.array(["a"])]),
        ("exclude", ["a", 5], "text or a list of texts", []),
        ("exclude", (name for name in "ab"), "text or a list of texts", []),
        ("mean", ["1"], "a list of numbers, text or None", [3, (1, 2.0), np.zeros(3)]),
        ("size", (8, 6, 4), "a list of whole numbers, text or None", [(8, 6), [8, 6]]),
        ("fix_shape", 3, "a dictionary, text, a list of texts or None", ["x=1", {"x": (1, 3)}, {"x": np.ones(2, int)}]),
        ("fix_shape", {"x": "1"}, "a dictionary, text", []),
        ("preprocess", 5, "a PreprocessOptions, a dictionary, text, a path or None", [{"size": 8}, Path("a.json")]),
        ("progress", 5, "a function or None", [print]),
        ("stats", b"a", "text, a path or None", []),
    ],
)
def test_options_say_which_types_they_take(name, wrong, takes, rights):
    with pytest.raises(UsageError, match=f"^'{name}' is .*; it takes .*{re.escape(takes)}"):
        settled(QuantizeOptions, {name: wrong})
    for right in rights:
        assert settled(QuantizeOptions, {name: right}) is not None


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda model, data: detent.quantize(model, 5, data), "output"),
        (lambda model, data: detent.quantize(model, None, data, 5), "recipe"),
        (lambda model, data: detent.quantize(model, None, data, workers="two"), "workers"),
        (lambda model, data: detent.quantize("a\0b", None, data), "model"),
        (lambda model, data: detent.quantize(model, None, "a\0b"), "calibration"),
        (lambda model, data: detent.quantize(model, None, data, save_stats="a\0b"), "save_stats"),
        (lambda model, data: detent.evaluate([model, "a\0b"], data), "models"),
        (lambda model, data: detent.mix(model, data, None), "recipe"),
        (lambda model, data: detent.infer(model, data, None), "output"),
        (lambda model, data: detent.split(model, "a", 5), "tail"),
        (lambda model, data: detent.check(model, 5), "device"),
    ],
)
def test_arguments_say_which_types_they_take(call, option, samples):
    with pytest.raises(UsageError, match=f"^'{option}' is "):
        call(tiny_model(), samples)


@pytest.mark.parametrize("wrong", [5, b"a", [5]])
def test_what_is_no_model_is_refused_by_every_verb(wrong, samples, tmp_path):
    for call in (
        lambda: detent.check(wrong),
        lambda: detent.split(wrong, tmp_path / "a", tmp_path / "b"),
        lambda: detent.emulate(wrong),
        lambda: detent.evaluate(wrong, samples),
        lambda: detent.infer(wrong, samples, tmp_path / "c"),
        lambda: detent.compare_candidates(wrong, samples),
    ):
        with pytest.raises(UsageError, match="is no model"):
            call()
