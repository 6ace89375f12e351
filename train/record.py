"""Recordings of prompt sets, made once to price every schedule on them."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from entmtp_env.decoding.batch import Request, generate_batch
from entmtp_env.engine import Engine, get_engine
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import Prompt, load_prompts
from entmtp_env.provenance import describe_run
from entmtp_env.replay.recorder import Recorder, Text, recordable_rule, text_seed
from entmtp_env.replay.recording import IDENTITY, Recording
from entmtp_env.trees import AUTOREGRESSIVE, load_bank

_PART_TEXTS = 32


@dataclass(frozen=True)
class Record:
    """Have the base model write texts, and record what its draft heads make of every position.

    Run the same command again after an interruption: it goes on where it stopped. With further prompts it
    adds them to the file.

    Example: python -m train record --prompts chat math --out runs/recording.npz

    Attributes:
        prompts: Prompt sets: chat, math, stories, humaneval or a .jsonl file, or half of one, as in
            chat:calibration. Their ids must differ.
        out: Recording to write or to extend (.npz).
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        acceptance: How the text is chosen: greedy or sample:temperature=T.
        max_new_tokens: Token cap of a text.
        num_prompts: Prompts of each set, the first; 0 = all.
        candidates: Bank, "default" or a .json file, whose trees' path values are kept at every position, for
            probe="union"; none by default.
        approximate: Record under typical acceptance, too, where a replay is only an approximation.
        seed: Seed of the sampling.
        slots: Texts written at a time.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
    """

    prompts: tuple[str, ...]
    out: Path
    model: str = "smollm2"
    heads: str = "auto"
    acceptance: str = "greedy"
    max_new_tokens: int = 256
    num_prompts: int = 0
    candidates: str = ""
    approximate: bool = False
    seed: int = 0
    slots: int = 64
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that record nothing, or nothing to be relied on."""
        if self.out.suffix != ".npz":
            raise ValueError(f"out must end in .npz, got {self.out}")
        if not self.prompts:
            raise ValueError("prompts must name at least one set")
        if self.num_prompts < 0 or min(self.max_new_tokens, self.slots) < 1:
            raise ValueError("num_prompts must be at least 0, max_new_tokens and slots at least 1")
        recordable_rule(self.acceptance, self.approximate)

    @property
    def parts(self) -> Path:
        """Folder of what is recorded but not yet in ``out``."""
        return self.out.with_name(f"{self.out.name}.parts")


def record(config: Record) -> Recording:
    """Record the prompts that are not in the file yet.

    Returns:
        The whole recording.

    Raises:
        FileNotFoundError: When the model, the heads, a prompt file or the bank is not there.
        ValueError: When two prompts share an id, one is too long for the model, or the file there is damaged
            or was recorded with another model, other heads or other settings.
    """
    prompts = _prompts(config)
    candidates = load_bank(config.candidates).union if config.candidates else AUTOREGRESSIVE
    engine = get_engine(config.model, config.heads, config.dtype, config.device)
    recorder = Recorder(engine, config.acceptance, config.max_new_tokens, candidates, config.approximate)
    texts = {}
    for prompt in prompts:
        tokens = tuple(engine.encode(prompt))
        seed = text_seed(config.seed, prompt.prompt_id, tokens)
        texts[prompt.prompt_id] = Text(prompt.prompt_id, tokens, seed)
    requests = {prompt_id: recorder.request(text) for prompt_id, text in texts.items()}
    known = _known(config, recorder, texts)
    done = {text.prompt_id for recording in known.values() for text in recording.texts}
    missing = [text for prompt_id, text in texts.items() if prompt_id not in done]
    begin = time.perf_counter()
    new = list(_parts(config, recorder, missing, [requests[text.prompt_id] for text in missing]))
    rate = sum(int(part.lengths.sum()) for part in new) / (time.perf_counter() - begin)
    if config.parts.exists():
        before = known[config.out].texts if config.out in known else ()
        order = [*(text.prompt_id for text in before), *texts]
        whole = _merge(config, [*known.values(), *new], order)
        whole.save(config.out)
        shutil.rmtree(config.parts)
    else:
        whole = known[config.out]
    print(
        f"{len(whole.texts)} texts with {whole.lengths.sum()} tokens are in {config.out}; "
        f"{len(missing)} of them recorded now"
        + (f", at {rate:.0f} tok/s" if missing else "")
        + ("; replays of it are approximate" if whole.approximate else ""),
        file=sys.stderr,
    )
    return whole


