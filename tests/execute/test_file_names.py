from __future__ import annotations

from detent.execute.output_folder import file_stems


def test_names_are_harmless_and_differ():
    assert file_stems(["a/b", "a_b", "A/B", "../x", "", "ü"]) == ["a_b", "a_b_2", "A_B_3", "_x", "_", "__2"]


def test_a_number_that_is_taken():
    stems = file_stems(["x", "x_2", "x", "x"])
    assert len({stem.lower() for stem in stems}) == 4


def test_long_names_fit_into_a_file_system():
    assert all(len(stem) < 200 for stem in file_stems(["n" * 999, "n" * 998]))
