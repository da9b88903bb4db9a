from __future__ import annotations

import pytest

from detent.prepare import NormalizeGemm
from tests.prepare.equivalence import check, f32, make, node


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 2.0), (1.0, 0.25), (3.0, 1.0), (2.0, 0.0)])
@pytest.mark.parametrize("opset", [17, 18, 21])
def test_factors_become_one(trans_b, alpha, beta, opset):
    constants = {"w": f32(5, 4) if trans_b else f32(4, 5), "c": f32(5)}
    gemm = node("Gemm", "x w c", "y", name="fc", alpha=alpha, beta=beta, transB=trans_b)
    done = check(NormalizeGemm(), make([gemm], {"x": [3, 4]}, {"y": None}, constants, opset))
    assert not {"alpha", "beta"} & {name for name, value in done.attributes("Gemm").items() if value != 1.0}
    assert len(done.named("Gemm").input) == (2 if beta == 0 else 3)


def test_beta_without_c_is_dropped():
    gemm = node("Gemm", "x w", "y", beta=2.0)
    done = check(NormalizeGemm(), make([gemm], {"x": [3, 4]}, {"y": None}, {"w": f32(4, 5)}), exact=True)
    assert "beta" not in done.attributes("Gemm")


def test_declines_each_factor_on_its_own():
    gemm = node("Gemm", "x w c", "y", alpha=2.0, beta=3.0)
    done = check(NormalizeGemm(), make([gemm], {"x": [3, 4], "w": [4, 5]}, {"y": None}, {"c": f32(5)}))
    assert done.attributes("Gemm")["alpha"] == 2.0
    assert "beta" not in done.attributes("Gemm")
    assert "alpha is 2" in done.why


def test_plain_gemm_is_untouched():
    proto = make([node("Gemm", "x w", "y")], {"x": [3, 4]}, {"y": None}, {"w": f32(4, 5)})
    assert not check(NormalizeGemm(), proto, exact=True).step.changes
