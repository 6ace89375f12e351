"""The base model writes the texts that draft heads are trained on (self-distillation)."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entmtp_env.decoding.acceptance import GreedyRule, SampleRule
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.batch import Request, generate_batch
from entmtp_env.decoding.noise import noise_seed
from entmtp_env.decoding.precision import choose_device, choose_dtype
from entmtp_env.files import read_json, write_text_atomically
from entmtp_env.models import PretrainedModel, load_pretrained
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import encode_prompt
from train.text_log import TextLog
from train.training_prompts import TrainingPrompt, training_prompts


@dataclass(frozen=True)
class Distill:
    """Have the base model write the texts that draft heads are trained on.

    Run the same command again after an interruption: it goes on where it stopped.

    Attributes:
        prompts: Prompt sets: halves such as math:calibration, or .jsonl files.
        out: Texts to write (.jsonl.gz); <out>.manifest.json says how.
        model: Base model: a known name, a path or a Hugging Face repository.
        temperatures: Taken in turn from text to text; 0 = greedy.
        texts_per_prompt: Texts for each prompt.
        max_new_tokens: Token cap of each text.
        max_prompt_tokens: Longer prompts are left out.
        exclude: Files (.jsonl) of further prompts to keep out; those of the evaluation always are.
        slots: Texts written at a time.
        seed: Seed of the sampling.
        device: "auto", "cpu" or "cuda".
        dtype: Element type, "auto" for the fastest.
    """

    prompts: tuple[str, ...]
    out: Path
    model: str = "smollm2"
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    texts_per_prompt: int = 1
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    exclude: tuple[Path, ...] = ()
    slots: int = 64
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that write no texts, or the same one twice."""
        if not self.out.name.endswith(".jsonl.gz"):
            raise ValueError(f"out must end in .jsonl.gz, got {self.out}")
        if not self.prompts or not self.temperatures:
            raise ValueError("prompts and temperatures must each name at least one")
        if min(self.texts_per_prompt, self.max_new_tokens, self.max_prompt_tokens, self.slots) < 1:
            raise ValueError(
                "texts_per_prompt, max_new_tokens, max_prompt_tokens and slots must be at least 1"
            )
        if not all(0 <= temperature < math.inf for temperature in self.temperatures):
            raise ValueError(f"temperatures must be numbers >= 0, got {self.temperatures}")
        for first in range(len(self.temperatures)):
            used = [self.temperature(first + j) for j in range(self.texts_per_prompt)]
            if used.count(0) > 1:
                raise ValueError(
                    f"texts_per_prompt={self.texts_per_prompt} with the temperatures {self.temperatures} "
                    "would write a greedy text twice; lower it, or name more temperatures above 0"
                )

    def temperature(self, turn: int) -> float:
        """The temperature whose turn it is."""
        return self.temperatures[turn % len(self.temperatures)]


@dataclass(frozen=True)
class Job:
    """A text to write.

    Attributes:
        text_id: ``<prompt set>/<prompt id>#<number of the text>``, unique.
        set_name: Name of the prompt set.
        prompt: Token ids of the prompt.
        temperature: 0 = greedy.
        seed: Key of the sampling; depends on the seed of the run and the id alone.
    """

    text_id: str
    set_name: str
    prompt: tuple[int, ...]
    temperature: float
    seed: int

    def request(self) -> Request:
        """What to ask of the generator."""
        rule = SampleRule(self.temperature) if self.temperature else GreedyRule()
        return Request(self.prompt, rule, self.seed)

    def row(self, reply: Sequence[int]) -> dict[str, Any]:
        """The line of the file, for :func:`train.texts.read_texts`."""
        return {
            "p": self.prompt,
            "g": reply,
            "t": self.temperature,
            "id": self.text_id,
            "s": self.set_name,
        }


