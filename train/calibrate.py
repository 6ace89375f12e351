"""Calibrate the baseline schedulers on prompts that are not those reported on (arXiv 2606.27550)."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
from rich.console import Console

import entmtp_env  # noqa: F401  registers the environments
from entmtp_env.features import Probe
from entmtp_env.figures import save_figure
from entmtp_env.files import refuse_existing
from entmtp_env.trees import TopologyBank
from policies.base import SchedulerPolicy
from policies.ema_ladder import EmaLadder
from policies.ladder import Ladder
from policies.policy_file import PolicyFile
from policies.static import Static
from policies.threshold import Threshold
from train.calibrate_live import LiveBench
from train.calibrate_record import calibration_record
from train.calibrate_replay import ReplayBench
from train.calibrate_staged import STAGED, calibrate_staged
from train.calibrate_table import calibration_table
from train.candidates import (
    PAPER_TAUS,
    Options,
    StaticRuns,
    ema_ladder_options,
    ladder_options,
    threshold_options,
)
from train.hill_climb import Moves, climb
from train.score_plot import score_figure
from train.trial import Bench, Trial, static_runs

PolicyName = Literal["static", "threshold", "ladder", "ema-ladder", "staged-threshold", "eagle2"]

_BUILDERS: Mapping[str, Callable[..., SchedulerPolicy]] = {
    policy.name: policy for policy in (Threshold, Ladder, EmaLadder)
}
_LIVE_ONLY = ("model", "heads", "prompts", "num_prompts", "acceptance", "dtype", "device", "seed", "env")
_STAGED_ONLY = ("drafts", "stages")
_BANK_ONLY = ("bank", "probe", "scores", "tau_grid")
_LIVE_QUANTILES = (0.25, 0.5, 0.75)
_REPLAY_QUANTILES = tuple(round(0.05 * k, 2) for k in range(1, 20))
_LIVE_MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class Calibrate:
    """Find the best static tree and the best settings of the schedulers, on calibration prompts.

    Every tree runs alone first; that gives the candidates, which then run against the best tree. Live, the
    time is about (trees + candidates) x prompts x new tokens / (tokens per second). With recordings no model
    is needed, and the best candidates are improved further, setting by setting. Writes a file a policy, and
    scores.png: the scores with the thresholds in them.

    Staged policies need recordings and their staged drafts: the thresholds of "staged-threshold" are searched
    one by one, and "eagle2" gets its number of nodes.

    Example: python -m train calibrate --recordings chat:calibration --bank bank.json --costs costs.json
    --out runs/chat

    Attributes:
        recordings: Calibrate on these recorded texts, pooled, instead of live ones: chat, math, ... or .npz
            files, or halves of them, as in chat:calibration.
        costs: Recordings: seconds of a step: auto, a cost table, or analytic:base=B,node=N,depth=D.
        model: Live: base model: a known name, a path or a Hugging Face repository.
        heads: Live: draft heads: "auto", "medusa" or a checkpoint.
        bank: Trees to choose from: a known name or a JSON file.
        prompts: Live: prompt set; report on another one, such as its ":evaluation" half.
        num_prompts: Live: use that many of them, drawn at random; 0 = all.
        acceptance: Live: acceptance rule.
        max_new_tokens: Token cap of each text; by default 128, with recordings theirs.
        probe: What is drafted before each decision: none, first, chain or union.
        dtype: Live: element type, "auto" for the fastest.
        device: Live: "auto", "cpu", "cuda" or "cuda-graphs".
        capacity: KV rows; prompt, text and the largest tree must fit.
        seed: Live: seed of the choice of prompts and of the sampling.
        policies: Which policies to calibrate; those of a bank, or staged ones.
        drafts: Staged: drafts of the recordings, written by "train stages".
        stages: Staged: default, or a JSON file.
        scores: Features that a threshold or a ladder may read.
        tau_grid: Where the thresholds of "threshold" are tried: "quantiles" of the score, or the five values
            of the "paper".
        quantiles: Which quantiles of the score over the steps of the static trees; by default 0.25 0.5 0.75,
            with recordings 0.05 to 0.95.
        out: Folder for the policy files, one a policy: <out>/<policy>.json.
        env: Live: id of the environment.
        overwrite: Replace the policy files that are there.
    """

    recordings: tuple[str, ...] = ()
    costs: str = "auto"
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    prompts: str = "humaneval:calibration"
    num_prompts: int = 3
    acceptance: str = "greedy"
    max_new_tokens: int | None = None
    probe: Probe = "none"
    dtype: str = "auto"
    device: str = "auto"
    capacity: int = 2048
    seed: int = 0
    policies: tuple[PolicyName, ...] = ("static", "threshold", "ladder", "ema-ladder")
    drafts: tuple[str, ...] = ()
    stages: str = "default"
    scores: tuple[str, ...] = ("best_path_value", "deep_path_value", "expected_accept")
    tau_grid: Literal["quantiles", "paper"] = "quantiles"
    quantiles: tuple[float, ...] = ()
    out: Path = Path("runs/calibration")
    env: str = "EntMTP/Live-v0"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that name nothing to calibrate, or that contradict each other."""
        if not (self.policies and self.scores):
            raise ValueError("policies and scores must each name at least one")
        if not all(0 <= share <= 1 for share in self.quantiles):
            raise ValueError(f"quantiles must be in [0, 1], got {self.quantiles}")
        if self.staged and not (self.recordings and self.drafts and set(self.policies) <= set(STAGED)):
            raise ValueError(
                f"{', '.join(STAGED)} are calibrated on --recordings with their --drafts (python -m train "
                "stages), and apart from the policies of a bank"
            )
        ignored = {*(_LIVE_ONLY if self.recordings else ("costs",))}
        ignored |= {*(_BANK_ONLY if self.staged else _STAGED_ONLY)}
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if wrong := [name for name in changed if name in ignored]:
            fix = "drop them" if self.recordings else "drop them, or name --recordings"
            raise ValueError(f"{', '.join(wrong)} would have no effect; {fix}")

    def path(self, policy: PolicyName) -> Path:
        """Where the file of a policy goes."""
        return self.out / f"{policy}.json"

    @property
    def staged(self) -> bool:
        """Whether there are staged policies among them."""
        return bool(set(self.policies) & set(STAGED))

    @property
    def shares(self) -> tuple[float, ...]:
        """The quantiles in force."""
        return self.quantiles or (_REPLAY_QUANTILES if self.recordings else _LIVE_QUANTILES)

    @property
    def taus(self) -> tuple[float, ...]:
        """Thresholds that are no quantiles; none by default."""
        return PAPER_TAUS if self.tau_grid == "paper" else ()


