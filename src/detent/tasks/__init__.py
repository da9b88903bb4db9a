"""What a model is for, recognised from its file: so that it can be judged as its user would.

    the file's metadata            says it: Ultralytics' `task`, others' `pipeline_tag`, ...
    token inputs                   a row of scores for the text: classify, or tag after a Sigmoid; for each token:
                                   sequence; vectors: embed
    post-processing of detections  (plan/postprocessing.py), or outputs laid out as a detector's (heads.py): detect
    shapes                         [n, classes]: classify, or tag after a Sigmoid; [n, steps, classes], after a Softmax
                                   or called logits: sequence; a map of classes: segment; as many channels as the
                                   image, as large or several times as large: image; a single one of a colour image,
                                   or a number for each pixel: regress, as depth; a row alone, as long as vectors are
                                   made and not called logits: embed
    anything else                  regress: numbers, compared as such

Shapes are those of real outputs where they are known, since a file often leaves them open. An output that only passes
an input on is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import onnx_ir as ir

from detent.errors import UsageError, check_known
from detent.graph.values import rank, static_shape
from detent.observe.exporters import class_names
from detent.observe.sources import Shape, anchors_of, cells_of
from detent.plan.postprocessing import Postprocessing, find_postprocessing
from detent.tasks.endings import (
    SHARES,
    HeadKind,
    are_places,
    are_scores,
    are_tags,
    confidences,
    ends_in,
    has_bias_of_its_own,
    is_embedding,
    is_weighted_sum,
    passed_on,
    score_rows,
)
from detent.tasks.heads import ROWS_OF_OBJECTS, recognise_head


class Task(str, Enum):
    """What outputs are for."""

    CLASSIFY = "classify"
    TAG = "tag"
    SEQUENCE = "sequence"
    DETECT = "detect"
    SEGMENT = "segment"
    EMBED = "embed"
    REGRESS = "regress"
    IMAGE = "image"

    def __str__(self) -> str:
        return self.value


TASKS = tuple(task.value for task in Task)

_METADATA_KEYS = ("task", "pipeline_tag", "model_type", "task_type", "problem_type")
_METADATA_WORDS = {
    "classify": Task.CLASSIFY,
    "classification": Task.CLASSIFY,
    "image-classification": Task.CLASSIFY,
    "text-classification": Task.CLASSIFY,
    "single_label_classification": Task.CLASSIFY,
    "multi_label_classification": Task.TAG,
    "multi-label-classification": Task.TAG,
    "token-classification": Task.SEQUENCE,
    "detect": Task.DETECT,
    "pose": Task.DETECT,
    "obb": Task.DETECT,
    "object-detection": Task.DETECT,
    "detection": Task.DETECT,
    "segment": Task.SEGMENT,
    "semantic-segmentation": Task.SEGMENT,
    "image-segmentation": Task.SEGMENT,
    "feature-extraction": Task.EMBED,
    "sentence-similarity": Task.EMBED,
    "image-feature-extraction": Task.EMBED,
    "regression": Task.REGRESS,
    "depth-estimation": Task.REGRESS,
    "super-resolution": Task.IMAGE,
    "image-to-image": Task.IMAGE,
}
BY_SHAPE = ", by its shape"  # how a reason ends that nothing but the shape of an output stands for
BY_LAYOUT = "outputs laid out as a detector's"  # how a reason begins that stands on shapes alone, too
_FEW_CLASSES = 32  # Vectors of words are longer
FEWER_CHANNELS = 4  # times fewer than pixels along either side: then channels come last
VECTOR_SIZES = range(64, 4097, 64)  # of vectors to compare; numbers of classes are seldom multiples of 64
_COARSEST = 16  # A map of classes is at most so many times smaller than the image; what is smaller is features


def recognise_task(
    graph: ir.Graph, metadata: Mapping[str, str], shapes: Mapping[str, Shape] | None = None
) -> tuple[Task, str]:
    """Return what the model is for, and how that was recognised. `shapes` are those of its outputs, if it was run."""
    said = _said_by_metadata(metadata)
    if said is not None:
        return said
    known = _shapes(graph, shapes)
    if takes_tokens(graph):
        return _of_tokens(graph, known)
    image = image_size(graph)
    tail = find_postprocessing(graph)
    if tail is not None and _may_be_detections(tail, image, known):
        return Task.DETECT, f"post-processing of detections: {tail.sign}"
    if image is not None and _is_laid_out_as_detections(_without_rows(known), image):
        return Task.DETECT, f"{BY_LAYOUT}: {shapes_text(known)}"
    for value in graph.outputs:
        if value.name not in known:
            continue
        shape = known[str(value.name)]
        found = _by_time(shape, value, graph) or _by_shape(value, shape, image, _image_channels(graph))
        if found is not None and len(known) == 1 and found[1].endswith(BY_SHAPE) and max(_sizes(shape)) in VECTOR_SIZES:
            return Task.EMBED, f"{shapes_text(known)} is as long as vectors are made{BY_SHAPE}"
        if found is not None:
            return found
    return Task.REGRESS, f"outputs {shapes_text(known)} are numbers of no known kind"


def find_task(
    named: str | None, graph: ir.Graph, metadata: Mapping[str, str], shapes: Mapping[str, Shape] | None = None
) -> tuple[Task, str]:
    """Return the task that a user named, or else the one that is recognised.

    Raise UsageError for a task that the model cannot have.
    """
    if named is None:
        return recognise_task(graph, metadata, shapes)
    check_known("task", named, TASKS)
    task, known = Task(named), _shapes(graph, shapes)
    if not _can_have(task, graph, known):
        recognised, why = recognise_task(graph, metadata, shapes)
        raise UsageError(
            f"The outputs do not fit --task {task}: {shapes_text(known)}. {_NEEDED[task]} This model looks like "
            f"{recognised} ({why})."
        )
    return task, "as --task says"


def _may_be_detections(tail: Postprocessing, image: tuple[int, int] | None, shapes: Mapping[str, Shape]) -> bool:
    rows = image is not None and tail.suppresses
    return any(len(shape) >= 3 or shape[-1:] == (4,) or (rows and len(shape) == 2) for shape in shapes.values())


def _without_rows(shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Return the outputs that may be detections by their shapes alone: rows of six numbers may be scores of classes."""
    return {} if any(len(shape) == 2 and shape[1] in ROWS_OF_OBJECTS for shape in shapes.values()) else shapes


