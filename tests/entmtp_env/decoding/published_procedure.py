"""The published decoding loop, written from its description: no cache, no batch, one path at a time.

Heads are the tensors of the released files, by their names there; prefix layer and base are transformers'.
"""

import itertools

import torch
from torch.nn import functional as F
from transformers import LlamaModel

from tests.published import LAYERS


class Hydra:
    """Root, proposals and verdicts of Hydra++ (batch 1)."""

    def __init__(self, model, state):
        self.model, self.state = model, {name: tensor.float() for name, tensor in state.items()}
        config = type(model.config)(**(model.config.to_dict() | {"num_hidden_layers": 1}))
        self.layer = LlamaModel(config).eval()
        prefix = "prefix_embeding_layer."
        own = {name.removeprefix(prefix): t for name, t in self.state.items() if name.startswith(prefix)}
        self.layer.load_state_dict({name: t for name, t in own.items() if "inv_freq" not in name})

    def states(self, text):
        """What the heads read of the text, row by row: the prefix layer at positions 0, 1, ..."""
        hidden = self.model.model(torch.tensor([text])).last_hidden_state
        positions = torch.arange(len(text))[None]
        return self.layer(inputs_embeds=hidden, position_ids=positions).last_hidden_state[0]

    def head(self, index, state, path):
        """Logits of a head, given the tokens from the root down."""
        embedding = self.state["input_embed_fn.weight"]
        x = torch.cat([state, *(embedding[token] for token in path[: index + 1])])
        for layer in range(LAYERS):
            block = f"hydra_mlp.{index}.{2 * layer + 1}"
            skip = x if layer else self.affine(f"{block}.res_connection", x)
            x = skip + F.silu(self.affine(f"{block}.linear", x))
        return self.affine(f"hydra_lm_head.{index}.1", x)

    def affine(self, name, x):
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])


class Medusa(Hydra):
    """Heads that read the base's last hidden state alone."""

    def __init__(self, model, state):
        self.model, self.state = model, {name: tensor.float() for name, tensor in state.items()}

    def states(self, text):
        return self.model.model(torch.tensor([text])).last_hidden_state[0]

    def head(self, index, state, path):
        inner = self.affine(f"{index}.0.linear", state)
        return F.linear(state + F.silu(inner), self.state[f"{index}.1.weight"])


def next_logits(model, text, positions):
    return model(torch.tensor([text]), position_ids=torch.tensor([positions])).logits[0, -1]


def propose(heads, text, root, paths):
    """Tokens in the order in which the parents are expanded, and the path of each."""
    state, tokens, order = heads.states(text)[-1], {(): root}, []
    for depth in range(max(map(len, paths))):
        for parent in sorted(path for path in tokens if len(path) == depth):
            children = sorted(path for path in paths if path[:-1] == parent)
            if children:
                above = [tokens[parent[:length]] for length in range(depth + 1)]
                best = heads.head(depth, state, above).sort(descending=True).indices
                for child, token in zip(children, best.tolist(), strict=False):
                    tokens[child] = token
                    order.append(child)
    return order, tokens


def verdict(model, text, tokens, order, stands):
    """Accepted path. ``stands(logits, token)`` gives whether a draft stands, and its log-probability.

    Candidates are a table of node numbers, one row for each leaf, padded with -1 as published.
    """
    number = {(): 0} | {path: place for place, path in enumerate(order, start=1)}
    leaves = [path for path in order if not any(other[:-1] == path for other in order)]
    width = max(map(len, order)) + 1
    table = [[number[leaf[:length]] for length in range(len(leaf) + 1)] for leaf in leaves]
    lengths = [len(row) - 1 for row in table]
    table = [row + [-1] * (width - len(row)) for row in table]
    by_number = {place: path for path, place in number.items()} | {-1: order[-1]}
    position, logits = len(text), {}
    for path in {by_number[place] for row in table for place in row}:
        below = [tokens[path[:length]] for length in range(len(path) + 1)]
        positions = [*range(position), *(position + length for length in range(len(path) + 1))]
        logits[path] = next_logits(model, text + below, positions)
    best, score = 0, (-1, 0.0)
    for candidate, (row, real) in enumerate(zip(table, lengths, strict=True)):
        accepted, likelihood = 0, 0.0
        for parent, node in itertools.pairwise(row):
            right, log_p = stands(logits[by_number[parent]], tokens[by_number[node]])
            # Behind the real length stands padding, which reads the last node of the tree.
            if not right or accepted == real:
                break
            accepted, likelihood = accepted + 1, likelihood + log_p
        if accepted > score[0] or (accepted == score[0] and likelihood > score[1] + 1e-6):
            best, score = candidate, (accepted, likelihood)
    path = by_number[table[best][score[0]]]
    return [tokens[path[:length]] for length in range(len(path) + 1)], int(logits[path].argmax())


def greedy(logits, token):
    return int(logits.argmax()) == token, float(logits.log_softmax(-1)[token])


def typical(temperature=0.7, epsilon=0.09, alpha=0.3):
    def stands(logits, token):
        p = (logits / temperature).softmax(-1)
        entropy = -(p * (p + 1e-5).log()).sum()
        return bool(p[token] > min(epsilon, alpha * torch.exp(-entropy))), float(p[token].log())

    return stands