def calibrate(config: Calibrate) -> None:
    """Measure, choose, and write ``<out>/<policy>.json`` for each policy asked for.

    Raises:
        FileExistsError: When a policy file is there already.
        FileNotFoundError: When the model, the heads, the bank, the prompts, a recording or the costs are not
            there.
        ValueError: When a setting is unknown, a score is no feature of the environment, or recordings, costs
            and bank do not fit together.
    """
    refuse_existing(*map(config.path, config.policies), overwrite=config.overwrite)
    if config.staged:
        calibrate_staged(config)
        return
    settings = {name: getattr(config, name) for name in ("bank", "probe", "capacity", "max_new_tokens")}
    if config.recordings:
        _calibrate(config, ReplayBench(config.recordings, config.costs, **settings))
        return
    settings["max_new_tokens"] = config.max_new_tokens or _LIVE_MAX_NEW_TOKENS
    model = ("model", "heads", "prompts", "acceptance", "dtype", "device")
    env = gymnasium.make(config.env, **settings, **{name: getattr(config, name) for name in model})
    try:
        unwrapped: Any = env.unwrapped
        prompt_ids = _draw_prompts(config, [prompt.prompt_id for prompt in unwrapped.prompts])
        _calibrate(
            config, LiveBench(env, config.prompts, prompt_ids, config.seed, settings["max_new_tokens"])
        )
    finally:
        env.close()


