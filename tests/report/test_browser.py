"""The pages in a real browser: they are drawn, sorted, searched and opened, and a hostile name does nothing."""

from __future__ import annotations

import dataclasses

import pytest

from detent.report import documents
from detent.report.documents import write_page
from detent.results.tensors import NetworkNode
from tests.report.browser import Browser, find_browser
from tests.report.results import RESULTS, quantization

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine"),
]

VISIBLE = "[...document.querySelector('div.table').querySelectorAll('tbody tr[data-name]')].filter(row => !row.hidden)"
KEYS = f"{VISIBLE}.map(row => row.cells[COLUMN].dataset.key)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, result in RESULTS.items():
        write_page(result(), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in RESULTS}


@pytest.fixture
def page(browser, files):
    """The page of a quantization, which must not have complained when the test is over."""
    browser.open(files["quantize"])
    yield browser
    assert browser.problems == []
    assert browser.run("window.hurt") is None


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", list(RESULTS))
def test_pages_are_drawn_without_complaints_and_fit_the_width(browser, files, name, width, dark):
    browser.open(files[name], width, dark)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    browser.run("for (const each of document.querySelectorAll('.more')) each.click()")
    browser.run("for (const each of document.querySelectorAll('.open')) each.click()")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('.verdict h2').getBoundingClientRect().height") > 10
    assert browser.problems == []
    assert browser.requests == [files[name].as_uri()]
    assert browser.run("window.hurt") is None
    assert browser.run("document.querySelectorAll('img, script:not(:last-child)').length") == 0


