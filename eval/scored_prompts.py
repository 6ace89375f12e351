"""The prompts of a comparison, once they are known to be those that it ran."""

from __future__ import annotations

import warnings

from entmtp_env.decoding.acceptance import SampleRule, make_acceptance
from entmtp_env.prompts import Prompt, load_prompts
from eval.contest import prompts_fingerprint
from eval.interleave import draw_prompts
from eval.stored import StoredResults


def recorded_prompts(results: StoredResults, prompts: str) -> list[Prompt]:
    """Load a prompt set of a comparison, and check that it is what it was.

    Warns when the results are of an earlier version, which kept no hash of the prompts' texts.

    Args:
        results: The comparison.
        prompts: The set.

    Returns:
        The whole set.

    Raises:
        ValueError: When a prompt is missing or has another text; or, where sampling rests on it, the set has
            other prompts besides or another order.
        FileNotFoundError: When its file is missing.
    """
    loaded, seeds = load_prompts(prompts), results.manifest["prompt_seeds"][prompts]
    by_id = {prompt.prompt_id: prompt for prompt in loaded}
    missing = [prompt_id for prompt_id in seeds if prompt_id not in by_id]
    if missing:
        raise ValueError(f"{prompts!r} has no prompt {missing[0]!r} any more; restore the set")
    recorded = results.manifest.get("prompt_texts", {}).get(prompts)
    if recorded is None:
        warnings.warn(
            f"{results.path} does not say what the texts of {prompts!r} were; they are taken to be those "
            "of today",
            stacklevel=2,
        )
    elif recorded != prompts_fingerprint(by_id[prompt_id] for prompt_id in seeds):
        raise ValueError(f"prompts of {prompts!r} have other texts than those that ran; restore the set")
    if isinstance(make_acceptance(results.settings["acceptance"]), SampleRule):
        # The noise of a text is drawn for its place among all prompts of the set.
        drawn = draw_prompts(loaded, 0, results.settings["seed"])
        if any(drawn[prompt_id] != seed for prompt_id, seed in seeds.items()):
            raise ValueError(
                f"{prompts!r} has other prompts, or another order, than when it ran, and sampled texts rest "
                "on both; restore the set"
            )
    return loaded
