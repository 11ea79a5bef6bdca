"""Reads a page as a browser would, and keeps what tests ask about."""

from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Tags with their attributes, text by tag, and whether every tag that is opened is closed in turn."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.rows = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append((self.open[-1] if self.open else "", text))
        if self.rows and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += (" " if self.open[-1] == "small" else "") + text

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, *without):
        return " ".join(text.strip() for tag, text in self.texts if text.strip() and tag not in without)


def check_page(source):
    """What must hold for every page of ours; returns it parsed."""
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert page.all("html") == [{"lang": "en"}]
    assert [a.get("name") for a in page.all("meta")].count("viewport") == 1
    addresses = [a[key] for _, a in page.tags for key in ("src", "href", "srcset", "data", "xlink:href", "action") if key in a]
    assert all(address.startswith(("data:", "#")) for address in addresses), addresses
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert "@import" not in source
    assert "http:" not in source
    assert "https:" not in source
    assert all(a.get("alt", "").strip() for a in page.all("img"))
    assert all(a.get("scope") for a in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    return page
