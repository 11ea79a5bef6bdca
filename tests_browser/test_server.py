"""The page opens, asks no other host for anything, asks for a password where one is set, and refuses what is too large."""

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import PIL.Image
import pytest
from conftest import DESK, PHONE
from playwright.sync_api import expect


@pytest.fixture
def large(tmp_path) -> Path:
    path = tmp_path / "large.png"
    path.write_bytes(b"\x89PNG" + bytes(2_100_000))
    return path


def test_the_page_opens_and_has_a_title(page):
    expect(page).to_have_title(re.compile("mgap", re.IGNORECASE))
    expect(page.locator("button:visible").first).to_be_visible()
    expect(page.get_by_role("button", name="Settings")).to_be_visible()
    assert page.get_by_text("Use via API").count() == page.get_by_text("Built with Gradio").count() == 0


def test_the_page_fits_a_phone(phone):
    expect(phone.locator("button:visible").first).to_be_visible()
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_nothing_is_asked_of_another_host(watched):
    """Until it is drawn, its fonts included; what a page asks for later, when it is used, every other test looks at."""
    expect(watched.page.locator("#answers .hint")).to_be_visible()
    watched.page.evaluate("document.fonts.ready.then(() => document.fonts.size)")
    assert watched.elsewhere == []
    refused = watched.page.evaluate("fetch('https://example.com/').then(() => 'fetched', () => 'refused')")
    assert refused == "refused"
    assert any("Content Security Policy" in text for text in watched.errors)
    watched.excused.append("Content Security Policy|Failed to load resource")


def test_a_path_that_was_not_uploaded_is_refused(server, tmp_path):
    (tmp_path / "secret.txt").write_text("only for me")
    for path in (tmp_path / "secret.txt", "/etc/hostname", server.path, Path.cwd() / "pyproject.toml", "https://example.com/"):
        answer = httpx.get(f"{server.address}/gradio_api/file={path}", trust_env=False)
        assert answer.status_code in (403, 404), path
        assert "only for me" not in answer.text


@pytest.fixture
def other() -> Iterator[str]:
    """The address of another site on this machine, which has an empty page."""
    with HTTPServer(("127.0.0.1", 0), EmptyPage) as site:
        thread = Thread(target=site.serve_forever)
        thread.start()
        yield f"http://localhost:{site.server_port}/"
        site.shutdown()
        thread.join()


class EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_of_another_site_can_upload_nothing(browser, server, other):
    page = browser.new_page()
    page.goto(other)
    send = "at => { const form = new FormData(); form.append('files', new Blob(['x']), 'x.png'); "
    send += "return fetch(at, {method: 'POST', mode: 'no-cors', body: form}).then(() => 'sent') }"
    with page.expect_response("**/upload") as told:
        assert page.evaluate(send, f"{server.address}/gradio_api/upload") == "sent"
    assert told.value.status == 403
    page.goto(server.address)  # as by a link
    expect(page.locator("#ask-button")).to_be_visible()
    page.close()


def test_a_server_with_a_password_asks_for_it_refuses_a_file_that_is_too_large_and_answers(another, opened, large, tmp_path):
    strict = another("--max-mb", "2", "--host", "0.0.0.0", MGAP_INSPECT_PASSWORD="open sesame")
    assert re.search(r"^mgap: warning: everyone on the networks of this machine .* unencrypted", strict.log, re.MULTILINE)
    assert "open sesame" not in strict.log
    watched = opened(strict, DESK)
    page = watched.page
    watched.excused.append(r"status of (400|401)")  # a wrong password is an error in the console, and so it should be
    expect(page.get_by_text("The password is the one that the inspector was started with")).to_be_visible()
    assert page.locator("#ask-button").count() == 0
    for password, is_right in (("open barley", False), ("open sesame", True)):
        page.get_by_label("username").fill("anyone")
        page.get_by_label("password").fill(password)
        page.get_by_role("button", name="Login").click()
        if not is_right:
            expect(page.get_by_text("Incorrect Credentials")).to_be_visible()
    page.get_by_role("tab", name="Drop a picture").click()
    expect(page.locator("#dropped input[type=file]")).to_be_attached()
    watched.excused.append("404|Response")  # Gradio asks how far an upload is that its own page has refused
    page.set_input_files("#dropped input[type=file]", large)
    expect(page.get_by_text(re.compile("exceed the maximum allowed size"))).to_be_visible()
    PIL.Image.new("RGB", (64, 64), "red").save(tmp_path / "small.png")
    page.set_input_files("#dropped input[type=file]", tmp_path / "small.png")
    expect(page.locator("#dropped img")).to_be_visible()
    page.locator("#ask-button").click()
    expect(page.locator('#answers .answer-column[data-state="done"]')).to_have_count(2, timeout=60_000)