def answer_heads(task: Task, graph: ir.Graph, shapes: Mapping[str, Shape] | None = None) -> dict[str, HeadKind]:
    """Return the outputs that hold scores, numbers or objects, and which of these; empty for other tasks.

    The task is right about rows whose ending says otherwise: who names it knows how the model is used.
    """
    known = _shapes(graph, shapes)
    if task is Task.DETECT:
        head = recognise_head(known, image_size(graph) or (640, 640))
        return {} if head is None else dict.fromkeys(head.outputs, "objects")
    if task is Task.SEQUENCE:
        steps = {value: shape[-1] for value in graph.outputs if len(shape := known.get(str(value.name), ())) == 3}
        scores = [each for each, size in steps.items() if are_scores(each) or _is_of_labels(each, size)]
        return {str(each.name): "classes" for each in scores}
    if task not in (Task.CLASSIFY, Task.TAG):
        return {}
    found = score_rows(graph, known)
    own: HeadKind = "tags" if task is Task.TAG else "classes"
    if own in found.values():
        return found
    return {name: kind if kind == "number" else own for name, kind in found.items()}


def number_confidences(graph: ir.Graph, shapes: Mapping[str, Shape] | None = None) -> dict[str, str]:
    """Return each output of numbers beside which another says how sure they are, with the name of that one."""
    return confidences(graph, _shapes(graph, shapes))


_NEEDED = {
    Task.CLASSIFY: "A classifier has a row of two or more scores for each sample.",
    Task.TAG: "A tagger has a row of two or more scores for each sample, each of a tag that is there or not.",
    Task.SEQUENCE: "A sequence has a row of two or more scores for each step: [n, steps, classes].",
    Task.DETECT: "A detector has boxes and scores: [n, 4 + classes, anchors], [n, anchors, 5 + classes], or in pairs.",
    Task.SEGMENT: "Segmentation has a map of classes: [n, classes, height, width].",
    Task.EMBED: "An encoder has a vector for each sample or token: [n, size] or [n, tokens, size].",
    Task.IMAGE: "An image has 1, 3 or 4 channels: [n, channels, height, width].",
    Task.REGRESS: "",
}


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """Say what outputs look like: 'logits' [n, 1000]."""
    return ", ".join(
        f"'{name}' [{', '.join('?' if size is None else str(size) for size in shape)}]"
        for name, shape in shapes.items()
    )


