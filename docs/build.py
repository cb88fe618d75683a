"""Build the site into a folder, with warnings as errors, and follow every link inside it.

python docs/build.py build/site
"""

import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent


class Page(HTMLParser):
    """What a page points to, what it loads, and the places in it that can be pointed to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") not in (
            "canonical",
            "search",
            "index",
            "next",
            "prev",
            "author",
        ):
            self.loads.append(given.get("href", ""))


def faults(site: Path) -> list[str]:
    """Links inside the site that lead nowhere, and whatever a page would load from a network."""
    pages = {path.resolve(): Page(path.read_text("utf8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("data", "mailto"):
                continue
            name = path.relative_to(site.resolve())
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    found.append(f"{name}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name}: {link} does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} has no such place")
    return sorted(set(found))


def main(out: str) -> int:
    from sphinx.cmd.build import build_main

    begun = time.monotonic()
    site = Path(out)
    options = ["-b", "html", "-W", "--keep-going", "-E", "-q", "-j", "2", "-d", str(site.parent / "doctrees")]
    status = build_main([*options, str(HERE), str(site)])
    wrong = faults(site)
    print(
        "\n".join(wrong) or "every link inside the site leads somewhere, and nothing is loaded from a network"
    )
    print(f"{len(list(site.rglob('*.html')))} pages in {site}, {time.monotonic() - begun:.0f} s")
    return status or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