def _prompts(config: Record) -> list[Prompt]:
    sets: dict[str, str] = {}
    chosen = []
    for name in config.prompts:
        for prompt in load_prompts(name)[: config.num_prompts or None]:
            if prompt.prompt_id in sets:
                raise ValueError(
                    f"--prompts: {sets[prompt.prompt_id]} and {name} share the id {prompt.prompt_id!r}; give "
                    "their prompts other ids, or record them to files of their own"
                )
            sets[prompt.prompt_id] = name
            chosen.append(prompt)
    return chosen


def _known(config: Record, recorder: Recorder, texts: Mapping[str, Text]) -> dict[Path, Recording]:
    """What is recorded already, by file; every text once."""
    known: dict[Path, Recording] = {}
    done: set[str] = set()
    for path in (config.out, *sorted(config.parts.glob("*.npz"))):
        if path.exists():
            recording = Recording.load(path)
            _check_same(config, recorder, texts, path, recording)
            # A run killed while it removed its parts leaves some whose texts are in the file.
            fresh = [i for i, text in enumerate(recording.texts) if text.prompt_id not in done]
            if fresh:
                known[path] = recording.select(fresh)
                done.update(text.prompt_id for text in known[path].texts)
    return known


def _check_same(
    config: Record, recorder: Recorder, texts: Mapping[str, Text], path: Path, recording: Recording
) -> None:
    settings = {key: recorder.manifest[key] for key in IDENTITY} | {"seed": config.seed}
    changed = [
        f"{key} was {recording.manifest.get(key)!r} and is {value!r}"
        for key, value in settings.items()
        if recording.manifest.get(key) != value
    ]
    if recording.candidates.nodes != recorder.candidates.nodes:
        sizes = len(recording.candidates), len(recorder.candidates)
        changed.append("candidates were a tree of {} nodes and are another of {}".format(*sizes))
    if not changed:
        changed = [
            f"prompt {text.prompt_id!r} is another one now"
            for text in recording.texts
            if text.prompt_id in texts and text.seed != texts[text.prompt_id].seed
        ][:1]
    if changed:
        raise ValueError(
            f"{path} was recorded with other settings: {'; '.join(changed)}; go on with those, or give "
            "another out"
        )


def _parts(
    config: Record, recorder: Recorder, missing: Sequence[Text], requests: Sequence[Request]
) -> Iterator[Recording]:
    """Write and record texts, a file of its own for every few of them."""
    texts = _written(config, recorder.engine, missing, requests)
    names = (config.parts / f"{number:05d}.npz" for number in itertools.count())
    while written := list(itertools.islice(texts, _PART_TEXTS)):
        part = recorder.record(written)
        extra = {"seed": config.seed, "prompts": list(config.prompts), "run": describe_run()}
        part = dataclasses.replace(part, manifest=part.manifest | extra)
        part.save(next(path for path in names if not path.exists()))
        yield part


def _written(
    config: Record, engine: Engine, missing: Sequence[Text], requests: Sequence[Request]
) -> Iterator[Text]:
    tokens, begin = 0, time.perf_counter()
    hidden: dict[int, Tensor] = {}
    with progress_bar() as bar:
        task = bar.add_task("recording", total=len(missing))
        replies = generate_batch(
            engine.backbone,
            requests,
            max_new_tokens=config.max_new_tokens,
            eos_token_ids=engine.eos_token_ids,
            slots=config.slots,
            hidden=hidden,
        )
        for index, reply in replies:
            tokens += len(reply)
            rate = tokens / (time.perf_counter() - begin)
            bar.update(task, description=f"recording, {rate:.0f} tok/s")
            bar.advance(task)
            yield dataclasses.replace(missing[index], reply=tuple(reply), hidden=hidden.pop(index))


def _merge(config: Record, recordings: Sequence[Recording], order: Sequence[str]) -> Recording:
    """All texts, those of ``order`` first and in its order."""
    merged = Recording.concatenate(recordings)
    place = {prompt_id: number for number, prompt_id in enumerate(dict.fromkeys(order))}
    ids = [text.prompt_id for text in merged.texts]
    merged = merged.select(sorted(range(len(ids)), key=lambda i: place.get(ids[i], len(place))))
    manifest = merged.manifest | {
        "prompts": list(dict.fromkeys([*merged.manifest["prompts"], *config.prompts])),
        "run": recordings[-1].manifest["run"],
    }
    return dataclasses.replace(merged, manifest=manifest)
