import pytest
import torch
from torch.nn import functional as F

from benchmarks.linear import Linear, _forms, measure_linear

TINY = {"layers": 2, "hidden_size": 8, "qkv_size": 12, "intermediate_size": 10, "vocab_size": 20}


def test_all_forms_are_the_same_products(monkeypatch):
    shapes = Linear(**TINY).shapes
    assert shapes == [(12, 8), (8, 8), (20, 8), (8, 10)] * 2 + [(20, 8)]
    weights = [torch.randn(shape) for shape in shapes]
    drawn = iter(weights)
    monkeypatch.setattr(torch, "randn", lambda shape: next(drawn))
    forms = _forms(shapes)
    monkeypatch.undo()
    for maps in forms.values():
        for linear, weight in zip(maps, weights, strict=True):
            x = torch.rand(3, weight.shape[1])
            torch.testing.assert_close(linear(x).float(), F.linear(x, weight), atol=0.1, rtol=0.02)


def test_medians_by_form_and_rows(capsys):
    medians = measure_linear(Linear(**TINY, rows=(1, 70), rounds=2))
    assert "float32, plain" in medians
    assert {tuple(own) for own in medians.values()} == {(1, 70)}
    assert all(seconds > 0 for own in medians.values() for seconds in own.values())
    printed = capsys.readouterr().out
    assert all(form in printed for form in medians)


@pytest.mark.parametrize("change", [{"rows": ()}, {"rows": (0,)}, {"layers": 0}, {"rounds": 0}])
def test_sizes_that_measure_nothing_are_refused(change):
    with pytest.raises(ValueError, match="at least"):
        Linear(**change)
