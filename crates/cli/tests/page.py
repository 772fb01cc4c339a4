"""Clicks through a report's page in Chromium: page.py FILE KERNELS REPEATS MEASURED. Fails with an assertion if something does not
work. MEASURED: the page comes from `kiln bench` on the host, so it has measured times and no PTX."""
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

file, kernels, repeats, measured = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "true", sys.argv[4] == "true"


def number(cell):
    return float(cell.get_attribute("data-v"))


def check(page):
    boxes, detail = page.locator(".kernel"), page.locator("#detail")
    assert page.locator("#rows tr").count() == kernels
    if repeats:
        # Repeated kernels are drawn once until their bracket is clicked to unfold them.
        assert boxes.count() < kernels, boxes.count()
        page.locator(".fold").first.click()
        assert page.locator(".fold").first.get_attribute("aria-expanded") == "true"
    assert boxes.count() == kernels, boxes.count()

    # Each kernel has both times, in words and as bars on one scale.
    assert page.locator(".kernel .clock").count() == (kernels if measured else 0)
    for box in boxes.all()[:10]:
        assert ("→" in box.locator("text.us").inner_html()) == measured
        assert ("→" in box.get_attribute("aria-label")) == measured
        # Name and times do not overlap.
        name, times = (box.locator("text").nth(i).bounding_box() for i in [0, 1])
        assert name["x"] + name["width"] <= times["x"], (name, times)

    # A click on a kernel shows it, its reason, its block program and its PTX.
    boxes.nth(1).click()
    name = boxes.nth(1).get_attribute("aria-label").split(",")[0]
    assert detail.locator("h2").inner_text() == name
    assert boxes.nth(1).get_attribute("aria-pressed") == "true"
    assert "why" in detail.locator("dt").all_inner_texts()
    for title, word in [("block program", "kernel")] + [("PTX", ".visible .entry")] * (not measured):
        code = detail.locator("details").filter(has=page.get_by_text(title, exact=True)).first
        code.locator("summary").click()
        assert word in code.locator("pre").inner_text(), title
    # A click on a bar of the timeline or on a link does the same.
    page.locator(".timeline rect").first.dispatch_event("click")
    assert boxes.first.get_attribute("aria-pressed") == "true"
    if detail.locator("button.link").count():
        to = detail.locator("button.link").first.inner_text()
        detail.locator("button.link").first.click()
        assert detail.locator("h2").inner_text() == to

    # Keyboard: ArrowDown from the first box selects the second; Enter selects the focused one.
    boxes.first.focus()
    page.keyboard.press("ArrowDown")
    assert boxes.nth(1).get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.dataset.kernel") == boxes.nth(1).get_attribute("data-kernel")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert boxes.first.get_attribute("aria-pressed") == "true"

    # The table sorts in both directions and filters.
    column = page.locator("th").filter(has_text="Mflop")
    index = [h.strip() for h in page.locator("th").all_inner_texts()].index("Mflop")
    for order in ["descending", "ascending"]:
        column.locator("button").click()
        assert column.get_attribute("aria-sort") == order
        some = [number(page.locator("#rows tr").nth(i).locator("td").nth(index)) for i in range(min(kernels, 20))]
        assert some == sorted(some, reverse=order == "descending"), some
    page.locator("#find").fill(name)
    shown = page.locator("#rows tr:not([hidden])")
    assert 0 < shown.count() < kernels
    assert name in shown.first.inner_text()


with sync_playwright() as p:
    browser = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    backs = []
    for scheme in ["light", "dark"]:
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        wrong, asked = [], []
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("request", lambda r: asked.append(r.url))
        page.goto(file.as_uri())
        check(page)
        backs.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert not wrong, wrong
        assert all(url.startswith("file:") for url in asked), asked
    assert backs[0] != backs[1], backs
    # On a narrow screen the page itself never scrolls sideways.
    narrow = browser.new_page(viewport={"width": 420, "height": 800})
    narrow.goto(file.as_uri())
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 420
    browser.close()
