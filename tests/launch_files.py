"""The files of `launch/` that tools of clusters read, as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

LAUNCH = Path(__file__).parents[1] / "launch"

Document = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """One pod of `launch/kubernetes.yaml`, when its job is started."""

    job: Document
    index: int  # among those of its job
    arguments: list[str]  # of its container, with all variables filled in

    @property
    def spec(self) -> Document:
        spec: Document = self.job["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Document:
        (container,) = self.spec["containers"]
        found: Document = container
        return found

    @property
    def name(self) -> str:
        return f"{self.job['metadata']['name']}-{self.index}"


def kubernetes() -> list[Document]:
    """Return all documents of `launch/kubernetes.yaml`."""
    return deepcopy(_kubernetes())


@cache
def _kubernetes() -> list[Document]:
    return list(yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text()))


def the_only(kind: str) -> Document:
    """The document of this kind."""
    (found,) = (document for document in kubernetes() if document["kind"] == kind)
    return found


def pods(**instead: str) -> Iterator[Pod]:
    """Those of all jobs, with these values in place of what the file's own ConfigMap says."""
    values = the_only("ConfigMap")["data"] | instead
    for job in kubernetes():
        if job["kind"] == "Job":
            for index in range(job["spec"].get("completions", 1)):
                yield _pod(job, index, values)


def _pod(job: Document, index: int, values: Mapping[str, str]) -> Pod:
    pod = Pod(job, index, [])
    source = {"configMapRef": {"name": the_only("ConfigMap")["metadata"]["name"]}}
    known = dict(values) if source in pod.container["envFrom"] else {}
    if job["spec"].get("completionMode") == "Indexed":
        known["JOB_COMPLETION_INDEX"] = str(index)
    return replace(pod, arguments=[_filled_in(word, known) for word in pod.container["args"]])


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    """As Kubernetes does it; KeyError for a variable that nobody sets."""
    return re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], text)


def ray_cluster() -> Document:
    """`launch/ray_cluster.yaml`."""
    found: Document = yaml.safe_load((LAUNCH / "ray_cluster.yaml").read_text())
    return found


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of `launch/Dockerfile`: what, and with what."""
    text = re.sub(r"^#.*\n", "", (LAUNCH / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]
