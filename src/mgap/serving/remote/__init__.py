"""Runs against servers that are already up: `mgap run --engine server --url http://HOST:8000/v1`.

remote_options.py  where the servers are, and how many requests each gets at once
remote_server.py   one server: what it tells of itself, and one request
chat_bodies.py     what a request says
fleet.py           spreads requests over servers, and tries again where one fails
remote_worker.py   answers the samples of a run
remote_run.py      checks and starts such a run
"""
