import numpy as np
import pytest

from entmtp_env.prompt_queue import PromptQueue, draw_order

IDS = [f"p{i}" for i in range(7)]


def draws(queue, rng, count, options=None):
    return [queue.draw(rng, options) for _ in range(count)]


def test_every_prompt_once_a_round_in_orders_that_differ():
    queue, rng = PromptQueue(IDS, "set"), np.random.default_rng(0)
    rounds = [[index for index, _ in draws(queue, rng, 7)] for _ in range(20)]
    assert all(sorted(one) == list(range(7)) for one in rounds)
    assert len(set(map(tuple, rounds))) > 15


def test_seeds_fix_the_order_and_the_sampling():
    def drawn(seed):
        return draws(PromptQueue(IDS, "set"), np.random.default_rng(seed), 15)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    seeds = [seed for _, seed in drawn(1)]
    assert len(set(seeds)) == 15
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_drawn_order_is_taken_from_its_end():
    order, seeds = draw_order(np.random.default_rng(3), 7)
    expected = list(zip(order, seeds, strict=True))[::-1]
    assert draws(PromptQueue(IDS, "set"), np.random.default_rng(3), 7) == expected


def test_a_picked_prompt_takes_the_turn_and_the_seed_of_another():
    plain, picking = PromptQueue(IDS, "set"), PromptQueue(IDS, "set")
    rngs = [np.random.default_rng(5) for _ in range(2)]
    (_, seed), *after = draws(plain, rngs[0], 9)
    assert picking.draw(rngs[1], {"prompt_id": "p4"}) == (4, seed)
    assert draws(picking, rngs[1], 8, {}) == after


def test_a_cleared_queue_begins_a_new_round():
    queue, rng = PromptQueue(IDS, "set"), np.random.default_rng(0)
    draws(queue, rng, 3)
    queue.clear()
    assert sorted(index for index, _ in draws(queue, rng, 7)) == list(range(7))


def test_unknown_prompts_and_options_are_named_and_take_no_turn():
    queue, rng = PromptQueue(IDS, "my set"), np.random.default_rng(0)
    with pytest.raises(ValueError, match="no prompt 'q' in 'my set'; ids look like 'p0'"):
        queue.draw(rng, {"prompt_id": "q"})
    with pytest.raises(ValueError, match=r"unknown reset options \['prompt'\]; the only one is 'prompt_id'"):
        queue.draw(rng, {"prompt": "p1"})
    for wrong in ({"prompt_id": "q"}, {"prompt": "p1"}):
        with pytest.raises(ValueError, match=r"no prompt|unknown reset options"):
            queue.check(wrong)
    for right in (None, {}, {"prompt_id": "p3"}):
        queue.check(right)
    assert draws(queue, rng, 9) == draws(PromptQueue(IDS, "set"), np.random.default_rng(0), 9)
