"""Rows side by side on prompt sets: run, stopped and resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from entmtp_env.progress import progress_bar
from entmtp_env.prompts import Prompt
from eval.interleave import Entrant, Turns, interleave_entrants, warm_up
from eval.results import ResultFolder
from eval.statistics import REFERENCE
from policies import Episode, Predictor, SchedulingEnv

_SHOWN = 3


@dataclass(frozen=True)
class Contest:
    """A prompt set, ready to run.

    Attributes:
        entrants: The rows by name, ``autoregressive`` among them.
        seeds: Seed by prompt id, the same for every row.
        exclude: Ids of prompts that no row runs; without them the others keep their seeds and their order.
        turns: When a row makes way for the next.
    """

    entrants: Mapping[str, Entrant]
    seeds: Mapping[str, int]
    exclude: Collection[str] = ()
    turns: Turns = "text"

    @property
    def running(self) -> list[str]:
        """Ids of the prompts that the rows run."""
        return [prompt_id for prompt_id in self.seeds if prompt_id not in self.exclude]

    @property
    def env(self) -> SchedulingEnv:
        """The environment of the reference row."""
        return self.entrants[REFERENCE].env

    @property
    def trees(self) -> tuple[str, ...]:
        """Names of all trees that rows may use, environment by environment in the order of their actions."""
        banks: list[Any] = [own.env.unwrapped for own in self.entrants.values()]
        return tuple(dict.fromkeys(name for env in banks for name in env.bank.names))

    @property
    def _by_env(self) -> list[tuple[SchedulingEnv, dict[str, Predictor]]]:
        """Each environment with its policies."""
        groups: dict[int, tuple[SchedulingEnv, dict[str, Predictor]]] = {}
        for name, entrant in self.entrants.items():
            groups.setdefault(id(entrant.env), (entrant.env, {}))[1][name] = entrant.policy
        return list(groups.values())

    def check_room(self) -> None:
        """Check that no text can fill the KV cache: where such a one ends depends on the schedule.

        Raises:
            ValueError: When one can; the message names the prompts.
        """
        for env, _ in self._by_env:
            unwrapped: Any = env.unwrapped
            # An environment of one's own may have no tokenizer to ask.
            if not hasattr(unwrapped, "engine"):
                continue
            room = unwrapped.capacity - unwrapped.max_new_tokens - unwrapped.bank.max_nodes
            lengths = {
                p.prompt_id: len(unwrapped.engine.encode(p))
                for p in self._prompts
                if p.prompt_id not in self.exclude
            }
            long = [f"{name!r} ({count})" for name, count in lengths.items() if count > room]
            if long:
                more = f" and {len(long) - _SHOWN} more" if len(long) > _SHOWN else ""
                raise ValueError(
                    f"prompts of more than {room} tokens: {', '.join(long[:_SHOWN])}{more}; with "
                    f"{unwrapped.max_new_tokens} new tokens and a tree of {unwrapped.bank.max_nodes} nodes "
                    f"they do not fit into {unwrapped.capacity} KV rows: raise capacity, lower "
                    "max_new_tokens, or leave them out with max_prompt_tokens or exclude"
                )

    @property
    def prompts_fingerprint(self) -> str:
        """That of its prompts, in the order to run."""
        return prompts_fingerprint(self._prompts)

    @property
    def _prompts(self) -> list[Prompt]:
        unwrapped: Any = self.env.unwrapped
        by_id = {prompt.prompt_id: prompt for prompt in unwrapped.prompts}
        return [by_id[prompt_id] for prompt_id in self.seeds]

    def warm_up(self) -> None:
        """Pay the first-use costs of every environment and policy."""
        for env, policies in self._by_env:
            warm_up(env, policies, self.running[0])


def prompts_fingerprint(prompts: Iterable[Prompt]) -> str:
    """Hash of prompts' ids and texts, in their order, and of which are no chat turns."""
    texts = repr([(p.prompt_id, p.text, *(() if p.chat else ("as it is",))) for p in prompts])
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """What contests have come to.

    Attributes:
        sets: Episodes by prompt set and row, on the prompts that every row has finished; sets without such a
            prompt are left out.
        stopped: What stopped them, Ctrl-C or the failure of an episode; ``None`` when all ran.
        prompt_id: The prompt that they stopped at; empty when all ran.
    """

    sets: Mapping[str, Mapping[str, list[Episode]]]
    stopped: KeyboardInterrupt | RuntimeError | None
    prompt_id: str

    @property
    def complete(self) -> bool:
        """Whether all ran."""
        return self.stopped is None


def check_excluded(contests: Mapping[str, Contest]) -> None:
    """Check what is excluded, which is the same for all of them.

    Raises:
        ValueError: When it is no prompt of theirs, or all prompts of one.
    """
    drawn = {prompt_id for contest in contests.values() for prompt_id in contest.seeds}
    for prompts, contest in contests.items():
        if unknown := [prompt_id for prompt_id in contest.exclude if prompt_id not in drawn]:
            raise ValueError(
                f"exclude={unknown[0]!r} is no prompt that was drawn from {', '.join(contests)}; "
                "a manifest has their ids under prompt_seeds"
            )
        if not contest.running:
            raise ValueError(f"exclude leaves no prompt of {prompts!r}; leave the set out instead")


def run_contests(contests: Mapping[str, Contest], folder: ResultFolder, seed: int) -> Outcome:
    """Run the episodes that the folder does not hold yet, all rows on a prompt before the next one.

    A row that learns while decoding begins anew when an evaluation is resumed.

    Args:
        contests: By prompt set.
        folder: Where the episodes go as they finish; it is open.
        seed: Seed of the order of the rows.

    Returns:
        The episodes, those of the folder included, and what stopped them, for the caller to raise: an episode
        that ended in an error or on another prompt than asked for, a policy or an environment that raised, or
        Ctrl-C.
    """
    finished = {(own.prompts, own.run.policy, own.run.episode.prompt_id): own.run for own in folder.finished}
    wanted = [
        (prompts, name, prompt_id)
        for prompts, contest in contests.items()
        for prompt_id in contest.running
        for name in contest.entrants
    ]
    stopped: KeyboardInterrupt | RuntimeError | None = None
    try:
        with progress_bar() as bar:
            task = bar.add_task("episodes", total=len(wanted), completed=len(finished.keys() & set(wanted)))
            for prompts, contest in contests.items():
                bar.update(task, description=prompts)
                done = {(policy, prompt_id) for name, policy, prompt_id in finished if name == prompts}
                done |= {(policy, prompt_id) for policy in contest.entrants for prompt_id in contest.exclude}
                for run in interleave_entrants(contest.entrants, contest.seeds, seed, done, contest.turns):
                    folder.add(prompts, run)
                    finished[prompts, run.policy, run.episode.prompt_id] = run
                    bar.advance(task)
    except (KeyboardInterrupt, RuntimeError) as error:
        stopped = error
    sets = {}
    for prompts, contest in contests.items():
        common = [
            p for p in contest.running if all((prompts, name, p) in finished for name in contest.entrants)
        ]
        if common:
            sets[prompts] = {
                name: [finished[prompts, name, p].episode for p in common] for name in contest.entrants
            }
    # All rows run a prompt before the next one begins.
    left = (key for key in wanted if key not in finished)
    return Outcome(sets, stopped, next((prompt_id for _, _, prompt_id in left), ""))
