from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.equalizations import CrossLayer, GlobalEqualization
from detent.errors import UsageError
from detent.methods import METHODS, Entropy, LayerwisePercentile, MinMax, MinMSE, Percentile
from detent.numerics import BLOCK_FORMATS
from detent.numerics.blocks import BlockFloat, Microscaling
from detent.numerics.floats import FLOAT_NAMES, FloatFormat
from detent.numerics.formats import INTEGER_TYPES, IntegerFormat
from detent.recipe import Override, Recipe
from detent.recipe.file import change, find_recipe, from_plain, read_recipe, to_plain, to_toml, with_settings
from detent.recipe.recipe import FUSABLE_ACTIVATIONS, PRESETS
from detent.refinements import REFINEMENTS, AdaQuant, AdaRound, QuickRounding, Rounding
from tests.recipe.test_toml_text import tomllib

XINT8, A8W8 = PRESETS["XINT8"], PRESETS["A8W8"]

INTEGERS = st.builds(
    IntegerFormat,
    st.sampled_from(INTEGER_TYPES),
    st.booleans(),
    st.sampled_from(["float", "power_of_two", "int16"]),
    st.sampled_from(["per_tensor", "per_channel", "per_group:32"]),
)
FLOATS = st.builds(FloatFormat, st.sampled_from(FLOAT_NAMES), st.booleans()) | st.just(
    FloatFormat("bfloat16", clip=True)
)
BLOCKS = (
    st.sampled_from(list(BLOCK_FORMATS.values()))
    | st.builds(BlockFloat, st.integers(10, 20), st.sampled_from([8, 16]), st.sampled_from([None, 2]))
    | st.just(Microscaling("fp4_e2m1", 64))
)
FORMATS = INTEGERS | FLOATS | BLOCKS
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
PATTERNS = st.lists(WORDS, min_size=1, max_size=2).map(tuple)
RANGES = st.tuples(st.floats(-1e6, -1e-6), st.floats(1e-6, 1e6))
METHOD_VALUES = st.sampled_from(
    [*METHODS.values(), MinMax(True), Percentile(99.5, (("a b", 98.0), ("c", 97.5))), LayerwisePercentile((90.0,))]
)
REFINEMENT_VALUES = st.sampled_from(
    [*REFINEMENTS.values(), Rounding(rows=3), AdaRound(penalty=0.01, beta=(9.0, 3.0)), AdaQuant(seed=4)]
) | st.builds(AdaRound, learning_rate_above=RANGES.map(lambda pair: (-pair[0], pair[1])))


@st.composite
def overrides(draw):
    part = draw(
        st.fixed_dictionaries(
            {}, optional={"nodes": PATTERNS, "op_types": PATTERNS, "between": st.tuples(PATTERNS, PATTERNS)}
        )
    )
    if part and draw(st.booleans()):
        return Override(**part, leave_float=True)
    roles = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(("activations", "weights", "biases"), FORMATS)))
    if roles and part:
        return Override(**part, **roles)
    return Override(tensors=draw(PATTERNS), range=draw(RANGES), **roles)


RECIPES = st.builds(
    Recipe,
    name=WORDS,
    description=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    activations=st.none() | FORMATS,
    weights=st.none() | FORMATS,
    biases=st.none() | FORMATS,
    method=METHOD_VALUES,
    weight_method=st.none() | METHOD_VALUES,
    clip_outputs=st.booleans(),
    dynamic=st.booleans(),
    equalize=st.none()
    | st.builds(GlobalEqualization, st.booleans())
    | st.builds(CrossLayer, st.just(-1) | st.integers(1, 9), absorb=st.booleans()),
    smooth=st.none() | st.floats(0, 1),
    refinement=REFINEMENT_VALUES,
    rounding=st.sampled_from(["half-even", "dpu"]),
    format=st.sampled_from(["qdq", "qoperator", "cast", "fix-neuron"]),
    opset=st.none() | st.integers(17, 25),
    weight_pairs=st.booleans(),
    operators=st.just(()) | PATTERNS,
    fuse=st.sampled_from([(), ("Relu",), FUSABLE_ACTIVATIONS]),
    without=st.just(()) | PATTERNS,
    overrides=st.lists(overrides(), max_size=3).map(tuple),
)


def loaded(text):
    return from_plain(tomllib.loads(text))


@given(RECIPES)
def test_every_recipe_is_what_its_file_says(recipe):
    assert loaded(to_toml(recipe)) == recipe


