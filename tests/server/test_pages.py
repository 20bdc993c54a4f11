"""The playground's files and the names the server answers to; the page at work is tested in
`tests/browser`."""

import re
from html.parser import HTMLParser

import httpx
import pytest
from serving import serving
from tiny import tiny_engine

from graft.cli.show import SOURCE_COLORS
from graft.draft.copies.lookup import SOURCES
from graft.server.middleware import host_name
from graft.server.pages import FOLDER

FILES = sorted(path.name for path in FOLDER.iterdir())
VOID = {"meta", "link", "input", "br", "hr", "img"}
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def http():
    hosts = ("localhost", "127.0.0.1", "::1", "Graft.example")
    with (
        serving(tiny_engine(), api_keys=("secret",), hosts=hosts) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


class Page(HTMLParser):
    """What a page holds; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.inside_script = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"line {self.getpos()[0]} closes {tag}"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.inside_script += data.strip()


@pytest.mark.parametrize("path", ["/", *(f"/playground/{name}" for name in FILES)])
def test_the_page_and_its_files_need_no_key_and_have_security_headers(http, path):
    answer = http.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = answer.headers["content-type"]
    assert ("javascript" in kind) == path.endswith(".js")
    assert http.head(path).status_code == 200


def test_all_other_routes_need_the_key(http):
    assert http.get("/server_info").status_code == 401
    assert http.get("/v1/models").status_code == 401
    assert http.get("/playground/../server_info").status_code == 401
    for path in ("/playground/nothing.js", "/playground/%2e%2e/app.py", "/playground/..%2fapp.py"):
        assert http.get(path, headers=KEY).status_code == 404
    info = http.get("/server_info", headers=KEY).json()
    assert "auto" in info["methods"]
    assert info["max_document_characters"] == 1_000_000
    assert not [name for name in info["methods"] if set(name) & set("+:")]


def test_the_html_is_well_formed_and_labelled():
    page = Page((FOLDER / "index.html").read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert attributes.get(name, ids[0]) in ids, f"{tag} {attributes}"
        for name in ("src", "href"):
            file = attributes.get(name, "#")
            assert file.startswith("#") or file.removeprefix("/playground/") in FILES
    assert not page.inside_script


@pytest.mark.parametrize("name", FILES)
def test_scripts_load_nothing_from_other_hosts_and_write_no_html(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    known = "http://www.w3.org/"  # names of formats, never fetched
    assert [url for url in re.findall(r"https?://\S+", text) if not url.startswith(known)] == []
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "@import",
    ):
        assert word not in text
    for imported in re.findall(r'from "\./(\S+)"', text):
        assert imported in FILES


def test_every_element_the_scripts_use_exists():
    page = Page((FOLDER / "index.html").read_text(encoding="utf-8"))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    scripts = "".join((FOLDER / name).read_text() for name in FILES if name.endswith(".js"))
    assert set(re.findall(r'byId\("([^"]+)"\)', scripts)) <= ids


def test_the_page_describes_every_source_of_the_cli():
    text = (FOLDER / "sources.js").read_text()
    known = set(re.findall(r'^  "?([\w ]+?)"?: \[', text, re.MULTILINE))
    assert {*SOURCE_COLORS, *SOURCES} - {""} <= known


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "[::1]:8000", "graft.example:80"])
def test_allowed_hosts_are_accepted(http, host):
    assert http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]"])
def test_other_hosts_are_rejected_in_one_line(http, host):
    answer = http.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert "--allowed-host" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "unknown_host"


def test_other_origins_may_not_read_responses(http):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (http.options("/v1/chat/completions", headers=headers),
                   http.get("/health", headers=headers)):  # fmt: skip
        assert not [name for name in answer.headers if name.startswith("access-control")]
    simple = http.post("/v1/completions", content='{"prompt": "a"}',
                       headers={**KEY, "Content-Type": "text/plain"})  # fmt: skip
    assert simple.status_code == 400


@pytest.mark.parametrize(
    ("header", "name"),
    [("a.b:80", "a.b"), ("[::1]:9", "::1"), ("[::1]", "::1"), ("A.B.", "a.b"), ("", "")],
)
def test_host_names_of_headers(header, name):
    assert host_name(header) == name
