import pytest
import torch

from entmtp_env.decoding import precision
from entmtp_env.decoding.half_linear import can_multiply_half
from entmtp_env.decoding.precision import choose_decoding_dtype, choose_device, choose_dtype, cpu_prefers

CPU = torch.device("cpu")


def test_auto_device_is_cuda_where_there_is_one(monkeypatch):
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto").type == ("cuda" if there else "cpu")


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device"):
        choose_device("cuda:0")


@pytest.mark.parametrize("name", ["gpu0", "", "cuda:x", "meta", "mps", "xpu:0"])
def test_a_device_that_nothing_here_can_time_is_refused(name):
    with pytest.raises(ValueError, match=f"device '{name}' is not supported; use 'auto', 'cpu', 'cuda' or"):
        choose_device(name)


@pytest.mark.parametrize(("faster", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_on_a_cpu_is_the_faster_one(monkeypatch, faster, dtype):
    monkeypatch.setattr(precision, "cpu_prefers", lambda dtype: faster)
    assert choose_dtype("auto", CPU) is dtype


@pytest.mark.parametrize(
    ("faster", "half", "dtype"),
    [
        ({torch.bfloat16, torch.float16}, True, torch.bfloat16),
        ({torch.float16}, True, torch.float16),
        ({torch.float16}, False, torch.float32),
        (set(), True, torch.float32),
    ],
)
def test_auto_dtype_to_decode_on_a_cpu_is_the_fastest_that_runs_there(monkeypatch, faster, half, dtype):
    monkeypatch.setattr(precision, "cpu_prefers", lambda dtype: dtype in faster)
    monkeypatch.setattr(precision, "can_multiply_half", lambda: half)
    assert choose_decoding_dtype("auto", CPU) is dtype
    assert choose_decoding_dtype("float32", CPU) is torch.float32
    if half:
        assert choose_decoding_dtype("float16", CPU) is torch.float16
    else:
        with pytest.raises(ValueError, match="'float16' on a CPU needs x86 with AVX2"):
            choose_decoding_dtype("float16", CPU)


def test_on_a_gpu_decoding_has_no_element_type_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    for name, dtype in (("auto", torch.bfloat16), ("float16", torch.float16)):
        assert choose_decoding_dtype(name, torch.device("cuda")) is dtype


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_dtype_on_a_gpu_is_what_it_supports(monkeypatch, supported, dtype):
    # Emulated it always is.
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or supported
    )
    assert choose_dtype("auto", torch.device("cuda")) is dtype


def test_named_dtypes():
    assert choose_dtype("float32", CPU) is torch.float32
    assert choose_dtype("float16", torch.device("cuda")) is torch.float16


@pytest.mark.parametrize(
    ("name", "message"), [("int8", "'int8' is unknown"), ("float16", "on a CPU serves decoding alone")]
)
def test_other_dtypes_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        choose_dtype(name, CPU)


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_measurement_follows_the_clock(monkeypatch, faster, dtype):
    if dtype is torch.float16 and not can_multiply_half():
        pytest.skip("no products of float16 on this machine")
    kept = []

    def seconds(x, layers):
        kept.append(layers)
        return 1.0 if (layers is kept[0]) is not faster else 2.0

    monkeypatch.setattr(precision, "_time", seconds)
    assert cpu_prefers.__wrapped__(dtype) == faster
    assert {len(layers) for layers in kept} == {24}


def test_a_cuda_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="'cuda:2': there are only 2 CUDA devices"):
        choose_device("cuda:2")