def _calibrate(config: Calibrate, bench: Bench) -> None:
    env = bench.env
    for score in config.scores:
        Threshold(env, score=score)  # refuses an unknown feature now, not after the measurements
    bench.warm_up()
    unwrapped: Any = env.unwrapped
    bank: TopologyBank = unwrapped.bank
    statics = bench.run([Static(env, tree) for tree in bank.names], "trees", config.scores)
    runs = static_runs(bank, statics)
    best = Static(env, runs.best.name)
    candidates = _candidates(config, runs)
    contest: list[Trial] = []
    if candidates:
        # The best tree runs again: rates are comparable within one interleaved run only.
        policies = [_BUILDERS[name](env, **options) for name, options in candidates]
        contest = bench.run([best, *policies], "schedulers")
    if config.recordings:
        contest = _improve(config, bench, runs, contest)

    winners = []
    for name in config.policies:
        run = statics if name == "static" else contest
        rivals = sorted((t for t in run if t.policy.name == name), key=lambda trial: -trial.rate)
        if not rivals:
            _note(f"{name}: the bank and the scores leave no candidate; {name}.json is not written")
            continue
        winners.append(rivals[0])
        reference = next(trial for trial in run if trial.policy.spec == best.spec)
        PolicyFile.of(rivals[0].policy, calibration_record(bench, reference, rivals)).save(config.path(name))
        _note(f"wrote {config.path(name)}")
    scored = [trial.policy for trial in winners if "score" in trial.policy.options]
    if scored:
        save_figure(config.out / "scores.png", score_figure(runs, scored))
        _note(f"wrote {config.out / 'scores.png'}")
    title = "calibration" + " (approximate replay)" * bool(unwrapped.manifest.get("approximate"))
    Console().print(calibration_table(statics, contest, winners, best.spec, title))


def _candidates(config: Calibrate, runs: StaticRuns) -> list[tuple[PolicyName, Options]]:
    # On recordings a coarse grid is enough to begin with: the best are improved on the fine one.
    pairs, shares = (
        (runs.all_pairs(), config.shares[::4]) if config.recordings else (runs.pairs(), config.shares)
    )
    options: dict[PolicyName, list[Options]] = {
        "threshold": threshold_options(runs, pairs, config.scores, shares, config.taus),
        "ladder": ladder_options(runs, config.scores),
        "ema-ladder": ema_ladder_options(runs),
    }
    return [(name, own) for name in options if name in config.policies for own in options[name]]


def _improve(config: Calibrate, bench: Bench, runs: StaticRuns, contest: Sequence[Trial]) -> list[Trial]:
    """Climb from the best candidate of each policy and score; all trials, those before included."""
    moves = Moves(runs, config.shares, config.taus)
    neighbours = {"threshold": moves.threshold, "ladder": moves.ladder, "ema-ladder": moves.ema_ladder}
    starts: dict[tuple[str, str | None], Trial] = {}
    for trial in sorted(contest, key=lambda trial: -trial.rate):
        if trial.policy.name in neighbours:
            starts.setdefault((trial.policy.name, trial.policy.options.get("score")), trial)
    known = {trial.policy.spec: trial for trial in contest}
    for (name, score), start in starts.items():

        def around(policy: SchedulerPolicy, name: str = name) -> list[SchedulerPolicy]:
            return [_BUILDERS[name](bench.env, **own) for own in neighbours[name](dict(policy.options))]

        climb(start, around, partial(bench.run, task=f"{name} {score or ''}".strip()), known)
    return list(known.values())


def _draw_prompts(config: Calibrate, prompt_ids: Sequence[str]) -> list[str]:
    count = config.num_prompts or len(prompt_ids)
    if not 0 < count <= len(prompt_ids):
        raise ValueError(
            f"num_prompts={config.num_prompts}, but {config.prompts!r} has {len(prompt_ids)}; 0 uses them all"
        )
    return random.Random(config.seed).sample(prompt_ids, count)


def _note(text: str) -> None:
    print(text, file=sys.stderr)
