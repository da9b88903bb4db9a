from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detent.device_check.partition import partition


def regions(edges: str, on_device: str, order: str = "abcdefgh") -> list[str]:
    """`edges` as "ab bc": b reads a, c reads b."""
    inputs: dict[str, list[str]] = {}
    for source, reader in edges.split():
        inputs.setdefault(reader, []).append(source)
    return ["".join(region) for region in partition(order, inputs, set(on_device))]


def test_a_chain_is_one_region():
    assert regions("ab bc cd", "abcd") == ["abcd"]


def test_a_cpu_node_divides_a_chain():
    assert regions("ab bc cd", "abd") == ["ab", "d"]


def test_a_cpu_node_beside_a_residual_edge_divides_too():
    # a -> b -> d and a -> d, b on the CPU: a and d in one region would wait for b, which waits for a.
    assert regions("ab bd ad", "ad") == ["a", "d"]


def test_a_cpu_node_at_the_side_divides_nothing():
    # b is on the CPU, but nothing on the device reads it.
    assert regions("ab ac cd", "acd") == ["acd"]


def test_branches_that_meet_are_one_region():
    assert regions("ab ac bd cd", "abcd") == ["abcd"]


def test_a_cpu_node_at_the_start_divides_nothing():
    assert regions("ab bc", "bc") == ["bc"]


def test_unconnected_parts_are_two():
    assert regions("ab cd", "abcd") == ["ab", "cd"]


def test_a_region_grows_past_the_level_of_another():
    # c is behind the CPU node b, e is not behind a: e and c can run together although their levels differ.
    assert regions("ab bc ec", "ace", order="abec") == ["a", "ec"]


def test_nothing_on_the_device():
    assert regions("ab", "") == []


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    order = [str(index) for index in range(count)]
    inputs = {
        order[index]: draw(st.lists(st.sampled_from(order[:index]), max_size=3, unique=True)) if index else []
        for index in range(count)
    }
    return order, inputs, {name for name in order if draw(st.booleans())}


def has_circle(order, inputs, group_of) -> bool:
    """Whether groups wait for each other, by following every edge between them."""
    after: dict[str, set[str]] = {}
    for node in order:
        for source in inputs[node]:
            if group_of[source] != group_of[node]:
                after.setdefault(group_of[source], set()).add(group_of[node])

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        for step in after.get(start, ()):
            if step == goal or (step not in seen and reaches(step, goal, seen | {step})):
                return True
        return False

    return any(reaches(group, group, set()) for group in set(group_of.values()))


@given(graphs())
def test_regions_cover_the_device_never_wait_in_a_circle_and_cannot_be_joined(graph):
    order, inputs, on_device = graph
    found = partition(order, inputs, on_device)
    assert sorted(name for region in found for name in region) == sorted(on_device)
    group_of = {name: name for name in order}
    for region in found:
        group_of.update(dict.fromkeys(region, f"region {region[0]}"))
    assert not has_circle(order, inputs, group_of)
    for node in order:
        for source in inputs[node]:
            if node in on_device and source in on_device and group_of[node] != group_of[source]:
                joined = {name: group_of[node] if at == group_of[source] else at for name, at in group_of.items()}
                assert has_circle(order, inputs, joined)