def image_size(graph: ir.Graph) -> tuple[int, int] | None:
    """Return height and width of the first input that may be an image, of any layout; None if there is none."""
    for value in graph.inputs:
        shape = static_shape(value)
        if shape is None or len(shape) != 4:
            continue
        sides = shape[1:3] if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else shape[2:4]
        if sides[0] is not None and sides[1] is not None:
            return sides[0], sides[1]
    return None


def _image_channels(graph: ir.Graph) -> int | None:
    """Return how many channels the first input that may be an image has; None if that is not known."""
    shapes = (static_shape(value) for value in graph.inputs)
    sizes = next((shape for shape in shapes if shape is not None and len(shape) == 4), [None, None, None, None])
    return next((size for size in (sizes[1], sizes[3]) if size in (1, 3, 4)), None)


def _sizes(shape: Shape) -> list[int]:
    return [size or 1 for size in shape[1:]]


def class_count(metadata: Mapping[str, str]) -> int | None:
    """Return how many classes the metadata of a file names; None if it names none."""
    return len(class_names(metadata.get("names", ""))) or None


def _said_by_metadata(metadata: Mapping[str, str]) -> tuple[Task, str] | None:
    for key in _METADATA_KEYS:
        word = metadata.get(key, "").strip().lower()
        task = _METADATA_WORDS.get(word)
        if task is Task.SEGMENT and "stride" in metadata and "names" in metadata:
            task = Task.DETECT  # Ultralytics' segmentation is of instances: a detector with masks
        if task is not None:
            return task, f"the file's metadata say {key}: {word}"
    return None


def _shapes(graph: ir.Graph, real: Mapping[str, Shape] | None) -> dict[str, Shape]:
    given = real or {}
    found = {}
    answers = [value for value in graph.outputs if value.name not in passed_on(graph)]
    for value in answers:
        declared = static_shape(value)
        found[str(value.name)] = tuple(given.get(str(value.name), () if declared is None else tuple(declared)))
    return found


def takes_tokens(graph: ir.Graph) -> bool:
    """Tell whether an input is a row of whole numbers for each sample, as tokens are."""
    return any(
        value.dtype in (ir.DataType.INT64, ir.DataType.INT32) and rank(value) == 2 and value.producer() is None
        for value in graph.inputs
    )


def _of_tokens(graph: ir.Graph, shapes: Mapping[str, Shape]) -> tuple[Task, str]:
    answers = {value: shapes[str(value.name)] for value in graph.outputs if value.name in shapes}
    rows = [value for value, shape in answers.items() if len(shape) == 2]
    steps = [value for value, shape in answers.items() if len(shape) == 3]
    if any(are_tags(value) for value in rows):
        return Task.TAG, "token inputs, and a row of tags, each after a Sigmoid"
    if any(are_scores(value) for value in rows):
        return Task.CLASSIFY, "token inputs, and a row of scores"
    growing = [value for value in rows if _grows_with_input(value)]  # a number for each token: no vector, no classes
    if any(is_weighted_sum(value) for value in growing):
        return Task.TAG, "token inputs, and a score for each token"
    rows = [value for value in rows if value not in growing]
    if any(are_scores(value) for value in steps):
        return Task.SEQUENCE, "token inputs, and a row of scores for each token"
    # A layer with a bias for each of 59 labels. Vectors are as long as they are made, or have passed a normalization.
    labels = [value for value in steps if _is_of_labels(value, answers[value][-1])]
    if labels:
        return Task.SEQUENCE, f"token inputs, and a row of {answers[labels[0]][-1]} scores for each token"
    for found, task in ((rows, Task.CLASSIFY), (steps, Task.SEQUENCE)):
        sizes = [answers[value][-1] for value in found]
        if sizes and all(size is not None and 2 <= size <= _FEW_CLASSES for size in sizes):
            of = " for each token" if task is Task.SEQUENCE else ""
            return task, f"token inputs, and a row of {sizes[0]} scores{of}"
    if any(answers[value][-1] != 1 for value in (*rows, *steps)):
        return Task.EMBED, f"token inputs, and vectors: {shapes_text(shapes)}"
    return Task.REGRESS, f"outputs {shapes_text(shapes)} are numbers of no known kind"


