from eval.environment import make_live_env
from tests.eval.decoder_env import ENV_ID


def test_settings_reach_the_environment(config, prompt_file):
    settings = vars(config(max_new_tokens=7, model="mine"))
    env = make_live_env(settings, prompt_file(2, "two.jsonl"), ENV_ID).unwrapped
    assert (env.max_tokens, env.manifest["model"], len(env.prompts)) == (7, "mine", 2)


def test_the_live_environment_takes_all_of_them(tiny_files, config):
    settings = vars(config()) | tiny_files.kwargs
    env = make_live_env(settings, tiny_files.prompts, "EntMTP/Live-v0").unwrapped
    assert env.manifest["max_new_tokens"] == 24
    assert env.manifest["capacity"] == 256