def distill(config: Distill) -> None:
    """Write the texts that are not in the file yet.

    Raises:
        FileNotFoundError: When the model or a prompt file is not there.
        ValueError: When a prompt set is for evaluation, no prompt is left, or the file there is damaged or
            was written with other settings.
    """
    prompts, reserved = training_prompts(config.prompts, config.exclude)
    device = choose_device(config.device)
    pretrained = load_pretrained(config.model)
    backbone = Backbone(pretrained.model, choose_dtype(config.dtype, device), device)
    # The backbone has the weights in a form of its own; the other copy need not stay.
    pretrained = replace(pretrained, model=None)
    longest = min(config.max_prompt_tokens, backbone.config.max_positions - config.max_new_tokens)
    encoded = [(prompt, encode_prompt(pretrained.tokenizer, prompt.prompt)) for prompt in prompts]
    fitting = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= longest]
    left_out = f"{reserved} kept for evaluation, {len(encoded) - len(fitting)} longer than {longest} tokens"
    if not fitting:
        raise ValueError(f"no prompt is left ({left_out}); give other prompts or raise max_prompt_tokens")
    _note(f"{len(fitting)} prompts; left out: {left_out}")
    _claim(config, backbone, _settings(config, pretrained, fitting))
    _write(config, pretrained, backbone, plan_jobs(config, fitting))


def plan_jobs(config: Distill, prompts: Sequence[tuple[TrainingPrompt, Sequence[int]]]) -> list[Job]:
    """The texts to write: text j of prompt i has temperature number (i + j) modulo their count.

    Args:
        config: The settings.
        prompts: Prompts with their token ids.
    """
    return [
        Job(
            text_id,
            prompt.set_name,
            tuple(tokens),
            config.temperature(i + j),
            noise_seed(f"{config.seed} {text_id}"),
        )
        for i, (prompt, tokens) in enumerate(prompts)
        for j in range(config.texts_per_prompt)
        for text_id in [f"{prompt.set_name}/{prompt.prompt.prompt_id}#{j}"]
    ]


def _settings(
    config: Distill, pretrained: PretrainedModel, prompts: Sequence[tuple[TrainingPrompt, Sequence[int]]]
) -> dict[str, Any]:
    """All that the texts depend on, as JSON gives it back."""
    return {
        "model_fingerprint": pretrained.fingerprint,
        "eos_token_ids": sorted(pretrained.eos_token_ids),
        "seed": config.seed,
        "temperatures": list(config.temperatures),
        "texts_per_prompt": config.texts_per_prompt,
        "max_new_tokens": config.max_new_tokens,
        "dtype": config.dtype,
        "prompts_fingerprint": hashlib.sha256(repr(prompts).encode()).hexdigest()[:16],
    }


def _claim(config: Distill, backbone: Backbone, settings: dict[str, Any]) -> None:
    """Write the manifest of a new file; refuse to go on with one that has other settings."""
    manifest = config.out.with_name(f"{config.out.name}.manifest.json")
    if not config.out.exists():
        record = {
            "command": shlex.join(["python", "-m", "train", *sys.argv[1:]]),
            "model": config.model,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "device": str(backbone.device),
            "prompts": config.prompts,
            "exclude": [str(path) for path in config.exclude],
            "settings": settings,
        }
        write_text_atomically(manifest, json.dumps(record, indent=2) + "\n")
        return
    try:
        known = dict(read_json(manifest)["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{config.out} is there, but not how it was written: cannot read {manifest} ({error!r}); "
            "give another out"
        ) from error
    changed = [
        f"{name} was {known.get(name)!r} and is {value!r}"
        for name, value in settings.items()
        if known.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{config.out} was begun with other settings: {'; '.join(changed)}; "
            f"go on with those in {manifest}, or give another out"
        )


def _write(config: Distill, pretrained: PretrainedModel, backbone: Backbone, jobs: Sequence[Job]) -> None:
    tokens, rate, start = 0, 0.0, time.perf_counter()
    with progress_bar() as bar, TextLog(config.out) as log:
        missing = [job for job in jobs if job.text_id not in log.written]
        task = bar.add_task("writing texts", total=len(jobs), completed=len(jobs) - len(missing))
        replies = generate_batch(
            backbone,
            (job.request() for job in missing),
            max_new_tokens=config.max_new_tokens,
            eos_token_ids=pretrained.eos_token_ids,
            slots=config.slots,
        )
        for index, reply in replies:
            log.add(missing[index].row(reply))
            tokens += len(reply)
            rate = tokens / (time.perf_counter() - start)
            bar.update(task, description=f"writing texts, {rate:.0f} tok/s")
            bar.advance(task)
    _note(
        f"{len(log.written)} texts with {sum(log.written.values())} tokens are in {config.out}; "
        f"{len(missing)} of them written now, at {rate:.0f} tok/s"
    )


def _note(text: str) -> None:
    print(text, file=sys.stderr)
