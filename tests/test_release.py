"""The files that describe a release say the same."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version_and_names_the_sources():
    citation = yaml.load((ROOT / "CITATION.cff").read_text(), yaml.BaseLoader)
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert {"message", "title", "abstract"} <= citation.keys()
    for key in ("version", "license", "keywords", "authors"):
        assert citation[key] == PROJECT[key]
    sources = re.findall(
        r"\(arXiv\s(\d{4}\.\d{5})\)", (ROOT / "README.md").read_text().partition("Sources:")[2]
    )
    assert [own["identifiers"] for own in citation["references"]] == [
        [{"type": "other", "value": f"arXiv:{number}"}] for number in sources
    ]
    for own, number in zip(citation["references"], sources, strict=True):
        assert own["url"] == f"https://arxiv.org/abs/{number}"
        assert own["type"]
        assert own["title"]
        assert own["authors"]


def test_the_changelog_has_this_version_with_the_date_of_the_citation():
    newest = re.search(r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.load((ROOT / "CITATION.cff").read_text(), yaml.BaseLoader)
    assert newest.groups() == (PROJECT["version"], citation["date-released"])


def test_the_licence_goes_with_what_it_does_not_cover():
    assert PROJECT["license-files"] == ["LICENSE", "docs/DATA.md"]
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
