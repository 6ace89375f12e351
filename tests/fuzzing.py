"""Damaged and hostile variants of files; every one follows from its random generator."""

import copy
import hashlib
import io
import json
import zipfile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, save

DEEP = "<nested 50,000 deep>"
TRAVERSALS = ("../../escaped", "/tmp/escaped", "..\\..\\escaped", "~/escaped", "\x00", "a/b", "CON", "\ud800")
CODE = ("__import__('os').system('touch ran')", "os:system", "!!python/object/apply:os.system", "{{ 7 * 7 }}")
NUMBERS = (-1, 0, 0.5, 7, 2**31, 2**63, -(2**64), 10**30, 10**400, 5e-324, 1e308, float("inf"), float("nan"))
VALUES = (None, True, False, "", "7", [], {}, [[]], [None], {"": {}}, [0] * 99, DEEP)
HOSTILE = (*TRAVERSALS, *CODE, *NUMBERS, *VALUES)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def damage(data, random):
    """Bytes as a bad disk, a cut connection or a careless editor leaves them; never the same."""
    changed = bytearray(data)
    place, other = random.randrange(len(data)), random.randrange(len(data))
    kind = random.randrange(8)
    if kind <= 2:
        for _ in range(random.choice((1, 1, 1, 2, 9))):
            bit = random.randrange(8 * len(data))
            changed[bit // 8] ^= 1 << bit % 8
    elif kind == 3:
        del changed[place:]
    elif kind == 4:
        del changed[place : place + random.randint(1, 40)]
    elif kind == 5:
        changed[place:place] = random.randbytes(random.randint(1, 40))
    elif kind == 6:
        changed[place:place] = data[other : other + random.randint(1, 200)]
    else:
        changed[place : place + 16] = random.choice((b"\0", b"\xff", b"9", b'"')) * 16
    return bytes(changed) if changed != data else data[:-1]


def distort(document, random):
    """A JSON document with some of its parts replaced, dropped, added, renamed or doubled."""
    root = [copy.deepcopy(document)]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        parent, key = random.choice(list(_places(root)))
        kind = random.randrange(8)
        if kind <= 3:
            parent[key] = copy.deepcopy(random.choice(HOSTILE))
        elif kind == 4 and parent is not root:
            del parent[key]
        elif kind == 5 and isinstance(parent, dict):
            parent[str(random.choice((*TRAVERSALS, *CODE, "extra")))] = parent.pop(key)
        elif kind == 6 and isinstance(parent, list) and parent is not root:
            parent.insert(0, copy.deepcopy(parent[key]))
        else:
            parent[key] = copy.deepcopy(random.choice(list(_values(root))))
    return root[0]


def _places(parent):
    for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
        yield parent, key
        if isinstance(parent[key], (dict, list)):
            yield from _places(parent[key])


def _values(root):
    return (parent[key] for parent, key in _places(root))


def dumps(document):
    """JSON as bytes; nests what only text can."""
    text = json.dumps(document, ensure_ascii=True)
    return text.replace(json.dumps(DEEP), "[" * 50_000 + "]" * 50_000).encode()


def distort_json(data, random):
    return dumps(distort(json.loads(data), random))


def distort_lines(data, random):
    lines = data.splitlines(keepends=True)
    place = random.randrange(len(lines))
    lines[place] = distort_json(lines[place], random) + b"\n"
    return b"".join(lines)


def distort_cost_table(data, random):
    """Its hash is right."""
    document = json.loads(data)
    del document["sha256"]
    document = distort(document, random)
    text = dumps(document)
    if isinstance(document, dict):
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        text = dumps(document | {"sha256": hashlib.sha256(canonical.encode()).hexdigest()})
    return text


def distort_array(array, random):
    """An array of another type, shape or content."""
    array = np.array(array)
    kind = random.randrange(7)
    if kind == 0 and array.dtype.kind != "U":
        with np.errstate(all="ignore"):
            return array.astype(random.choice(("f8", "i8", "f2", "?", "c8", "S3", "U3", ">i4")))
    if kind == 1:
        return array[None] if random.random() < 0.5 else array.reshape(-1)[:1].reshape(())
    if kind == 2:
        return array.reshape(-1)[: random.randrange(array.size + 1)]
    if kind == 3 and array.ndim:
        return np.concatenate([array, array])
    if kind == 4:
        return np.full(array.shape, random.choice(("../x", "relu", "")))
    if array.size and array.dtype.kind in "fi":
        limits = (np.finfo if array.dtype.kind == "f" else np.iinfo)(array.dtype)
        extreme = [limits.min, limits.max, -1, 0]
        extreme += [np.nan, np.inf, -np.inf] if array.dtype.kind == "f" else []
        array.reshape(-1)[random.randrange(array.size)] = random.choice(extreme)
    return array


def distort_sealed(data, random):
    """A NumPy archive whose seal is right."""
    with np.load(io.BytesIO(data)) as archive:
        arrays = dict(archive)
    header = arrays.pop("header").tobytes()
    if random.random() < 0.5:
        header = distort_json(header, random)
    for _ in range(random.randrange(3)):
        name = random.choice(sorted(arrays))
        array = arrays.pop(name)
        kind = random.randrange(6)
        if kind == 0:
            arrays[random.choice(("../../escaped", "/tmp/escaped", "extra", "header2"))] = array
        elif kind > 1:
            arrays[name] = distort_array(array, random)
    return seal(header, arrays, stray=random.random() < 0.05)


def seal(header, arrays, stray=False):
    """The archive with a comment that is the hash of all before it, and perhaps a member that is no array."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=np.frombuffer(header, np.uint8), **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        if stray:
            archive.writestr("../../escaped", b"stray")
        archive.comment = b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def distort_tensors(tensors, random):
    tensors = dict(tensors)
    for _ in range(random.choice((0, 1, 1, 2))):
        name = random.choice(sorted(tensors))
        tensor = tensors.pop(name)
        kind = random.randrange(7)
        if kind == 0:
            tensors[random.choice(("../../escaped", "mlps.0.9.linear.weight", "extra"))] = tensor
        elif kind == 1:
            tensors[name] = tensor[None].clone()
        elif kind == 2:
            tensors[name] = tensor.reshape(-1)[:-1].clone()
        elif kind == 3:
            tensors[name] = tensor.to(random.choice((torch.int32, torch.float64, torch.bool, torch.int64)))
        elif kind > 4:
            tensors[name] = tensor.clone()
            value = random.choice((-1, 0, float("nan"), float("inf"), 1e30))
            tensors[name].reshape(-1)[0] = value if tensor.is_floating_point() else 2**31 - 1
    return tensors


def distort_heads(data, random, path):
    """Our own heads; their hash is right."""
    path.write_bytes(data)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = distort_tensors(load(data), random)
    del metadata["sha256"]
    if random.random() < 0.6:
        key = random.choice(("config", "config", "manifest"))
        metadata[key] = distort_json(metadata[key], random).decode()
    if random.random() < 0.1:
        metadata.pop(random.choice(sorted(metadata)))
    digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return save(tensors, metadata | {"sha256": digest.hexdigest()})


def distort_pickle(data, random):
    """A state dict as PyTorch saves it."""
    state = distort_tensors(torch.load(io.BytesIO(data), weights_only=True), random)
    buffer = io.BytesIO()
    torch.save(random.choice((state, state, state, list(state.values()), {"state": state})), buffer)
    return buffer.getvalue()
