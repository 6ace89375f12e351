"""Texts that the live decoder writes, to search draft trees on under any acceptance rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.utils import seeding
from rich.console import Console

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.engine import Engine, get_engine
from entmtp_env.live import LiveEnv
from entmtp_env.progress import progress_bar
from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.prompts import Prompt, load_prompts
from entmtp_env.trees import DraftTree, Path, TopologyBank
from policies.rollout import run_episode
from policies.static import Static
from train.joint_tree import JointTree, joint_step
from train.journal import Journal
from train.tree_search import Rollout, TreeRun

if TYPE_CHECKING:
    from train.trees import Trees


@dataclass(frozen=True)
class LiveTexts:
    """Prompts, and the engine that continues them.

    Attributes:
        config: The settings.
        engine: Model and heads.
        prompts: The whole prompt set.
        count: How many of them are used, the first.
    """

    config: Trees
    engine: Engine
    prompts: Sequence[Prompt]
    count: int

    @classmethod
    def open(cls, config: Trees) -> LiveTexts:
        """Load prompts and model.

        Raises:
            FileNotFoundError: When the model, the heads or the prompts are not there.
            ValueError: When there are fewer prompts than asked for, or less can be drafted than the budget.
        """
        prompts = load_prompts(config.prompts)
        count = config.count(len(prompts), config.prompts)
        make_acceptance(config.acceptance)  # refuses a misspelt rule before the model is loaded
        engine = get_engine(config.model, config.heads, config.dtype, config.device)
        heads = engine.heads.config
        draftable = min(heads.vocab_size(depth) for depth in range(1, heads.depth + 1))
        if config.budget > draftable:
            raise ValueError(f"budget={config.budget}, but the heads draft only {draftable} different tokens")
        return cls(config, engine, prompts, count)

    @property
    def depth(self) -> int:
        """Number of draft heads."""
        return self.engine.heads.config.depth

    @property
    def settings(self) -> dict[str, Any]:
        """Identity of model, heads, rule and prompts."""
        return self.engine.manifest | {
            "acceptance": self.config.acceptance,
            "max_new_tokens": self.config.max_new_tokens,
            "seed": self.config.seed,
            "prompts": self.config.prompts,
            "prompt_ids": [prompt.prompt_id for prompt in self.prompts[: self.count]],
        }

    @property
    def manifest(self) -> dict[str, Any]:
        """The settings."""
        return self.settings

    @cached_property
    def texts(self) -> list[tuple[list[int], int]]:
        """Token ids of each prompt, and the key of its sampling noise.

        It is what a reset of the live environment with the seed ``config.seed + i`` draws for prompt i, so
        that :meth:`run` writes the same texts.
        """
        ids = [prompt.prompt_id for prompt in self.prompts]
        drawn = (
            PromptQueue(ids, self.config.prompts).draw(
                seeding.np_random(self.config.seed + i)[0], {"prompt_id": prompt_id}
            )
            for i, prompt_id in enumerate(ids[: self.count])
        )
        return [(self.engine.encode(self.prompts[index]), seed) for index, seed in drawn]

    @property
    def prompt_tokens(self) -> dict[str, int]:
        """Tokens of each prompt, by its id."""
        return {
            prompt.prompt_id: len(tokens)
            for prompt, (tokens, _) in zip(self.prompts, self.texts, strict=False)
        }

    @cached_property
    def _decoder(self) -> TreeDecoder:
        return TreeDecoder(
            self.engine.backbone,
            self.engine.heads,
            capacity=self.config.capacity,
            eos_token_ids=self.engine.eos_token_ids,
            max_nodes=self.config.largest_joint_tree,
        )

    def rollout(self, tree: DraftTree, nodes: Sequence[Path], tick: Callable[[], object]) -> Rollout:
        """Advance every text by ``tree``; every step drafts and verifies the joint tree.

        Where the joint tree would have more nodes than allowed, each step verifies several, each with a share
        of the candidates: the scores are the same.
        """
        share = max(1, self.config.largest_joint_tree - len(tree))
        joints = [
            JointTree(tree, tuple(nodes[first : first + share]))
            for first in range(0, max(1, len(nodes)), share)
        ]
        gains, steps, accepted = dict.fromkeys(nodes, 0), 0, 0
        rule = make_acceptance(self.config.acceptance)
        for tokens, seed in self.texts:
            self._decoder.start(tokens, rule, max_new_tokens=self.config.max_new_tokens, seed=seed)
            while not self._decoder.finish_reason:
                steps += 1
                accepted += joint_step(self._decoder, rule, joints, gains)
            tick()
        return Rollout(steps, accepted, gains)

    def run(self, bank: TopologyBank) -> list[TreeRun]:
        """Time every text with every tree, by the loop that a scheduler runs in.

        Prompt by prompt, the trees in a fresh random order, so that drift of the machine hits all alike. What
        was measured is kept in ``<out>/runs-<fingerprint of the bank>.jsonl``; an interrupted run goes on
        behind the last prompt.

        Raises:
            RuntimeError: When a step fails, as on a device out of memory.
        """
        count = self.count
        journal = Journal(self.config.out / f"runs-{bank.fingerprint}.jsonl", self.settings)
        done = len(journal.rows)
        if done < count:
            env = self._env()
            with Console(stderr=True).status("warming up every tree"):
                env.warm_up()
            policies = [Static(env, name) for name in bank.names]
            with progress_bar() as bar:
                task = bar.add_task("timing", total=count * len(bank), completed=done * len(bank))
                for i in range(done, count):
                    runs = np.zeros((len(bank), 4))
                    for k in np.random.default_rng((self.config.seed, i)).permutation(len(bank)):
                        prompt_id, seed = self.prompts[i].prompt_id, self.config.seed + i
                        episode = run_episode(env, policies[k], prompt_id, seed)
                        if episode.finish_reason.startswith("error"):
                            raise RuntimeError(f"{bank[int(k)].name} on {prompt_id}: {episode.finish_reason}")
                        seconds = episode.seconds + episode.policy_seconds
                        runs[k] = episode.tokens, len(episode.steps), seconds, episode.prefill_seconds
                        bar.advance(task)
                    journal.add({"prompt_id": self.prompts[i].prompt_id, "runs": runs.tolist()})
        total = np.sum([row["runs"] for row in journal.rows], axis=0)
        return [TreeRun(int(tokens), int(steps), *seconds) for tokens, steps, *seconds in total.tolist()]

    def _env(self) -> LiveEnv:
        config = self.config
        return LiveEnv(
            model=config.model,
            heads=config.heads,
            bank=str(config.trees_path),
            prompts=config.prompts,
            acceptance=config.acceptance,
            max_new_tokens=config.max_new_tokens,
            dtype=config.dtype,
            device=config.device,
            capacity=config.capacity,
        )
