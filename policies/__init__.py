"""Schedulers: which tree to draft and verify at each decode step."""

from policies.base import Memory, Predictor, SchedulerPolicy, SchedulingEnv
from policies.policy_file import PolicyFile, feature_fingerprint
from policies.registry import make_policy, policy_names
from policies.rollout import Episode, StepRecord, run_episode

__all__ = [
    "Episode",
    "Memory",
    "PolicyFile",
    "Predictor",
    "SchedulerPolicy",
    "SchedulingEnv",
    "StepRecord",
    "feature_fingerprint",
    "make_policy",
    "policy_names",
    "run_episode",
]
