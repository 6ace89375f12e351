"""What tests ask of an HTML page."""

import json
from html.parser import HTMLParser

_VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Parses a page and checks that its elements nest.

    Attributes:
        tags: (name, attributes) of every element.
        text: All text outside of scripts and styles.
        data: The JSON documents in it.
    """

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self.data, self._open = [], "", [], []
        self.feed(source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag, tag

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if attributes.get("type") == "application/json":
            self.data.append(json.loads(data))
        elif tag not in ("script", "style"):
            self.text += data

    def count(self, name, **attributes):
        """Elements of a name with these attributes."""
        return sum(tag == name and attributes.items() <= own.items() for tag, own in self.tags)

    def check_self_contained(self):
        """Nothing is fetched: no address but of places in the page, and a policy that forbids it."""
        for tag, attributes in self.tags:
            assert tag not in ("link", "img", "iframe")
            assert "src" not in attributes
            assert attributes.get("href", "#").startswith("#")
        (policy,) = [a["content"] for tag, a in self.tags if "Content-Security-Policy" in a.values()]
        assert policy.startswith("default-src 'none';")
