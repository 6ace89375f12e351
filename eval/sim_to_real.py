"""``python -m eval gap``: how far a replay is from the live decoder, measured in one run."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console

from entmtp_env.decoding.acceptance import GreedyRule, make_acceptance
from entmtp_env.features import Probe
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.recording import IDENTITY, Recording
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from eval.gap import LEGEND, Gap, gap_table, measure_gap, orders
from eval.interleave import EvaluationError, Run, draw_prompts, interleave, warm_up
from eval.results import ResultFolder
from eval.statistics import REFERENCE
from eval.step_prices import RandomRuns, price_steps
from policies import Episode, Predictor, SchedulingEnv
from policies.lockstep import Script
from policies.lockstep import replay as replay_texts
from policies.registry import make_named_policy

RUN = "run"
"""The costs that are measured between the texts."""
_PRICING = ("run 1", "run 2")
"""The rows that measure them: as the machine drifts from text to text, one has too few."""
COSTS = "costs.json"
_PLACEHOLDER = "analytic:auto"


@dataclass(frozen=True)
class SimToReal:
    """Run policies live, then on a recording of the same texts, and measure the gap.

    Prints, per policy, tokens per second live and replayed, their ratio with a paired bootstrap 95 % interval
    over prompts, and how many steps differ: none may in float32 under greedy acceptance. What a step costs is
    measured in the same run, by two more texts per prompt whose trees are drawn at random, so that the ratio
    shows what a replay leaves out and not how busy the machine was at some other time. Writes steps.jsonl,
    episodes.jsonl, costs.json, summary.json and manifest.json.

    Example: python -m eval gap --recording math --prompts math:evaluation

    Attributes:
        costs: Seconds of a step: run, measured in this run; or auto, a shipped cost table, or a JSON file of
            "python -m train costs", whose machine and hour then show as a gap, too.
        recording: A shipped recording or an .npz file with texts of the prompts.
        prompts: Prompt set: chat, math, stories, humaneval or a .jsonl file, or half of one, as in
            chat:evaluation. Those that are not recorded are left out.
        num_prompts: Prompts to run, the first after a seeded shuffle; 0 = all.
        policies: Policies: name, name:key=value,..., static:<tree>, name@file.json, or your own
            package.module:Class.
        model: Base model of the recording: a known name, a folder or a Hugging Face repository.
        heads: Draft heads of the recording: auto, medusa or a checkpoint.
        bank: Bank of trees: default, smollm2-pooled or another that ships, or a JSON file.
        max_new_tokens: Cap on the tokens of a text; by default that of the recording.
        probe: What is drafted before a decision: none, first, chain or union; the costs must be of the same.
        features: Feature groups to observe, separated by commas, or all.
        capacity: Rows of the KV cache; prompt, text and the largest tree must fit.
        dtype: Element type of the recording: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda-graphs (steps as captured CUDA graphs).
        seed: Seed of prompt choice, order and bootstrap.
        bootstrap_samples: Resamples behind an interval.
        out: Result folder; by default runs/gap-<date>-<time>.
        overwrite: Replace results that are in the folder already.
    """

    costs: str = RUN
    recording: str = "chat"
    prompts: str = "chat:evaluation"
    num_prompts: int = 0
    policies: tuple[str, ...] = (REFERENCE, "hydra-default", "static:tree-6x3", "threshold", "ladder")
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    max_new_tokens: int | None = None
    probe: Probe = "none"
    features: str = "all"
    capacity: int = 2048
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    bootstrap_samples: int = 10_000
    out: Path | None = None
    overwrite: bool = False


def sim_to_real(config: SimToReal) -> list[Gap]:
    """Measure the gap, print it and write the files.

    Returns:
        The gaps, by policy.

    Raises:
        ValueError: When a setting is out of range or unknown, or the recording is of another model, of other
            heads or another element type, of none of the prompts, or of sampled texts.
        FileNotFoundError: When a file is missing.
        FileExistsError: When the result folder holds results already.
        EvaluationError: When an episode ends in an error, or when greedy decoding in float32 is not as
            replayed; in the latter case the results have been written.
    """
    for name, least in (("num_prompts", 0), ("seed", 0), ("bootstrap_samples", 1)):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if not config.policies:
        raise ValueError("no policy: pass one or more to policies, such as hydra-default")
    out = config.out or Path("runs") / f"gap-{datetime.now():%Y%m%d-%H%M%S}"
    with contextlib.ExitStack() as stack:
        folder = ResultFolder(out, config.overwrite)
        trial = _Trial.prepare(config, stack)
        trial.replay_policies  # noqa: B018 - built before the first minute of decoding, so are its errors
        warm_up(trial.live, trial.live_policies, next(iter(trial.seeds)))
        stack.enter_context(folder)
        folder.write_json("manifest.json", _manifest(config, trial))
        live = _decode(config, trial, folder)
        if config.costs == RUN:
            prices = trial.price([episode for row in _PRICING for episode in live.pop(row)])
            prices.save(out / COSTS)
            trial = dataclasses.replace(trial, costs=str(out / COSTS))
            folder.write_json("manifest.json", _manifest(config, trial))
        gaps = [_replay(config, trial, spec, episodes, folder) for spec, episodes in live.items()]
        live_order, replayed_order = orders(gaps)
        summary = {
            "approximate": trial.recording.approximate,
            "live_order": live_order,
            "replayed_order": replayed_order,
            "gaps": [dataclasses.asdict(gap) for gap in gaps],
        }
        folder.write_json("summary.json", summary)
    _print(config, trial.recording, gaps, out)
    if not trial.recording.approximate and trial.recording.manifest["dtype"] == "float32":
        _check(gaps, out)
    return gaps


@dataclass(frozen=True)
class _Trial:
    """The two sides, on the same prompts."""

    recording: Recording
    live: SchedulingEnv
    live_policies: Mapping[str, Predictor]
    seeds: Mapping[str, int]
    settings: Mapping[str, Any]
    """Keyword arguments of the replays, without their costs."""
    costs: str

    @classmethod
    def prepare(cls, config: SimToReal, stack: contextlib.ExitStack) -> _Trial:
        recording = load_recording(config.recording)
        acceptance = str(recording.manifest["acceptance"])
        if not recording.approximate and not isinstance(make_acceptance(acceptance), GreedyRule):
            raise ValueError(
                f"the texts of {config.recording!r} were chosen by {acceptance!r}, with noise that a live "
                "episode draws anew; use a recording of greedy texts"
            )
        cap = recording.manifest["max_new_tokens"] if config.max_new_tokens is None else config.max_new_tokens
        common: dict[str, Any] = {
            "bank": config.bank,
            "max_new_tokens": cap,
            "probe": config.probe,
            "features": config.features,
            "capacity": config.capacity,
        }
        live: SchedulingEnv = gymnasium.make(
            "EntMTP/Live-v0",
            model=config.model,
            heads=config.heads,
            prompts=config.prompts,
            acceptance=acceptance,
            dtype=config.dtype,
            device=config.device,
            **common,
        )
        stack.callback(live.close)
        unwrapped: Any = live.unwrapped
        known = {text.prompt_id for text in recording.texts}
        prompts = [prompt for prompt in unwrapped.prompts if prompt.prompt_id in known]
        if not prompts:
            raise ValueError(f"the recording {config.recording!r} has no text of {config.prompts!r}")
        seeds = draw_prompts(prompts, config.num_prompts, config.seed)
        live_policies = {spec: make_named_policy(spec, live) for spec in dict.fromkeys(config.policies)}
        if config.costs == RUN:
            for number, row in enumerate(_PRICING):
                live_policies[row] = RandomRuns(len(unwrapped.bank), 2 * config.seed + number)
        for key in sorted(set(IDENTITY) - {"max_new_tokens"}):
            recorded, now = recording.manifest[key], unwrapped.manifest[key]
            if recorded != now:
                raise ValueError(
                    f"the recording {config.recording!r} has the {key} {recorded!r}, the live decoder "
                    f"{now!r}; give the model, heads and dtype of the recording"
                )
        settings = common | {"recording": config.recording}
        # Until this run has its own, any costs show whether recording, bank and policies fit together.
        costs = _PLACEHOLDER if config.costs == RUN else config.costs
        return cls(recording, live, live_policies, seeds, settings, costs)

    @cached_property
    def replays(self) -> ReplayVectorEnv:
        """A replay of all texts in lock-step."""
        return ReplayVectorEnv(len(self.seeds), costs=self.costs, **self.settings)

    @cached_property
    def replay_policies(self) -> dict[str, Predictor]:
        """The policies of the replay, by spec."""
        return {
            spec: make_named_policy(spec, self.replays) for spec in self.live_policies if spec not in _PRICING
        }

    def price(self, episodes: Sequence[Episode]) -> CostTable:
        """The costs of this run."""
        unwrapped: Any = self.live.unwrapped
        tokens = {text.prompt_id: text.prompt_tokens for text in self.recording.texts}
        return price_steps(RUN, unwrapped.bank, episodes, tokens, describe_run() | unwrapped.manifest)

    def recorded(self, live: Sequence[Episode]) -> list[str]:
        """The recorded texts of some prompts, each cut to the tokens of the live one."""
        unwrapped: Any = self.live.unwrapped
        index = {text.prompt_id: i for i, text in enumerate(self.recording.texts)}
        texts = []
        for episode in live:
            start = int(self.recording.offsets[index[episode.prompt_id]])
            tokens = self.recording.tokens[start : start + episode.tokens]
            texts.append(unwrapped.engine.decode(tokens.tolist()))
        return texts


def _decode(config: SimToReal, trial: _Trial, folder: ResultFolder) -> dict[str, list[Episode]]:
    episodes: dict[str, list[Episode]] = {spec: [] for spec in trial.live_policies}
    with progress_bar() as bar:
        task = bar.add_task("decoding", total=len(episodes) * len(trial.seeds))
        for run in interleave(trial.live, trial.live_policies, trial.seeds, config.seed):
            own = dataclasses.replace(run, episode=run.episode.unobserved())
            episodes[run.policy].append(own.episode)
            folder.add(f"{config.prompts}, live", own)
            bar.advance(task)
    return episodes


def _replay(
    config: SimToReal, trial: _Trial, spec: str, live: Sequence[Episode], folder: ResultFolder
) -> Gap:
    script = Script([[step.action for step in episode.steps] for episode in live])
    repeated, chosen = (
        replay_texts(trial.replays, policy, list(trial.seeds)).episodes
        for policy in (script, trial.replay_policies[spec])
    )
    for episode in chosen:
        folder.add(f"{config.prompts}, replayed", Run(spec, trial.seeds[episode.prompt_id], episode))
    texts = trial.recorded(live)
    return measure_gap(spec, live, repeated, chosen, texts, config.bootstrap_samples, config.seed)


def _manifest(config: SimToReal, trial: _Trial) -> dict[str, Any]:
    unwrapped: Any = trial.live.unwrapped
    costs = None if trial.costs == _PLACEHOLDER else load_costs(trial.costs)
    return describe_run() | {
        "settings": dataclasses.asdict(config) | {"out": config.out and str(config.out)},
        "live": dict(unwrapped.manifest),
        "replay": trial.replays.manifest,
        "costs": costs and costs.manifest | {"name": costs.name},
        "prompt_seeds": dict(trial.seeds),
    }


def _print(config: SimToReal, recording: Recording, gaps: Sequence[Gap], out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100)
    replay = "approximate replay" if recording.approximate else "replay"
    title = f"{config.prompts}: {replay} against live, {gaps[0].texts} texts, {recording.manifest['dtype']}"
    console.print(gap_table(title, gaps))
    live, replayed = orders(gaps)
    order = "order of the policies: " + " > ".join(live)
    order += ", live and replayed" if live == replayed else f" live, {' > '.join(replayed)} replayed"
    console.print(order, highlight=False, markup=False)
    console.print(LEGEND, highlight=False, markup=False)
    console.print(f"results: {out}", soft_wrap=True, highlight=False, markup=False)


def _check(gaps: Sequence[Gap], out: Path) -> None:
    differing = [
        f"{gap.policy} ({gap.other_accept} of {gap.steps} steps, {gap.other_text} of {gap.texts} texts"
        + (f"; first at step {gap.first[1]} of prompt {gap.first[0]!r})" if gap.first else ")")
        for gap in gaps
        if gap.other_accept or gap.other_text
    ]
    if differing:
        raise EvaluationError(
            "greedy decoding in float32 must accept what its replay accepts; it does not under "
            f"{'; '.join(differing)}. See {out / 'steps.jsonl'}: one text that departs late can be two "
            "logits that tie within rounding, more is a bug"
        )
