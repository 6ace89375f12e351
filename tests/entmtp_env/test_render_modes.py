import pytest

from entmtp_env.live import LiveEnv
from entmtp_env.render_modes import check_render_mode
from entmtp_env.replay.env import ReplayEnv


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_a_mode_that_is_not_there_is_refused(error):
    with pytest.raises(error, match=r"render_mode 'human' is not supported; use 'ansi' or None$"):
        check_render_mode(LiveEnv, "human")
    with pytest.raises(error, match=r"render_mode 'ansi' is not supported; use None$"):
        check_render_mode(ReplayEnv, "ansi")


def test_a_mode_that_is_there_is_kept():
    assert check_render_mode(LiveEnv, "ansi") == "ansi"
    assert check_render_mode(ReplayEnv, None) is None
