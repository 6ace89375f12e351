"""Environments that are closed, dropped, run in threads, and copied into other processes."""

import gc
import multiprocessing
import threading
import weakref

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from entmtp_env import engine
from entmtp_env.engine import get_engine

IDS = ("EntMTP/Live-v0", "EntMTP/Staged-v0")
PROMPT = {"options": {"prompt_id": "t4"}, "seed": 0}


@pytest.fixture(params=IDS)
def make(request, tiny_files):
    return lambda **changes: gymnasium.make(request.param, **(tiny_files.kwargs | changes))


def write(env, action=3):
    """The text of a prompt, and the number of its steps."""
    env.reset(**PROMPT)
    for count in range(1, 1000):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return info["text"], count
    raise AssertionError("the text does not end")


def test_a_closed_environment_begins_anew_and_may_be_closed_twice(make):
    env = make()
    expected = write(env)
    for _ in range(2):
        env.reset(seed=1)
        env.step(1)
        env.close()
        env.close()
        with pytest.raises(ResetNeeded):
            env.unwrapped.step(1)
        assert write(env) == expected
    make().close()


def test_closing_and_dropping_free_the_session_and_not_the_model(make, tiny_files):
    env = make()
    env.reset(**PROMPT)
    model, session = env.unwrapped.engine, weakref.ref(env.unwrapped.decoder)
    env.close()
    gc.collect()
    assert session() is None
    env.reset(**PROMPT)
    session = weakref.ref(env.unwrapped.decoder)
    del env
    gc.collect()
    assert session() is None
    assert get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu") is model


def test_an_environment_that_only_a_thread_knows_goes_on(make):
    env = make()
    expected, texts = write(env), []
    thread = threading.Thread(target=lambda own: texts.extend(write(own) for _ in range(3)), args=(env,))
    session = weakref.ref(env)
    thread.start()
    del env
    while thread.is_alive():
        gc.collect()
        thread.join(0.05)
    del thread
    gc.collect()
    assert texts == [expected] * 3
    assert session() is None


def test_threads_with_environments_of_their_own_share_a_model(make):
    expected, texts = write(make()), []
    threads = [
        threading.Thread(target=lambda: texts.extend(write(make()) for _ in range(4))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 12


def report(env, queue):
    queue.put(write(env))


def test_a_worker_that_is_forked_while_a_thread_steps_does_not_wait_for_it(make):
    """What the thread holds at that moment, nobody would ever release in the worker."""
    env, stop = make(max_new_tokens=60), threading.Event()
    expected = write(env)
    other = make()

    def work():
        while not stop.is_set():
            write(other)

    thread = threading.Thread(target=work)
    thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(6):
            queue = context.SimpleQueue()
            worker = context.Process(target=report, args=(env, queue), daemon=True)
            worker.start()
            worker.join(timeout=30)
            assert worker.exitcode == 0, "the worker hangs"
            assert queue.get() == expected
    finally:
        stop.set()
        thread.join()
    assert write(env) == expected


def test_a_worker_that_is_forked_while_a_model_loads_can_load_one(tiny_files, monkeypatch):
    loading, go_on, load = threading.Event(), threading.Event(), engine._load
    names = (tiny_files.model, tiny_files.heads, "float32", "cpu")

    def slow(*args):
        loading.set()
        go_on.wait(10)
        return load(*args)

    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.setattr(engine, "_load", slow)
    thread = threading.Thread(target=get_engine, args=names)
    thread.start()
    loading.wait()
    threading.Timer(0.2, go_on.set).start()
    worker = multiprocessing.get_context("fork").Process(target=get_engine, args=names, daemon=True)
    worker.start()
    worker.join(timeout=30)
    thread.join()
    assert worker.exitcode == 0, "the worker hangs"


@pytest.mark.slow
def test_workers_that_are_spawned_load_their_own_model(make, tiny_files):
    expected = write(make(), 2)[0]
    settings = tiny_files.kwargs | {"vector_kwargs": {"context": "spawn"}, "vectorization_mode": "async"}
    env_id = make().spec.id
    envs = gymnasium.make_vec(env_id, num_envs=2, **settings)
    try:
        envs.reset(**PROMPT)
        ended, texts = np.zeros(2, dtype=bool), [None, None]
        while not ended.all():
            _, _, terminated, truncated, infos = envs.step(np.array([2, 2]))
            for i in np.flatnonzero((terminated | truncated) & ~ended):
                texts[i], ended[i] = infos["text"][i], True
    finally:
        envs.close()
    assert texts == [expected] * 2
