"""Tree decoding: base model, draft heads, acceptance rules, and the decoder that joins them."""

from entmtp_env.decoding.acceptance import (
    AcceptanceRule,
    GreedyRule,
    SampleRule,
    TypicalRule,
    make_acceptance,
)
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import load_heads, save_heads
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.decoding.heads import DraftHeads, HeadsConfig
from entmtp_env.decoding.session import Step

__all__ = [
    "AcceptanceRule",
    "Backbone",
    "DraftHeads",
    "GreedyRule",
    "HeadsConfig",
    "SampleRule",
    "Step",
    "TreeDecoder",
    "TypicalRule",
    "load_heads",
    "make_acceptance",
    "save_heads",
]
