"""CHANGELOG, CONTRIBUTING, SECURITY, CITATION and Dockerfile say what is so."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from outerloop import wire
from outerloop.swarm.access import invites, register_files, signatures
from outerloop.swarm.accountability import expulsion
from outerloop.swarm.consensus import commit, state
from outerloop.swarm.p2p import transport

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/own_method/README.md"]


def test_the_changelog_states_the_numbers_of_what_peers_exchange_and_keep():
    rows = re.findall(r"^\| (.+?) \| (\d) \| (.+?) \|", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    stated = {
        place: int(number) for _, number, places in rows for place in re.findall(r"`(outerloop/[\w/]+\.py)`", places)
    }
    constants = {
        wire: wire.VERSION,
        transport: int(transport.protocol_name("run", "ballot").split("/")[1]),
        signatures: int(signatures.DOMAIN.split(b"/")[1]),
        commit: int(commit.DOMAIN.split(b"/")[1]),
        invites: int(invites.PREFIX[3:-1]),
        register_files: register_files.VERSION,
        state: state.VERSION,
        expulsion: expulsion.VERSION,
    }
    in_code = {str(Path(module.__file__).relative_to(ROOT)): number for module, number in constants.items()}
    assert stated == in_code


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(document):
    text = (ROOT / document).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert links or document == "CHANGELOG.md"
    named = re.findall(r"`((?:outerloop|tests|scripts|configs|docs)/[\w/.]+\.\w+)`", text)
    known = [name for name in named if "mine" not in name]
    missing = [name for name in links if not ((ROOT / document).parent / name).exists()]
    assert missing + [name for name in known if not (ROOT / name).exists()] == []


def test_the_citation_names_the_version_and_license_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["authors"] == [{"name": "outerloop contributors"}]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["message"] and citation["title"]


def test_the_dockerfile_installs_what_there_is_and_starts_the_command():
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line]
    copied = [name for step, rest in steps if step == "COPY" for name in rest.split()[:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    [extras] = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert (
        {"hf", "sweep", "host", "watch", "tensorboard"}
        <= set(extras.split(","))
        <= PROJECT["optional-dependencies"].keys() | {"train"}
    )
    entry = dict(steps)["ENTRYPOINT"]
    assert ast.literal_eval(entry) == ["outerloop"] and "outerloop" in PROJECT["scripts"]
    [torch] = re.findall(r"^ARG TORCH=(.+)", text, flags=re.MULTILINE)
    [bound] = [one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "torch"]
    version = torch.removeprefix("torch==")
    assert bound.specifier.contains(version) and f"torch_version={version}" in (ROOT / "scripts/setup.sh").read_text()
