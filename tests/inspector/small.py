"""A small page of one picture and one question, served as `mgap inspect` serves its own: for visits.py."""

import json
import socket
import sys
import time

from mgap.inspector import guard, listeners, request_body
from mgap.inspector.server import bind, private_uploads, serve


def reach_out(*words):
    print(f"it wanted to reach {words}", file=sys.stderr, flush=True)  # Gradio would hide an error
    raise OSError


def build(*how):
    import gradio

    def answer(picture, question):
        if "busy" in how:  # until its client lets go
            sys.stdin.readline()
        while question == "What is endless?":
            yield "And "
            time.sleep(0.01)
        yield f"{question} about {picture}"

    with gradio.Blocks(title="small") as page:
        parts = [gradio.Image(type="filepath"), gradio.Textbox()]
        gradio.Button().click(answer, parts, parts[1], api_visibility="private", concurrency_limit=1)
    return page


def main(host: str, password: str, max_bytes: str, *how: str) -> None:
    if "unguarded" in how:  # to see what Gradio's own check does
        guard.check_json = lambda body, _: json.loads(body)
    if "hurried" in how:  # waits for nobody
        request_body.SILENT_SECONDS = listeners.LISTEN_SECONDS = 0.3
    with private_uploads() as folder, bind(host, 0) as door:
        socket.getaddrinfo = socket.socket.connect = reach_out
        page = build(*how)
        print(folder, flush=True)
        serve(
            page,
            door,
            host=host,
            password=password or None,
            max_bytes=int(max_bytes),
            open_browser=False,
            ready=lambda address: print(address, flush=True),
        )
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
