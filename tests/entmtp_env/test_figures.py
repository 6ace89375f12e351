import pytest
from matplotlib.figure import Figure

from entmtp_env.figures import save_figure


def test_a_figure_that_cannot_be_drawn_leaves_the_old_file(tmp_path):
    path = tmp_path / "new folder" / "plot.png"
    save_figure(path, Figure())
    before = path.read_bytes()
    assert before[:8] == b"\x89PNG\r\n\x1a\n"
    broken = Figure()
    broken.suptitle("$\\no-such-command$")
    with pytest.raises(ValueError, match="no-such-command"):
        save_figure(path, broken)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
