"""Make new word problems from old ones: the same questions with other numbers.

    python examples/vary_numbers.py math_prompts.jsonl varied.jsonl --copies 2
    python -m train distill --prompts varied.jsonl --out varied.jsonl.gz

Draft heads do not mind whether a problem still has a sensible answer: the base model writes its own.
"""

import argparse
import json
import random
import re
from pathlib import Path

# Not within a decimal fraction, a date, a ratio or a time.
NUMBER = re.compile(r"(?<![\d.,/:])\d{1,4}(?![\d.,/:]*\d)")


def vary(text: str, rng: random.Random) -> str:
    """Replace numbers above 1, equal ones by equal ones; 100 stays, round ones stay round."""
    replaced: dict[str, str] = {}

    def new(match: re.Match[str]) -> str:
        old = match.group()
        value = int(old)
        if value < 2 or value == 100:
            return old
        if old not in replaced:
            drawn = rng.randint(max(2, value // 2), max(5, 2 * value))
            replaced[old] = str(max(10, round(drawn, -1)) if value % 10 == 0 else drawn)
        return replaced[old]

    return NUMBER.sub(new, text)


def main() -> None:
    """Read prompts, write variants that differ from all that are there already."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prompts", help="JSON lines with a 'prompt' each")
    parser.add_argument("out", type=Path, help="JSON lines to write")
    parser.add_argument("--copies", type=int, default=1, help="variants of each prompt")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    with open(arguments.prompts, encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file if line.strip()]
    old = set(prompts)
    variants = dict.fromkeys(vary(prompt, rng) for _ in range(arguments.copies) for prompt in prompts)
    new = [text for text in variants if text not in old]
    with arguments.out.open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"id": f"varied-{i}", "prompt": text}) + "\n" for i, text in enumerate(new)
        )
    print(f"{len(new)} prompts in {arguments.out}")


if __name__ == "__main__":
    main()