def _is_of_labels(value: ir.Value, size: int | None) -> bool:
    odd = size is not None and size > 1 and size not in VECTOR_SIZES
    return odd and is_weighted_sum(value) and has_bias_of_its_own(value)


def _is_laid_out_as_detections(shapes: Mapping[str, Shape], image: tuple[int, int]) -> bool:
    head = recognise_head(shapes, image)
    if head is None:
        return _is_pyramid(shapes, image)
    if head.layout in ("columns", "rows"):
        # Any matrix looks like these; the number of positions tells.
        count = max(size or 0 for size in shapes[head.outputs[0]][1:])
        return any(count == anchors * cells for cells in anchors_of(image) for anchors in (1, 2, 3, 4, 5, 6, 9))
    return True


def _is_pyramid(shapes: Mapping[str, Shape], image: tuple[int, int]) -> bool:
    """Tell whether outputs are the raw maps of a detector: several, each half as large as the one before.

    With one as large as the image they are masks, beside those and the features that a network was trained with.
    """
    sides = [shape[-2:] for shape in shapes.values() if len(shape) in (4, 5)]
    if len(set(sides)) >= 3 and image not in sides:
        return True
    # The same as rows, one output for each grid and kind of numbers: SCRFD, PicoDet.
    cells = {count: stride for stride, count in cells_of(image).items()}
    counts = {count * anchors: stride for count, stride in cells.items() for anchors in (1, 2, 3)}
    rows = [shape[-2] for shape in shapes.values() if len(shape) in (2, 3)]
    return len(rows) == len(shapes) and len({counts.get(count or 0) for count in rows} - {None}) >= 3


def _by_time(shape: Shape, value: ir.Value, graph: ir.Graph) -> tuple[Task, str] | None:
    """Recognise rows of scores for each step, whichever of the two axes comes first."""
    text = shapes_text({str(value.name): shape})
    if len(shape) != 3 or is_embedding(value):
        return None
    batches = {sizes[0] for each in graph.inputs if (sizes := static_shape(each))}
    recurrent = shape[1] == 1 and shape[0] not in (1, None) and batches == {1} and shape[2] not in (1, None)
    if recurrent or (shape[1] != 1 and are_scores(value)):
        return Task.SEQUENCE, f"{text} is a row of scores for each step"
    return None


def _by_shape(
    value: ir.Value, shape: Shape, image: tuple[int, int] | None, colours: int | None
) -> tuple[Task, str] | None:
    text = shapes_text({str(value.name): shape})
    spatial = tuple(size for size in shape[1:] if size != 1)
    if len(shape) == 2 or (len(shape) > 2 and len(spatial) == 1):
        if is_embedding(value):
            return Task.EMBED, f"{text} is a vector for each sample"
        if are_places(value):
            return None
        if spatial and are_tags(value):
            return Task.TAG, f"{text} is a row of tags, each after a Sigmoid of its own"
        if spatial and (spatial[0] is None or spatial[0] >= 2):
            certain = are_scores(value)
            if not certain and (_grows_with_input(value) or _is_as_long_as_an_input(value, spatial[0])):
                return None
            return Task.CLASSIFY, f"{text} is a row of scores for each sample{'' if certain else BY_SHAPE}"
        return (Task.CLASSIFY, f"{text} is a probability") if ends_in(value, ("Sigmoid",)) else None
    if len(shape) == 3 and image is not None and shape[1:] == image:
        shares = (
            ends_in(value, (*SHARES, "Sigmoid", "ArgMax")) or not (value.dtype or ir.DataType.FLOAT).is_floating_point()
        )
        return Task.SEGMENT if shares else Task.REGRESS, f"{text} is a number for each pixel"
    if len(shape) == 4:
        return _of_maps(value, shape, image, text, colours)
    return None


