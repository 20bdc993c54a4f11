"""A real Chromium, driven by Playwright; the tests are skipped where either is missing."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it")
    found = os.environ.get("GRAFT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium; install it (apt install chromium) or set GRAFT_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a page of its own, `open_page(url, **context options)`; at the end nothing it did may
    have been refused by the page's policy or have failed in a script."""
    contexts, wrong = [], []

    def opened(url, **options):
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Policy" in line.text else None)
        page.on("request", lambda asked: asked.url.startswith(url) or wrong.append(asked.url))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
