"""CUDA graphs on a CPU: a function's operations are recorded, and repeated on the very same tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What makes the host wait for the device, or copies from the host; a capture refuses both.
_WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "lift_fresh", "masked_select", "unique")


def tensors(values):
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class _Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(_WAITING), f"{name} in a captured step"
        if name.startswith("index"):
            assert not any(t.dtype is torch.bool for t in tensors(args[1:])), f"{name} with a mask waits"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class Tapes:
    """A capture for tests. What a replay leaves behind outside the buffers is made unusable after it.

    So a step passes only when it reads nothing but its buffers, bakes in no number that changes, and waits
    for nothing.
    """

    def __init__(self):
        self.captured, self.replayed = [], []

    def __call__(self, function):
        number = len(self.captured)
        self.captured.append(function)
        function()
        with _Recording() as recording:
            function()

        def replay():
            self.replayed.append(number)
            own = []
            for func, args, kwargs, out in recording.calls:
                for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    # An operation in place, or a view, gives the memory of its arguments.
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
                        own.append(old)
            for tensor in own:
                tensor.fill_(True if tensor.dtype is torch.bool else -999)

        return replay