def _grows_with_input(value: ir.Value) -> bool:
    """Tell whether the file leaves the length of rows open, as that of an input: steps, not classes."""
    declared = value.shape
    inputs = () if value.graph is None else value.graph.inputs
    lengths = [each.shape[-1] for each in inputs if each.shape is not None and len(each.shape) in (2, 3)]
    return declared is not None and not isinstance(declared[-1], int) and any(not isinstance(n, int) for n in lengths)


def _is_as_long_as_an_input(value: ir.Value, size: int | None) -> bool:
    """Tell whether a row has a number for each one of an input: of a sound, a signal or a table, not of classes."""
    shapes = [] if value.graph is None else [static_shape(each) for each in value.graph.inputs]
    sizes = {side for shape in shapes if shape is not None and len(shape) in (2, 3) for side in shape[1:]}
    return size is not None and size > _FEW_CLASSES and size in sizes


def _of_maps(
    value: ir.Value, shape: Shape, image: tuple[int, int] | None, text: str, colours: int | None
) -> tuple[Task, str] | None:
    channels, (height, width) = channels_and_sides(shape)
    if ends_in(value, (*SHARES, "Sigmoid", "ArgMax")):
        return Task.SEGMENT, f"{text} is a map of shares"
    open_size = height is None or width is None or image is None
    larger = open_size or (
        _is_multiple(height, image[0] if image else 0) and _is_multiple(width, image[1] if image else 0)
    )
    if channels == 1 and larger and colours in (3, 4):
        return Task.REGRESS, f"{text} is a number for each pixel of a colour image"
    # What a network computes for the pixels of an image it does not leave to interpolation; for regions it does, but
    # only up to the size of the image: beyond are those that enlarge, and may come down to the size that is asked for.
    enlarged = not open_size and (height or 0) > (image or (0, 0))[0]
    if channels in (1, 3) and (enlarged or (larger and not ends_in(value, ("Resize", "Upsample")))):
        return Task.IMAGE, f"{text} is an image"
    near = open_size or ((height or 0) * _COARSEST >= (image or (0, 0))[0] and (height or 0) > 1)
    if channels is not None and channels >= 2 and near:
        return Task.SEGMENT, f"{text} is a map of {channels} scores"
    return None


def channels_and_sides(shape: Sequence[int | None]) -> tuple[int | None, tuple[int | None, int | None]]:
    """Return the channels, and height and width, of a map in either layout; channels are fewer than pixels."""
    first, second, third = shape[1:4]
    if first is None or second is None or third is None or third >= min(first, second):
        return first, (second, third)
    # A map need not be square, but a side that is far smaller than the two others is none.
    last = first == second or FEWER_CHANNELS * third <= min(first, second)
    return (third, (first, second)) if last else (first, (second, third))


def _is_multiple(side: int | None, of: int) -> bool:
    return side is not None and of > 0 and side >= of and side % of == 0


def _can_have(task: Task, graph: ir.Graph, shapes: Mapping[str, Shape]) -> bool:
    every = [shape for shape in shapes.values() if shape]
    if not every or task is Task.REGRESS:
        return True
    if task in (Task.CLASSIFY, Task.TAG):
        return any(len(tuple(size for size in shape[1:] if size != 1)) == 1 for shape in every)
    if task is Task.SEQUENCE:
        return any(len(shape) == 3 for shape in every) and find_postprocessing(graph) is None
    if task is Task.DETECT:
        image = image_size(graph) or (640, 640)
        alone, tail = _without_rows(shapes), find_postprocessing(graph)
        found = recognise_head(alone, image) is not None or _is_pyramid(alone, image)
        return found or (tail is not None and _may_be_detections(tail, image, shapes))
    if task is Task.EMBED:
        return any(len(tuple(size for size in shape[1:] if size != 1)) in (1, 2) for shape in every)
    if task is Task.SEGMENT:
        return any(len(shape) == 4 or (len(shape) == 3 and shape[1:] == image_size(graph)) for shape in every)
    return any(len(shape) == 4 and channels_and_sides(shape)[0] in (1, 3, 4, None) for shape in every)