def test_the_verdict_comes_before_how_the_run_was_made(browser, files):
    browser.open(files["quantize"])
    places = [
        browser.run(f"document.querySelector('{each}').getBoundingClientRect().top")
        for each in ("h1", ".verdict", ".tiles", ".about")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", list(RESULTS))
def test_no_table_is_cut_off(browser, files, name, width):
    browser.open(files[name], width)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    wide = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
    assert browser.run(f"{wide}.map(each => each.textContent.slice(0, 80))") == []


def test_the_label_of_a_note_does_not_cover_its_text(browser, files):
    covered = """
        [...document.querySelectorAll('.notes li')].filter(note => {
          const text = document.createRange(), badge = note.querySelector('.badge');
          text.setStartAfter(badge);
          text.setEndAfter(note.lastChild);
          return text.getClientRects()[0].left < badge.getBoundingClientRect().right + 4;
        }).map(note => note.textContent.slice(0, 40))
    """
    browser.open(files["quantize"])
    browser.run("for (const each of document.querySelectorAll('.notes .badge')) each.textContent = 'Suggestion'")
    assert browser.run("document.querySelectorAll('.notes .badge').length") > 0, "else there is nothing to test"
    assert browser.run(covered) == []


A4 = 718  # CSS pixels between the margins


@pytest.mark.parametrize("name", list(RESULTS))
def test_pages_on_paper_have_no_buttons_and_fit_its_width(browser, files, name):
    browser.open(files[name], A4, media="print")
    assert browser.run("document.documentElement.scrollWidth") <= A4
    shown = "[...document.querySelectorAll('.tools, .more, .panel')].filter(each => each.offsetParent !== null).length"
    assert browser.run(shown) == 0


def test_a_page_is_printed_dark_on_white_whatever_the_screen(browser, files):
    browser.open(files["quantize"], dark=True)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF") and 1 <= printed.count(b"/Type /Page\n") <= 12
    browser.open(files["quantize"], A4, dark=True, media="print")
    color = browser.run("getComputedStyle(document.querySelector('.verdict h2')).color.match(/[0-9]+/g).map(Number)")
    assert max(color[:3]) < 160


def test_names_of_models_are_broken_at_their_parts(browser, files):
    browser.open(files["evaluate three"], 390)
    lines = """
        (() => {
          const range = document.createRange(), found = [];
          for (const node of document.querySelectorAll('.tile h3 bdi')[1].childNodes) {
            if (node.nodeType === Node.TEXT_NODE) { range.selectNode(node); found.push(range.getClientRects().length); }
          }
          return found;
        })()
    """
    assert browser.run(lines) == [1, 1, 1]  # mobilenetv2_ int8_ equalized: each part stays in one line


def test_dark_is_dark_and_light_is_light(browser, files):
    lightness = []
    for dark in (False, True):
        browser.open(files["tune"], dark=dark)
        colour = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        ink = browser.run("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
        lightness.append((sum(colour), sum(ink)))
    (paper, ink), (dark_paper, dark_ink) = lightness
    assert paper - ink > 450
    assert dark_ink - dark_paper > 450


def test_rows_are_sorted_by_any_column_both_ways(page):
    page.click(".more")
    for column, numeric in ((0, True), (1, False), (3, True), (5, True)):
        page.click(f".table th:nth-child({column + 1}) button")
        first = [key for key in page.run(KEYS.replace("COLUMN", str(column))) if key is not None]
        page.click(f".table th:nth-child({column + 1}) button")
        again = [key for key in page.run(KEYS.replace("COLUMN", str(column))) if key is not None]
        if numeric:
            first, again = ([float(key) for key in keys] for keys in (first, again))
            assert sorted(first) in (first, first[::-1])
        assert len(first) > 10
        assert again != first
        assert sorted(again) == sorted(first)
        # Rows without a figure are last, whichever way.
        assert page.run(KEYS.replace("COLUMN", str(column)))[: len(again)][0] is not None


def test_the_worst_layer_comes_first(page):
    worst = quantization().worst_tensors(1)[0].closeness.sqnr_db
    assert float(page.run(KEYS.replace("COLUMN", "3"))[0]) == worst


def test_few_rows_are_shown_until_all_are_asked_for(page):
    assert len(page.run(KEYS.replace("COLUMN", "0"))) == 12
    page.click(".more")
    assert len(page.run(KEYS.replace("COLUMN", "0"))) == len(
        page.run("[...document.querySelectorAll('tr[data-name]')]")
    )


def test_a_search_finds_rows_beyond_the_first_few(page):
    page.type(".table input", "LAYER7/")
    assert page.run(f"{VISIBLE}.length") == 1
    assert page.run("document.querySelector('.table .found').textContent").startswith("1 of ")
    page.run("document.querySelector('.table input').value = ''")
    page.type(".table input", "<script>")
    assert 1 <= page.run(f"{VISIBLE}.length") <= 3


def test_a_histogram_is_drawn_when_its_row_is_opened(page):
    drawn = "document.querySelectorAll('tr.below path.bars').length"
    assert page.run(drawn) == 0
    page.click("tr[data-opens] .open")
    assert page.run(drawn) >= 1
    assert page.run("document.querySelector('tr.below path.bars').getBoundingClientRect().height") > 40
    assert page.run("document.querySelector('tr.below').previousSibling.querySelector('.open').ariaExpanded") == "true"
    page.click(".table th:nth-child(1) button")  # and stays below its row
    name = page.run("document.querySelector('tr.below').previousSibling.dataset.name")
    page.click(f"tr[data-name='{name}'] .open")
    assert page.run(drawn) == 0


def test_what_rows_of_a_large_page_open_into_is_unpacked(browser, tmp_path, monkeypatch):
    """The deflated page is smaller, says nothing twice, and opens the same rows and panels."""
    write_page(quantization(), tmp_path / "plain.html")
    monkeypatch.setattr(documents, "LARGE", 100)
    write_page(quantization(), tmp_path / "packed.html")
    assert (tmp_path / "packed.html").stat().st_size < (tmp_path / "plain.html").stat().st_size
    assert '<template id="of-' not in (tmp_path / "packed.html").read_text("utf-8")
    contents = "[...document.querySelectorAll('template[id]')].map(each => each.outerHTML)"
    browser.open(tmp_path / "plain.html")
    wanted = browser.run(contents)
    browser.open(tmp_path / "packed.html")
    ready = "!document.querySelector('template.packed')"
    browser.run(f"(async () => {{ while (!({ready})) await new Promise(then => setTimeout(then, 10)); }})()")
    assert browser.run(contents) == wanted
    browser.click("tr[data-opens] .open")
    assert browser.run("document.querySelectorAll('tr.below path.bars').length") >= 1
    assert browser.problems == []


def test_a_dot_of_the_chart_opens_its_layer(page):
    wanted = page.run("[...document.querySelectorAll('circle[data-opens]')].at(-1).dataset.opens")
    page.click(f"circle[data-opens='{wanted}']")
    assert page.run("document.querySelector('tr.below').previousSibling.dataset.name") == wanted


def test_rows_are_opened_by_the_keyboard(page):
    page.run("document.querySelector('tr[data-opens] .open').focus()")
    page.run("document.activeElement.click()")
    assert page.run("document.querySelectorAll('tr.below').length") == 1


def test_nothing_may_run_but_the_page_itself(browser, files):
    browser.open(files["tune"])
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hurt = true'}))"
    )
    browser.run("fetch('http://127.0.0.1:9/').catch(() => { window.refused = true })")
    assert browser.run("window.hurt") is None
    assert browser.run("window.refused") is True
    assert any("Content Security Policy" in problem for problem in browser.problems)


BOXES = "document.querySelectorAll('.boxes > g')"
PANEL = "document.querySelector('.panel')"


def test_a_box_of_the_network_opens_the_panel_of_its_layer(page):
    page.click(".boxes > g:nth-child(5)")
    assert page.run(f"{PANEL}.hidden") is False
    assert page.run(f"{PANEL}.querySelector('h3').textContent") == page.run(
        f"{BOXES}[4].querySelector('title').textContent.split('\\n')[0]"
    )
    assert page.run(f"{PANEL}.querySelectorAll('path.bars').length") >= 1
    assert page.run("document.querySelectorAll('.boxes .near').length") == 2
    row = page.run(f"{BOXES}[4].dataset.row")
    page.run(f"{PANEL}.querySelector('.leads').click()")
    assert page.run("document.querySelector('tr.below').previousSibling.dataset.name") == row
    page.run(f"{PANEL}.querySelector('.close').click()")
    assert page.run(f"{PANEL}.hidden") is True


def test_the_network_is_searched_and_enter_goes_from_hit_to_hit(page):
    page.type(".network input", "LAYER1")
    hits = page.run("document.querySelectorAll('.boxes .hit').length")
    assert hits == 5  # Layer1, and Layer10 to Layer13
    assert page.run("document.querySelector('.network .found').textContent") == f"5 of {page.run(f'{BOXES}.length')}"
    enter = "document.querySelector('.network input').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    seen = []
    for _ in range(hits):
        page.run(enter)
        seen.append(page.run(f"{PANEL}.querySelector('h3').textContent"))
    assert len(set(seen)) == hits


def test_the_network_is_colored_by_error_by_format_and_by_device(page):
    fills = []
    for by in "efd":
        page.click(f".network .tools [data-by={by}]")
        fills.append(page.run(f"getComputedStyle({BOXES}[3].querySelector('rect')).fill"))
        shown = "[...document.querySelectorAll('.network > figcaption')].filter(each => each.clientHeight)"
        assert page.run(f"{shown}.map(each => each.dataset.of)") == [by]
    assert len(set(fills)) >= 2


def test_the_view_zooms_moves_and_fits_again(page):
    view = "document.querySelector('.network > svg').viewBox.baseVal"
    size = f"[{view}.x, {view}.y, {view}.width, {view}.height]"
    whole = page.run(size)
    page.click(".network [data-do=in]")
    assert page.run(f"{view}.width") == pytest.approx(whole[2] / 1.4, rel=1e-3)
    page.run("document.querySelector('.network > svg').focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
    assert page.run(f"{view}.x") > whole[0]
    page.click(".network [data-do=fit]")
    assert page.run(size) == pytest.approx(whole, rel=1e-3)
    page.click(".network [data-do=expand]")
    assert page.run("document.querySelector('.network').getBoundingClientRect().width") == 1280
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
    assert page.run("document.querySelector('.network').getBoundingClientRect().width") < 1280


def test_a_network_of_five_thousand_nodes_is_drawn(browser, tmp_path):
    report = quantization()
    network = [NetworkNode("x", "Input", (), kind="input")]
    network += [NetworkNode(f"node {at}", "Add", (at - 1, max(at - 4, 0))) for at in range(1, 5000)]
    large = dataclasses.replace(report, pictures=dataclasses.replace(report.pictures, network=network))
    write_page(large, tmp_path / "large.html")
    assert (tmp_path / "large.html").stat().st_size < 3_000_000
    browser.open(tmp_path / "large.html")
    assert browser.run(f"{BOXES}.length") == 5000
    assert browser.run("document.querySelector('.network > svg').classList.contains('farther')") is True
    assert browser.problems == []


def test_the_frame_of_a_notebook_is_as_high_as_its_page(browser, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8>{documents.summary_frame(quantization())}", encoding="utf-8")
    browser.open(file)
    heights = "(frame => [frame.clientHeight, frame.contentDocument.documentElement.scrollHeight])"
    browser.run("new Promise(done => setTimeout(done, 500))")
    frame, inner = browser.run(f"{heights}(document.querySelector('iframe'))")
    assert frame == inner > 480
    assert not browser.problems