@pytest.mark.parametrize("base", ["XINT8", "MX6", "BF16_MIXED_MXINT8", "A16W8_ADAROUND", "UINT8_DYNAMIC_QUANT"])
@settings(max_examples=15)
@given(recipe=RECIPES)
def test_a_complete_file_does_not_depend_on_the_formats_of_its_base(base, recipe):
    assert loaded(f'base = "{base}"\n' + to_toml(recipe)) == recipe


@pytest.mark.parametrize("recipe", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_what_its_file_says(recipe, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    assert find_recipe(path) == find_recipe(str(path)) == recipe
    path.write_text(f'base = "{recipe.name}"\nname = "mine"', encoding="utf-8")
    assert read_recipe(path) == recipe.replace(name="mine", description=f"{recipe.name}, changed")


def test_a_file_says_what_is_different(tmp_path):
    path = tmp_path / "fine heads.toml"
    path.write_text(
        'base = "A8W8"\nmethod = "Percentile:percentile=99.99"\n[weights]\ngranularity = "per_channel"\n'
        '[[overrides]]\nnodes = ["head/*"]\nactivations = "int16"\n'
        '[[overrides]]\ntensors = ["logits"]\nrange = [-8, 8]\n'
    )
    assert read_recipe(path) == A8W8.replace(
        name="fine heads",
        description="A8W8, changed",
        method=Percentile(99.99),
        weights=IntegerFormat("int8", granularity="per_channel"),
        overrides=(
            Override(nodes=("head/*",), activations=IntegerFormat("int16")),
            Override(tensors=("logits",), range=(-8.0, 8.0)),
        ),
    )


def test_a_file_without_a_base_changes_xint8(tmp_path):
    (tmp_path / "plain.toml").write_text("rounding = 'dpu'")
    recipe = read_recipe(tmp_path / "plain.toml")
    assert recipe == XINT8.replace(name="plain", description="XINT8, changed", rounding="dpu")


@pytest.mark.parametrize("text", ["", "\n", "# base = 'A8W8'\n"])
def test_a_file_that_says_nothing_is_refused(tmp_path, text):
    (tmp_path / "empty.toml").write_text(text)
    with pytest.raises(UsageError, match=r"empty\.toml says nothing.*base = .*XINT8"):
        find_recipe(tmp_path / "empty.toml")


def test_roles_that_stay_float():
    assert from_plain({"activations": "float", "biases": "float"}).formats == {
        "activations": None,
        "weights": XINT8.weights,
        "biases": None,
    }


def test_a_type_keeps_what_else_is_said_of_integers():
    assert change(XINT8, {"activations": "int16"}).activations == IntegerFormat("int16", scale="power_of_two")
    assert change(XINT8, {"weights": {"type": "bfloat16"}}).weights == FloatFormat("bfloat16")
    assert change(PRESETS["BF16"], {"weights": "int8"}).weights == IntegerFormat("int8")


def test_a_block_format_by_its_kind_is_the_plain_one_with_what_is_said():
    mx6 = PRESETS["MX6"]
    assert change(mx6, {"weights": {"type": "block_float", "block_size": 32}}).weights == BlockFloat(16, 32)
    assert change(mx6, {"weights": {"block_size": 32}}).weights == BlockFloat(13, 32, 2)
    assert change(mx6, {"weights": {"sub_block_size": "none"}}).weights == BlockFloat(13, 16)
    assert change(mx6, {"weights": "BFP16"}).weights == BlockFloat()


BAD_FILES = {
    "unknown key": ("wieghts = 'int8'", ("no field 'wieghts'", "Did you mean 'weights'")),
    "key of a format": ("[weights]\nsymetric = true", ("weights", "int8", "'symetric'", "'symmetric'")),
    "key of a method": ("[method]\nname = 'Percentile'\npercent = 1", ("Percentile", "'percent'", "'percentile'")),
    "key of an override": ("[[overrides]]\nnode = ['a']", ("'node'", "'nodes'")),
    "type": ("weights = 'int9'", ("weights", "'int9'", "'int8'")),
    "type that is a list": ("weights = { type = ['int8'] }", ("weights", "['int8']")),
    "format that is a number": ("weights = 8", ("weights is 8", "table")),
    "word for a flag": ("clip_outputs = 'yes'", ("clip_outputs is 'yes'", "true or false")),
    "equalization": ("equalize = 'CrossLayers'", ("'CrossLayers'", "'CrossLayer'")),
    "setting of an equalization": ("equalize = 'CrossLayer:step=3'", ("'step'", "'steps'")),
    "key of an equalization": ("[equalize]\nname = 'CrossLayer'\nstep = 1", ("CrossLayer", "'step'", "'steps'")),
    "steps of an equalization": ("equalize = 'CrossLayer:steps=0'", ("steps of CrossLayer is 0", "-1")),
    "threshold of an equalization": ("equalize = 'CrossLayer:threshold=-1'", ("threshold of CrossLayer is -1",)),
    "number for an equalization": ("equalize = 3", ("equalize is 3", "table")),
    "number for a word": ("target = 4", ("target is 4", "a word")),
    "fraction for a whole number": ("opset = 17.5", ("opset is 17.5", "a whole number or 'none'")),
    "flag for a number": ("smooth = true", ("smooth is True", "a number")),
    "word for a list": ("fuse = 'Relu'", ("fuse is 'Relu'", "a list of words")),
    "list of numbers": ("without = [1]", ("without is 1", "a word")),
    "output format": ("format = 'qqd'", ("format is 'qqd'", "Did you mean 'qdq'")),
    "scale": ("[weights]\nscale = 'pow2'", ("weights.scale is 'pow2'", "'power_of_two'")),
    "granularity": ("[weights]\ngranularity = 'per_group:x'", ("per_group:x", "per_group:128")),
    "method": ("method = 'MinMay'", ("'MinMay'", "'MinMax'")),
    "method without a name": ("[method]\npercentile = 4", ("method has settings and no name",)),
    "method by a list": ("[method]\nname = ['MinMax']", ("method: there is no '['MinMax']'",)),
    "method by another name": ("[method]\nname = 'Minmax'", ("'Minmax'", "'MinMax'")),
    "method that is a number": ("method = 5", ("method is 5", "table")),
    "refinement": ("refinement = 'AdaRand'", ("'AdaRand'", "'AdaRound'")),
    "settings of no refinement": ("[refinement]\nname = 'none'\nrows = 4", ("none", "'rows'")),
    "setting of a refinement": ("[refinement]\nname = 'Rounding'\nrows = 'all'", ("refinement.rows is 'all'",)),
    "base": ("base = 'XINT9'", ("'XINT9'", "'XINT8'")),
    "overrides that are a table": ("[overrides]\nnodes = ['a']", ("overrides is", "a list")),
    "override of nothing": ("[[overrides]]\nactivations = 'int8'", ("names no part",)),
    "override that says nothing": ("[[overrides]]\nnodes = ['a']", ("the override of a", "leave_float")),
    "override that says both": ("[[overrides]]\nnodes = ['a']\nleave_float = true\nweights = 'int8'", ("not both",)),
    "override that is float": ("[[overrides]]\nnodes = ['a']\nweights = 'float'", ("overrides.weights", "leave_float")),
    "override of float tensors": ("[[overrides]]\ntensors = ['a']\nleave_float = true", ("Name the nodes",)),
    "range of nodes": ("[[overrides]]\nnodes = ['a']\nrange = [0, 1]", ("range", "`tensors`")),
    "range that falls": ("[[overrides]]\ntensors = ['a']\nrange = [1, 0]", ("two rising numbers",)),
    "range without end": ("[[overrides]]\ntensors = ['a']\nrange = [0, inf]", ("two rising numbers",)),
    "range of three": ("[[overrides]]\ntensors = ['a']\nrange = [0, 1, 2]", ("a list of 2 numbers",)),
    "between": ("[[overrides]]\nbetween = ['a', 'b']\nweights = 'int8'", ("overrides.between is 'a'",)),
    "fuse": ("fuse = ['Tanh']", ("'Tanh'", "Relu")),
    "not TOML": ("\nweights = = 3", ("is not TOML", "line 2")),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(kind, tmp_path):
    text, words = BAD_FILES[kind]
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        find_recipe(path)
    for word in (str(path), *words):
        assert word.lower() in str(caught.value).lower()
    assert "typing" not in str(caught.value) and "NoneType" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="missing.toml"):
        find_recipe(tmp_path / "missing.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="folder.toml: Is a directory"):
        find_recipe(tmp_path / "folder.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"bytes.toml is not TOML"):
        find_recipe(tmp_path / "bytes.toml")


SETTINGS = {
    "name=mine": {"name": "mine"},
    "weights=int16": {"weights": IntegerFormat("int16", scale="power_of_two")},
    "weights.type=uint8": {"weights": IntegerFormat("uint8", scale="power_of_two")},
    "weights.granularity=per_group:128": {
        "weights": dataclasses.replace(XINT8.weights, granularity="per_group:128"),
    },
    "weights.symmetric=false": {"weights": dataclasses.replace(XINT8.weights, symmetric=False)},
    "biases=float": {"biases": None},
    "activations=BFP16": {"activations": BlockFloat()},
    "method=Entropy": {"method": Entropy()},
    "method=percentile:percentile=99.5": {"method": Percentile(99.5)},
    "method.name=Percentile": {"method": Percentile()},
    "method.percentile=99": {"method": MinMSE(percentile=99.0)},
    "method.mode=MostCommon": {"method": MinMSE("MostCommon")},
    "weight_method=MinMax": {"weight_method": MinMax()},
    "weight_method=none": {},
    "weight_method.name=MinMax": {"weight_method": MinMax()},
    "refinement=none": {"refinement": None},
    "refinement.samples=7": {"refinement": QuickRounding(samples=7)},
    "refinement=AdaRound:penalty=0.01": {"refinement": AdaRound(penalty=0.01)},
    "refinement.name=Rounding": {"refinement": Rounding()},
    "smooth=0.5": {"smooth": 0.5},
    "smooth=1": {"smooth": 1.0},
    "smooth=none": {},
    "opset=21": {"opset": 21},
    "equalize=false": {"equalize": None},
    "equalize=none": {"equalize": None},
    "equalize=true": {"equalize": GlobalEqualization()},
    "equalize=crosslayer:steps=3,append_bias=false": {"equalize": CrossLayer(3, append_bias=False)},
    "equalize.name=CrossLayer": {"equalize": CrossLayer()},
    "equalize.absorb=true": {"equalize": GlobalEqualization(absorb=True)},
    "equalize=CrossLayer:absorb=true": {"equalize": CrossLayer(absorb=True)},
    "format=extended-qdq": {"format": "extended-qdq"},
    "target=cpu": {"target": "cpu"},
    "rounding=dpu": {"rounding": "dpu"},
    "operators=Conv,Gemm": {"operators": ("Conv", "Gemm")},
    "operators=Conv, Gemm": {"operators": ("Conv", "Gemm")},
    'operators=["Conv"]': {"operators": ("Conv",)},
    "fuse=[]": {"fuse": ()},
    "fuse=": {"fuse": ()},
    'overrides=[{nodes=["a"],leave_float=true}]': {"overrides": (Override(nodes=("a",), leave_float=True),)},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting):
    assert with_settings(XINT8, [setting]) == XINT8.replace(**SETTINGS[setting])


def test_settings_come_one_after_another():
    recipe = with_settings(XINT8, ["refinement=AdaRound", "refinement.samples=9", "refinement.penalty=0.5"])
    assert recipe.refinement == AdaRound(samples=9, penalty=0.5)
    assert with_settings(recipe, ["refinement.penalty=none"]).refinement == AdaRound(samples=9)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("weights", ("expected FIELD=VALUE",)),
        ("=3", ("expected FIELD=VALUE",)),
        ("wights=int8", ("'wights'", "'weights'")),
        ("weights.granul=per_channel", ("'granul'", "'granularity'")),
        ("weights.granularity.x=4", ("weights.granularity is {'x': 4}", "a word")),
        ("equalize=no", ("'no'", "CrossLayer, none")),
        ("equalize.steps=3", ("GlobalEqualization has no field 'steps'",)),
        ("name.first=A", ("name is {'first': 'A'}",)),
        ("weight_method.percentile=9", ("weight_method has settings and no name",)),
        ("method.name=Entrpy", ("'Entrpy'", "'Entropy'")),
        ("refinement.span=4", ("QuickRounding has no field 'span'",)),
        ("rounding=dp", ("rounding is 'dp'", "'half-even' or 'dpu'")),
        ("opset=17\nname='x'", ("opset is",)),
    ],
)
def test_bad_settings(setting, words):
    with pytest.raises(UsageError) as caught:
        with_settings(XINT8, [setting])
    for word in ("--set", *words):
        assert word in str(caught.value)


def test_plain_values_are_plain():
    assert to_plain(PRESETS["BF16_MIXED_BFP16"])["overrides"][0]["weights"]["type"] == "block_float"
    assert to_plain(PRESETS["MATMUL_NBITS"])["activations"] == "float"
    assert "smooth" not in to_plain(XINT8)
