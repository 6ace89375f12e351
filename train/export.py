"""``python -m train export``: replayed episodes as a Minari dataset, for offline reinforcement learning."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

import entmtp_env  # noqa: F401  registers the environments
from entmtp_env.features import Probe
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from policies.base import Memory, Predictor, SchedulingEnv
from policies.registry import make_policy

if TYPE_CHECKING:
    from minari import MinariDataset
    from minari.data_collector import EpisodeBuffer


@dataclass(frozen=True)
class Export:
    """Play recorded texts, and keep what happened as a Minari dataset.

    Every policy plays every text once. The dataset goes to Minari's folder, ~/.minari/datasets unless
    MINARI_DATASETS_PATH names another. Needs: pip install "entmtp-env[minari]".

    Example: python -m train export --policies random hydra-default --dataset-id entmtp/chat-random-v0

    Attributes:
        dataset_id: Id of the dataset to write, as in entmtp/chat-random-v0.
        recordings: Recordings: chat, math, ... or .npz files, or halves of them, as in chat:calibration.
        policies: Policy specs, the behaviour to record; random:seed=0 random:seed=1 is twice as much of it.
        num_prompts: The first texts only; 0 = all.
        costs: Cost table: auto, a name, a .json file or analytic:base=...,node=...,depth=...
        bank: Trees to choose from: a known name or a JSON file.
        max_new_tokens: Token cap of a text; that of the recording by default.
        reward: Reward name or spec.
        features: Feature groups, comma-separated.
        probe: What is drafted before each decision: none, first, chain or union.
        capacity: KV rows; prompt, text and the largest tree must fit.
    """

    dataset_id: str
    recordings: tuple[str, ...] = ("chat",)
    policies: tuple[str, ...] = ("random",)
    num_prompts: int = 0
    costs: str = "auto"
    bank: str = "default"
    max_new_tokens: int | None = None
    reward: str = "tokens_per_second"
    features: str = "all"
    probe: Probe = "none"
    capacity: int = 2048

    def __post_init__(self) -> None:
        """Refuse settings that export nothing."""
        if not (self.recordings and self.policies) or self.num_prompts < 0:
            raise ValueError("recordings and policies must each name at least one, num_prompts be 0 or more")


def export(config: Export) -> MinariDataset:
    """Play, write and describe the dataset.

    An episode has float32 observations, the tree indices as actions, rewards, both end flags, and of ``info``
    the numbers; its metadata name its ``policy`` and, as ``options``, the prompt. The dataset's metadata hold
    the environment's manifest as JSON, and whether the replay is approximate.

    Raises:
        FileNotFoundError: When a recording, a cost table or a bank is not there.
        ValueError: When a setting is wrong, the dataset exists already, or Minari is not installed.
    """
    try:
        import h5py  # noqa: F401  Minari writes with it
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    except ModuleNotFoundError as error:
        raise ValueError(f'{error}; the export needs: pip install "entmtp-env[minari]"') from None
    parse_dataset_id(config.dataset_id)
    folder = get_dataset_path(config.dataset_id)
    if folder.exists():
        raise ValueError(f"there is a dataset {config.dataset_id!r} in {folder} already; give another id")

    names = ("costs", "bank", "max_new_tokens", "reward", "features", "probe", "capacity")
    settings = {name: getattr(config, name) for name in names}
    env = gymnasium.make("EntMTP/Replay-v0", recording=list(config.recordings), **settings)
    policies = {spec: make_policy(spec, env) for spec in config.policies}
    unwrapped: Any = env.unwrapped
    prompt_ids = [text.prompt_id for text in unwrapped.prompts][: config.num_prompts or None]
    episodes, played = [], []
    with progress_bar() as bar:
        task = bar.add_task("replaying", total=len(prompt_ids) * len(policies))
        for prompt_id in prompt_ids:
            for spec, policy in policies.items():
                episodes.append(play(env, policy, prompt_id))
                played.append({"policy": spec})
                bar.advance(task)

    approximate = unwrapped.manifest["approximate"]
    with warnings.catch_warnings():
        # Author and permalink are for whoever publishes it.
        warnings.filterwarnings("ignore", message=r"`(author|author_email|code_permalink)` is set to None")
        dataset = minari.create_dataset_from_buffers(
            config.dataset_id,
            episodes,
            env=env,
            eval_env=env,
            algorithm_name=", ".join(policies),
            description=_describe(config, approximate),
        )
    dataset.storage.update_episode_metadata(played)
    dataset.storage.update_metadata(
        {"approximate": approximate, "manifest": json.dumps(unwrapped.manifest | {"run": describe_run()})}
    )
    print(
        f"{dataset.total_episodes} episodes with {dataset.total_steps} steps are in {folder}; read them with "
        f"minari.load_dataset({config.dataset_id!r})"
        + ("; the replay is approximate" if approximate else ""),
        file=sys.stderr,
    )
    return dataset


def play(env: SchedulingEnv, policy: Predictor, prompt_id: str) -> EpisodeBuffer:
    """Replay one text, as Minari keeps it: T + 1 observations and infos, T of the rest."""
    from minari.data_collector import EpisodeBuffer

    options = {"prompt_id": prompt_id}
    observation, info = env.reset(options=options)
    observations, infos = [observation], [info]
    actions: list[int] = []
    outcomes = []
    state: Memory | None = None
    done = False
    while not done:
        action, state = policy.predict(observation, state=state, episode_start=np.array([not actions]))
        actions.append(int(np.asarray(action).item()))
        observation, *outcome, info = env.step(actions[-1])
        done = any(outcome[1:])
        observations.append(observation)
        infos.append(info)
        outcomes.append(outcome)
    rewards, terminations, truncations = (np.array(values) for values in zip(*outcomes, strict=True))
    numbers = [key for key, value in info.items() if not isinstance(value, str)]
    return EpisodeBuffer(
        options=options,
        observations=np.stack(observations),
        actions=np.array(actions),
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        infos={key: np.array([one[key] for one in infos]) for key in numbers},
    )


def _describe(config: Export, approximate: bool) -> str:
    label = (
        "The replay is approximate: under the recorded acceptance rule the text depends on the schedule. "
        if approximate
        else ""
    )
    return (
        f"{label}Schedules of draft trees in speculative decoding, replayed from the recordings "
        f"{', '.join(config.recordings)}. An action is the index of a tree, a step one draft and its check. "
        "'import entmtp_env' before recovering the environment."
    )
