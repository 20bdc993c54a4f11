"""The playground in a real browser, against a real server with a tiny model."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import serving
from tiny import tiny_engine
from tiny_pdf import text_pdf

from graft.sampling import SamplingParams

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
expect.set_options(timeout=60_000)
pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
QUESTION = "the end and the answer"
SEED, TEMPERATURE = 3, 0.5
# What the tiny model said once it says again: a text of it is copied from.
OWN = (
    tiny_engine()
    .generate(
        [{"role": "user", "content": QUESTION}],
        SamplingParams(max_tokens=150, ignore_eos=True, seed=SEED, temperature=TEMPERATURE),
    )
    .text
)
DOCUMENT = f"😀 {OWN}"
DROP = """async ([name, text]) => {
    const files = new DataTransfer();
    files.items.add(new File([text], name));
    document.body.dispatchEvent(
        new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
}"""
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def server():
    with serving(tiny_engine(max_batch=4)) as running:
        yield running


@contextmanager
def slow_server(seconds):
    """One that can be killed."""
    command = [sys.executable, str(HERE / "serve_tiny.py"), str(seconds)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def dropped(page, name, text):
    """Drop a file and wait until the server has read it."""
    page.evaluate(DROP, [name, text])
    page.locator("#documents .name", has_text=name).wait_for()


def asked(page, *, tokens=120, compare="after", question=QUESTION):
    """Fill in the form and ask."""
    page.locator("#settings").evaluate("each => each.open = true")
    page.locator("#max-tokens").fill(str(tokens))
    page.locator("#seed").fill(str(SEED))
    page.locator("#temperature").fill(str(TEMPERATURE))
    page.locator("#compare").select_option(compare)
    page.locator("#question").fill(question)
    page.locator("#go").click()


def answered(page):
    expect(page.locator("#status")).to_contain_text("Answered")


def panes(page):
    return page.locator(".pane").all()


def number(pane, name):
    return float(re.sub(r"[^0-9.]", "", pane.locator(f"[data-number={name}]").inner_text()))


def copied_token(page):
    """A token of the first answer that stood in the document."""
    tokens = page.locator(".pane").first.locator(".token.source-prompt, .token.source-document")
    assert tokens.count() > 0
    return tokens.first


def test_a_dropped_file_gets_two_answers_with_the_same_text(server, open_page):
    page = open_page(server.url)
    dropped(page, "river.md", DOCUMENT)
    assert page.locator("#documents .name").inner_text() == "river.md"
    with page.expect_request("**/v1/chat/completions") as first:
        asked(page)
    sent = first.value.post_data_json
    assert sent["documents"] == [{"title": "river.md", "text": DOCUMENT}]
    assert sent["messages"] == [{"role": "user", "content": QUESTION}]
    answered(page)
    drafted, plain = panes(page)
    assert drafted.locator(".text").inner_text() == plain.locator(".text").inner_text()
    assert "The same text" in page.locator("#verdict").inner_text()
    assert number(drafted, "tokens") == number(plain, "tokens") == 120
    assert number(drafted, "step") > number(plain, "step") == 1
    for pane in (drafted, plain):
        assert number(pane, "speed") > 0
        assert number(pane, "total") >= number(pane, "first") > 0
    assert drafted.locator(".token.drafted").count() > 0
    assert plain.locator(".token.drafted").count() == 0
    counts = re.findall(r" (\d+) \(", page.locator("#legend").inner_text())
    assert sum(map(int, counts)) == 120


def test_hovering_a_copied_token_shows_source_probability_and_passage(server, open_page):
    page = open_page(server.url)
    dropped(page, "river.md", DOCUMENT)
    asked(page, compare="no")
    answered(page)
    token = copied_token(page)
    token.hover()
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert "copied from river.md" in tip.inner_text()
    assert re.search(r"probability (over |under )?[0-9.]+ %", tip.inner_text())
    assert page.locator("#viewer-text mark .token-passage").inner_text() == token.inner_text()
    run = "".join(page.locator(".in-run").all_inner_texts())
    assert page.locator("#viewer-text mark").inner_text() == run
    assert page.locator("#viewer-text").inner_text() == DOCUMENT
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")
    assert page.locator("#viewer-text mark").count() == 0


def test_everything_works_by_keyboard(server, open_page):
    page = open_page(server.url)
    dropped(page, "river.md", DOCUMENT)
    page.locator("#model").click()
    page.keyboard.press("Tab")  # theme
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "question":
            break
    page.keyboard.type("the river")
    page.keyboard.press("Control+Enter")
    answered(page)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className").startswith("token"):
            break
    assert page.locator('.pane .token[tabindex="0"]').count() == 2  # one for each answer
    focused = "document.activeElement.dataset.place"
    assert page.evaluate(focused) == "0"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "1"
    page.keyboard.press("ArrowDown")  # the next run
    assert page.evaluate("document.activeElement.classList.contains('drafted')")
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert "copied from" in tip.inner_text()
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("Home")
    assert page.evaluate(focused) == "0"


def test_the_plot_and_its_table_agree(server, open_page):
    page = open_page(server.url)
    dropped(page, "river.md", DOCUMENT)
    asked(page, compare="no")
    answered(page)
    page.locator("#plot-section summary").click()
    rows = [row.split("\t") for row in page.locator("#steps tbody tr").all_inner_texts()]
    accepted = [int(row[2]) for row in rows]
    assert sum(accepted) == page.locator("#plot .bar").count() > 0
    assert all(int(row[2]) <= int(row[1]) for row in rows)
    label = page.locator("#plot svg").get_attribute("aria-label")
    assert label.startswith(
        f"{len(rows)} steps, {sum(accepted) / len(rows):.2f} accepted draft tokens"
    )


def test_a_killed_server_stops_the_numbers_and_shows_an_error(open_page):
    with slow_server(0.05) as (process, url):
        page = open_page(url)
        asked(page, tokens=1500, compare="no")
        page.locator(".token").nth(5).wait_for()
        process.kill()
        expect(page.locator("#trouble")).to_contain_text("server may have stopped")
        assert page.locator(".pane .state").inner_text() == "failed"
        page.wait_for_timeout(100)
        before = page.locator(".numbers").inner_text()
        page.wait_for_timeout(500)
        assert page.locator(".numbers").inner_text() == before
        page.locator("#go").click()
        expect(page.locator("#trouble")).to_contain_text("cannot be reached")


def test_stop_ends_the_request_and_keeps_the_text(open_page):
    with slow_server(0.05) as (_, url):
        page = open_page(url)
        asked(page, tokens=1500)
        page.locator(".token").nth(5).wait_for()
        page.locator("#stop").click()
        expect(page.locator("#status")).to_have_text("Stopped.")
        drafted, plain = panes(page)
        assert drafted.locator(".state").inner_text() == "stopped"
        assert plain.locator(".token").count() == 0
        assert page.locator("#go").is_enabled()
        for _ in range(100):  # the server sees the closed connection with its next token
            metrics = page.request.get(f"{url}/metrics").text()
            if re.search(r"num_requests_running\S* 0\.0", metrics):
                break
            page.wait_for_timeout(100)
        else:
            pytest.fail("the request runs on")


def test_files_that_cannot_be_read_are_named(server, open_page):
    page = open_page(server.url)
    trouble = page.locator("#document-trouble")
    for name, text, words in [
        ("a.pdf", "%PDF-1.7", "is not a complete PDF"),
        ("b.bin", "a\0b", "is a binary file; can be read: text"),
        ("c.txt", " \n", "is empty"),
        ("d.txt", "a" * 1_000_001, "1,000,001 characters; 1,000,000 characters can be sent"),
    ]:
        page.evaluate(DROP, [name, text])
        expect(trouble).to_contain_text(name)
        assert words in trouble.inner_text()
    assert page.locator("#documents li").count() == 0
    html = (
        "<title>x</title><script>document.title = 'run'</script><p>one &amp; <b>two</b></p><p>three"
    )
    page.evaluate(DROP, ["e.html", html])
    page.locator("#documents li").wait_for()
    assert page.locator("#viewer-text").inner_text().strip() == "one & two\n\nthree"
    assert page.title() == "Graft playground"
    assert trouble.inner_text() == ""


def test_a_source_of_the_answer_is_shown_when_clicked(server, open_page):
    def repeat(route):  # the tiny model knows no answer
        body = {**route.request.post_data_json, "guided_choice": ["see: The lift is old"]}
        route.continue_(post_data=json.dumps(body))

    page = open_page(server.url)
    page.route("**/v1/chat/completions", repeat)
    house = text_pdf(["the inn is near"], ["the lift is old and slow"])
    page.locator("#files").set_input_files(
        {"name": "house.pdf", "mimeType": "application/pdf", "buffer": house}
    )
    assert page.locator("#documents .name").inner_text() == "house.pdf"
    dropped(page, "other.md", "nothing of that")
    asked(page, compare="no")
    answered(page)
    source = page.locator(".cited button")
    assert source.inner_text() == "house.pdf, page 2: “The lift is old”"
    source.click()
    assert page.locator("#viewer-title").inner_text() == "house.pdf"
    assert page.locator("#viewer-text mark").inner_text() == "the lift is old"


def test_markup_in_documents_and_names_is_only_text(server, open_page):
    page = open_page(server.url)
    name = "<img src=x onerror=document.title=1>.md"
    dropped(page, name, f"{name} the river and the inn")
    asked(page, compare="no", question=f"{name} the river")
    answered(page)
    assert page.locator("img").count() == 0
    assert page.locator("#viewer-title").inner_text() == name


def test_the_page_shows_the_servers_error_for_a_question_that_is_too_long(server, open_page):
    page = open_page(server.url)
    asked(page, question=DOCUMENT * 30)
    expect(page.locator("#trouble")).to_contain_text("tokens")


@pytest.mark.parametrize("in_prompt", [True, False])
def test_a_long_document_is_answered_from_its_passages_or_drafted_from(
    server, open_page, in_prompt
):
    page = open_page(server.url)
    dropped(page, "long.txt", DOCUMENT * 30)
    page.locator("#documents input[type=checkbox]").set_checked(in_prompt)
    asked(page)
    answered(page)


def test_the_key_is_requested_and_never_in_a_url(open_page):
    with serving(tiny_engine(), api_keys=("secret",)) as running:
        page = open_page(running.url)
        dialog = page.locator("#key-dialog")
        dialog.wait_for(state="visible")
        assert page.locator("#key-trouble").inner_text() == ""
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-trouble")).to_contain_text("wrong")
        dialog.wait_for(state="visible")
        page.locator("#key").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_contain_text("tiny")
        asked(page, compare="no")
        answered(page)
        assert "secret" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_there_are_no_serious_accessibility_violations(server, open_page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(server.url, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    dropped(page, "river.md", DOCUMENT)
    asked(page)
    answered(page)
    page.locator("#plot-section summary").click()
    token = copied_token(page)
    token.focus()
    found = axe.run(page).response["violations"]
    assert [
        (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in SERIOUS
    ] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_light_and_dark_follow_the_system_and_the_button(server, open_page):
    page = open_page(server.url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert light != dark
    expect(page.locator("#theme")).to_have_attribute("aria-pressed", "false")
    page.locator("#theme").click()
    assert page.evaluate(background) == dark
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"
    page.reload()
    assert page.evaluate(background) == dark
