"""The deployment files of examples/serving say what this package and its supported vLLM take."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from mgap.serving.engine_settings import Serving
from tests import processes

HERE = Path(__file__).parents[2]
FILES = HERE / "examples" / "serving"


def compose():
    return yaml.safe_load((FILES / "compose.yaml").read_text())["services"]["vllm"]


def kubernetes():
    """The service, the deployment's pod, and its container."""
    service, deployment = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    return service, deployment, pod, pod["containers"][0]


def words():
    return {"compose": compose()["command"], "kubernetes": kubernetes()[3]["args"]}


@pytest.mark.parametrize("file", ["compose", "kubernetes"])
def test_what_the_engine_is_asked_for_is_what_mgap_takes(file):
    (given,) = (word.partition("=")[2] for word in words()[file] if word.startswith("--additional-config="))
    asked = json.loads(given)
    assert list(asked) == ["mgap"]
    serving = Serving.of(asked["mgap"])
    assert serving.settings == {"alpha": 0.75, "lam": 0.5}
    assert serving.log_every == 60


@pytest.mark.parametrize("file", ["compose", "kubernetes"])
def test_a_model_first_and_then_flags_with_their_values(file):
    model, *flags = words()[file]
    assert "/" in model
    assert all(re.fullmatch(r"--[a-z-]+=.+", flag) for flag in flags)


def test_the_prior_is_mounted_where_the_engine_looks_and_cannot_be_written():
    place = "/priors/model"
    assert f'"prior": "{place}"' in " ".join(words()["compose"])
    assert f'"prior": "{place}"' in " ".join(words()["kubernetes"])
    (bind,) = (volume for volume in compose()["volumes"] if place in volume)
    assert bind.endswith(f":{place}:ro")
    _, _, pod, container = kubernetes()
    (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == place)
    assert mount["readOnly"] is True
    assert mount["name"] in {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    "command",
    [("hadolint", "Dockerfile"), ("kubernetes-validate", "--strict", "kubernetes.yaml")],
    ids=lambda command: command[0],
)
def test_the_linters_of_their_makers_find_nothing(command):
    program, *words = command
    done = processes.run([Path(sys.executable).with_name(program), *words], cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_of_the_vllm_that_is_tested():
    tested = re.search(r"==([\d.]+)", (HERE / "tests_vllm" / "requirements.txt").read_text())[1]
    assert f"FROM vllm/vllm-openai:v{tested}\n" in (FILES / "Dockerfile").read_text()
    assert compose()["image"] == kubernetes()[3]["image"] == f"mgap-vllm:{tested}"


def test_what_the_image_copies_is_there():
    copied = re.findall(r"^COPY (.+) \S+$", (FILES / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert all((HERE / name).exists() for line in copied for name in line.split())
    build = compose()["build"]
    assert (FILES / build["context"] / build["dockerfile"]).samefile(FILES / "Dockerfile")


def test_nobody_is_root_and_nothing_is_secret():
    _, _, pod, container = kubernetes()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert compose()["user"] == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "environment" not in compose()
    assert "env" not in container


def test_health_is_asked_where_the_server_listens():
    service, deployment, _, container = kubernetes()
    port = container["ports"][0]["containerPort"]
    assert f"--port={port}" in words()["kubernetes"]
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert paths == ["/health", "/mgap/ready", "/health"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert f"--port={port}" in words()["compose"]
    assert f"127.0.0.1:{port}/mgap/ready" in compose()["healthcheck"]["test"][-1]
    assert compose()["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
