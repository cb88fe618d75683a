"""The report in a real browser: opened from disk, hovered, clicked, at the width of a phone and a desk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lfom.report import write_report
from tests.browser.chromium import Chromium, started
from tests.test_report import write_results

FIGURE = "#small-figure-0"
SIZES = ((390, 844), (1280, 900))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_results(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with started(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture
def window(browser: Chromium, page: Path) -> Iterator[Chromium]:
    browser.resize(1280, 900)
    browser.open(page)
    yield browser
    assert browser.messages() == []


def curves(window: Chromium) -> int:
    return window.run(f"return document.querySelectorAll('{FIGURE} .curve').length")


def tip(window: Chromium) -> str | None:
    return window.run(
        f"const tip = document.querySelector('{FIGURE} .tip'); return tip.hidden ? null : tip.innerText"
    )


def test_opens_from_disk_without_network(window: Chromium) -> None:
    assert window.run("return location.protocol") == "file:"
    assert window.run("return performance.getEntriesByType('resource').length") == 0
    assert window.run("return document.querySelectorAll('figure.chart .plot svg').length") == 3


def test_hover_reads_out_the_point(window: Chromium) -> None:
    assert tip(window) is None
    window.hover(f"{FIGURE} .curve rect")
    text = tip(window)
    assert text is not None
    assert "Memformer · converged" in text
    assert "layers: 1" in text
    assert "log loss: 0.200 ± 0.100 (standard deviation over 3 runs)" in text
    window.hover("h1")
    assert tip(window) is None


def test_zero_to_rounding_is_marked_and_read_out(window: Chromium) -> None:
    window.hover(f"{FIGURE} .floored")
    assert "zero to rounding in all 3 runs" in str(tip(window))


def test_legend_switches_curves(window: Chromium) -> None:
    before = curves(window)
    button = f"{FIGURE} .legend button"
    assert window.run(f"return document.querySelector('{button}').getAttribute('aria-pressed')") == "true"
    window.click(button)
    assert window.run(f"return document.querySelector('{button}').getAttribute('aria-pressed')") == "false"
    assert curves(window) == before - 1
    window.click(button)
    assert curves(window) == before
    window.click(f"{FIGURE} .legend .all")
    assert curves(window) == window.run(f"return document.querySelectorAll('{button}[aria-pressed]').length")


def test_last_curve_can_be_switched_off(window: Chromium) -> None:
    window.run(
        f"document.querySelectorAll('{FIGURE} button[aria-pressed=true]').forEach((one) => one.click())"
    )
    assert curves(window) == 0
    window.hover(f"{FIGURE} svg")
    assert tip(window) is None


def test_keyboard_reads_out_points(window: Chromium) -> None:
    window.run(f"document.querySelector('{FIGURE} .plot svg').focus()")
    assert "layers: 1" in str(tip(window))
    window.press("\ue014")  # right arrow
    assert "layers: 2" in str(tip(window))
    window.press("\ue00c")  # escape
    assert tip(window) is None


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_overflows(window: Chromium, page: Path, width: int, height: int, dark: bool) -> None:
    window.resize(width, height, dark)
    window.open(page)
    wide, inner = window.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert inner == width
    assert wide <= inner
    window.hover(f"{FIGURE} .plot svg")
    assert window.run("return document.documentElement.scrollWidth") <= width


def test_screen_follows_the_colour_scheme(window: Chromium) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = window.run(colour)
    window.resize(1280, 900, dark=True)
    assert window.run(colour) != light


def test_texts_from_files_stay_texts(window: Chromium) -> None:
    assert window.run("return window.broken === undefined")
    assert window.run("return document.querySelectorAll('main img, main script:not([type])').length") == 0
