"""Validate the files for Kubernetes, Docker and Ray by their own schemas and by our command line."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import kubernetes_validate
import pytest

from dpsr_apex.cli import parser
from dpsr_apex.config_files import load_config
from dpsr_apex.timeouts import WRITE_CHECKPOINT
from tests.documents import ROOT
from tests.launch_files import LAUNCH, Document, Pod, dockerfile, kubernetes, pods, ray_cluster, the_only

OLDEST = "1.33"  # the oldest version of Kubernetes that the file supports
JOBS = [document for document in kubernetes() if document["kind"] == "Job"]
FIRST_PODS = [pod for pod in pods() if pod.index == 0]

by_pod = pytest.mark.parametrize("pod", FIRST_PODS, ids=lambda pod: pod.name)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", kubernetes(), ids=lambda document: document["metadata"]["name"])
def test_every_document_is_valid_for_kubernetes(document: Document, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_kubernetes_file_names_the_required_version() -> None:
    assert f"Kubernetes ({OLDEST} or newer)" in (LAUNCH / "kubernetes.yaml").read_text()


def test_the_pods_have_all_roles_and_the_same_run_directory() -> None:
    parsed = [parser().parse_args(pod.arguments) for pod in pods()]
    roles = [pod.arguments[0] for pod in pods()]
    actors = roles.count("actor")
    assert sorted(roles) == ["actor"] * actors + ["evaluator", "learner", "replay"]
    folders = {str(one.run_dir if "run_dir" in one else one.find) for one in parsed}
    assert len(folders) == 1
    names = [one.name for one in parsed if "name" in one]
    assert len(set(names)) == len(names) == actors
    replay = parsed[roles.index("replay")]
    load_config(replay.config)
    assert replay.resume


@by_pod
def test_every_pod_mounts_the_run_directory(pod: Pod) -> None:
    claim = the_only("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (volume,) = pod.spec["volumes"]
    (mount,) = pod.container["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mount["name"] == volume["name"]
    assert Path(the_only("ConfigMap")["data"]["RUN_DIR"]).is_relative_to(mount["mountPath"])


@by_pod
def test_refused_pods_are_not_replaced_and_failed_pods_are(pod: Pod) -> None:
    job = pod.job["spec"]
    assert pod.spec["restartPolicy"] == "Never"  # required by podFailurePolicy
    first, second = job["podFailurePolicy"]["rules"]
    assert (first["action"], first["onExitCodes"]) == ("FailJob", {"operator": "In", "values": [2]})
    assert (second["action"], second["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    is_indexed = job.get("completionMode") == "Indexed"
    assert job["backoffLimitPerIndex" if is_indexed else "backoffLimit"] > 0


def test_the_actors_are_indexed_and_run_in_parallel() -> None:
    (job,) = (pod.job["spec"] for pod in FIRST_PODS if pod.arguments[0] == "actor")
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]


@by_pod
def test_pods_run_as_the_user_of_the_image_and_preserve_the_modes_of_key_files(pod: Pod) -> None:
    security = pod.spec["securityContext"]
    (user,) = (words for instruction, words in dockerfile() if instruction == "USER")
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsNonRoot"]
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod.container["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_replay_has_time_to_write_its_last_checkpoint() -> None:
    (replay,) = (pod for pod in FIRST_PODS if pod.arguments[0] == "replay")
    assert replay.spec["terminationGracePeriodSeconds"] >= WRITE_CHECKPOINT


def test_images_have_a_version() -> None:
    (base,) = (words for instruction, words in dockerfile() if instruction == "FROM")
    images = {base, *(pod.container["image"] for pod in FIRST_PODS)}
    assert len(images) == 2
    for image in images:
        assert re.fullmatch(r"[a-z-]+:\d[\w.-]*", image), image
    assert base.startswith("python:3.11")


def test_the_image_runs_dpsr_apex() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert dockerfile()[-1] == ("ENTRYPOINT", '["dpsr-apex"]')
    assert "dpsr-apex" in scripts


def copied() -> list[str]:
    """Return the files and folders that are copied into the image."""
    return [name for instruction, words in dockerfile() if instruction == "COPY" for name in words.split()[:-1]]


def test_dockerignore_includes_the_copied_files_and_excludes_runs() -> None:
    rules = [
        line for line in (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]

    def is_sent(name: str) -> bool:
        sent = True
        for rule in rules:
            if fnmatch(name, rule.removeprefix("!")):
                sent = rule.startswith("!")
        return sent

    assert all(map(is_sent, copied()))
    assert not any(map(is_sent, ("runs", ".git", ".venv", "tests")))


def test_the_copied_files_can_be_installed_with_their_configs(tmp_path: Path) -> None:
    for name in copied():
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "dist"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert {"dpsr_apex/configs/cartpole.toml", "dpsr_apex/cli/__main__.py"} <= set(files)


def test_the_image_has_the_locked_versions_and_the_cpu_build_of_torch(tmp_path: Path) -> None:
    (script,) = (words for instruction, words in dockerfile() if instruction == "RUN")
    pinning, install, _ = script.split(" && ")
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    (build,) = (words for instruction, words in dockerfile() if words.startswith("TORCH="))
    subprocess.run(["bash", "-c", pinning], cwd=tmp_path, env=dict([build.split("=")]), check=True)
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = (tmp_path / "constraints.txt").read_text().splitlines()
    (changed,) = ((one, other) for one, other in zip(locked, pinned, strict=True) if one != other)
    assert re.fullmatch(r"torch==[\d.]+", changed[0])
    assert changed[1] == f"{changed[0]}+cpu"
    words = shlex.split(install)
    assert words[words.index("--constraint") + 1] == "constraints.txt"
    assert words[-1] == ".[cluster]"


def test_the_cluster_file_is_valid_for_ray() -> None:
    autoscaler = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is an extra")
    autoscaler.validate_config(autoscaler.prepare_config(ray_cluster()))


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_is_started_with_the_token(commands: str) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts", reason="Ray is an extra")
    file = ray_cluster()
    stop, start = map(shlex.split, file[commands])
    assert stop == ["~/dpsr_apex/bin/ray", "stop"]
    program = start.index("~/dpsr_apex/bin/ray")
    assert "RAY_AUTH_MODE=token" in start[:program]
    assert start[program + 1] == "start"
    options = scripts.start.make_context("start", start[program + 2 :]).params
    assert options["head"] == (commands == "head_start_ray_commands")
    assert file["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}


@pytest.mark.parametrize("name", ["ray.md", "ray_cluster.yaml"])
def test_the_command_for_ray_exec_is_valid(name: str) -> None:
    (typed,) = re.findall(r"ray exec launch/ray_cluster.yaml '([^']+)'", (LAUNCH / name).read_text())
    mode, program, *words = shlex.split(re.sub(r"\\\n#?", "", typed))
    assert (mode, program) == ("RAY_AUTH_MODE=token", "~/dpsr_apex/bin/dpsr-apex")
    parsed = parser().parse_args(words)
    load_config(parsed.config)
    assert parsed.cluster == "auto"
