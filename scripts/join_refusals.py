"""Cause each situation in which `outerloop join` must refuse, and return what the terminal shows.

A scene is a run on its own hosts, with one newcomer after the other. Each newcomer has an empty home folder.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_limit import INSIDE, memory_limit
from namespaces import Network
from open_run import HOST, NEWCOMER, WAIT_S, address_in, command, has, start, wait_for
from terminal import Shown, run_on_terminal
from wheel_environment import Edit

import outerloop
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures

RELAY = 2
HOSTS = 3
PORT, CLOSED_PORT = 4242, 4243
LIMIT_S = 180.0
"""A newcomer that has not ended after this time is killed."""
MEMORY_BYTES = 1 << 30
EXPIRES_S = 60
"""Shortest time for which `outerloop invite` issues a token."""
VERSION, OTHER_VERSION = outerloop.__version__, "99.0.0"
EDIT_VERSION = Edit("pyproject.toml", f'version = "{VERSION}"', f'version = "{OTHER_VERSION}"')
EDIT_SETTING = Edit("configs/feedback/ef.yaml", "\nbeta: 0.95 ", "\nbeta: 0.9 ")
"""Another default of the recipe with which the runs train."""
OWN = "own"
WHEELS: dict[str, Sequence[Edit]] = {
    OWN: (),
    "other version": (EDIT_VERSION, EDIT_SETTING),
    "other commit": (EDIT_SETTING,),
}
SMALL = ("recipe=sparseloco", "model=nano", "exchange.peers=1", "threads=1")
EXPECTED = {
    "other version": rf"the run has outerloop {VERSION} and this machine {OTHER_VERSION}: install outerloop {VERSION}",
    "other commit": rf"another commit of outerloop {VERSION}: ask the operator of the run for its commit",
    "too little memory": r"memory: .* free, but .* are needed: close other programs",
    "corpus.share": r"corpus\.share cannot be set with outerloop join: leave it out",
    "own data": r"train on the corpus that its peers share: leave data= out",
    "another corpus": r"train on the corpus that its peers share: leave data\.sha256= out",
    "corpus above max_gb": r"more than corpus\.max_gb=0[.]001: set corpus\.max_gb=1 to download it",
    "closed port": r"no program listens on port \d+ of [\d.]+ \(.*\): ask the operator",
    "filtered port": r"port \d+ of [\d.]+ does not answer \(.*\): check the address",
    "other key": r"is open, but the peer …\w+ does not answer there \(.*\): ask the operator",
    "ended run": r"no program listens on port \d+ of [\d.]+ \(the run has ended, .*\): ask the operator",
    "ended run, relay": r"finds no active peer of run short \(the run has ended .*\): ask the operator",
    "no invite": r"this run has an allow-list .*: ask one of its operators for an invite",
    "expired invite": r"the invite has expired: ask the operator who sent it for a new one",
    "incomplete invite": r"the invite is incomplete: copy the whole token",
}
"""Case -> pattern of the line that must be shown."""

Case = tuple[str, Shown]


@dataclass(frozen=True)
class Scene:
    """A new folder, the interpreters with the wheels, and the hosts. All commands of the first host share its home."""

    folder: Path
    pythons: dict[str, str]
    hosts: Network

    @property
    def home(self) -> Path:
        return self.folder / "host"

    @property
    def output(self) -> Path:
        """The output of the last command that `run` started."""
        return self.home / "output"

    def run(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        """Start a run on the first host. Return the process and its address, once it has printed the address."""
        process = start(self.hosts, HOST, self.home, self.pythons[OWN], *arguments)
        return process, wait_for(lambda: address_in(self.output), process, self.output)

    def join(self, case: str, address: str, *options: str, wheel: str = OWN, limit_bytes: int = 0) -> Case:
        """Run `outerloop join` as a newcomer with an empty home folder. `limit_bytes`: its memory limit; 0: none."""
        home = self.folder / case
        home.mkdir()
        inside = INSIDE if limit_bytes else ()
        joining = command(self.hosts, NEWCOMER, home, self.pythons[wheel], "join", address, *options, inside=inside)
        if not limit_bytes:
            return case, run_on_terminal(joining, home, limit_s=LIMIT_S)
        with memory_limit(limit_bytes) as enter:
            return case, run_on_terminal([*enter, *joining], home, limit_s=LIMIT_S)


def open_run(scene: Scene) -> Iterator[Case]:
    """Join an open run whose peers share their corpus."""
    host, address = scene.run(
        *("host", "--name", "open", "--host", scene.hosts.address(HOST), "--port", str(PORT)),
        *("corpus.share=books", *SMALL),
    )
    wait_for(lambda: has(scene.home / "runs/open", "round"), host, scene.output)
    yield scene.join("other version", address, wheel="other version")
    yield scene.join("other commit", address, wheel="other commit")
    yield scene.join("too little memory", address, limit_bytes=MEMORY_BYTES)
    yield scene.join("corpus.share", address, "corpus.share=mine")
    yield scene.join("own data", address, "data=stdlib")
    yield scene.join("another corpus", address, f"data.sha256={'ab' * 32}")
    yield scene.join("corpus above max_gb", address, "corpus.max_gb=0.001")
    yield scene.join("closed port", address.replace(f"/tcp/{PORT}/", f"/tcp/{CLOSED_PORT}/"))
    yield scene.join("other key", f"{address.rpartition('/')[0]}/{new_peer_id(scene.folder / 'other')}")
    scene.hosts.filter(HOST, PORT)
    yield scene.join("filtered port", address)


def ended_run(scene: Scene) -> Iterator[Case]:
    """Join a run after its last round, at the address of its only peer and at that of a relay."""
    host, address = scene.run(
        *("host", "--name", "short", "--host", scene.hosts.address(HOST), "--port", str(PORT)),
        *("rounds=100", "schedule.sync_every=5", *SMALL),
    )
    home, output = scene.folder / "relay", scene.folder / "relay/output"
    relay = start(scene.hosts, RELAY, home, scene.pythons[OWN], "relay", address, "--host", scene.hosts.address(RELAY))
    wait_for(lambda: "1 peer in run short" in output.read_text(), relay, output)
    if host.wait(timeout=WAIT_S) != 0:
        raise SystemExit(f"the host did not train to the end:\n{scene.output.read_text()[-3000:]}")
    wait_for(lambda: "0 peers in run short" in output.read_text(), relay, output)
    relayed = address_in(output)
    assert relayed is not None
    yield scene.join("ended run", address)
    yield scene.join("ended run, relay", relayed)


def listed_run(scene: Scene) -> Iterator[Case]:
    """Join a run with an allow-list: without an invite, and with invites that cannot be used."""
    run_dir = scene.home / "runs/listed"
    _, address = scene.run(
        *("train", "exchange=swarm_gather", "workers=1", "exchange.run=listed", f"run_dir={run_dir}"),
        *(f"exchange.host={scene.hosts.address(HOST)}", f"exchange.port={PORT}"),
        *(f"exchange.allow=[{new_peer_id(run_dir)}]", "exchange.invites=true", *SMALL),
    )
    inviting = command(scene.hosts, HOST, scene.home, scene.pythons[OWN], "invite", str(run_dir), "--expires", "1m")
    printed = subprocess.run(inviting, cwd=scene.home, check=True, capture_output=True, text=True).stdout
    issued_s = time.monotonic()
    token = re.search(r"oli1_\S+", printed)
    assert token is not None
    yield scene.join("no invite", address)
    yield scene.join("incomplete invite", address, "--invite", token[0][:-20])
    time.sleep(max(0.0, issued_s + EXPIRES_S + 1 - time.monotonic()))
    yield scene.join("expired invite", address, "--invite", token[0])


def new_peer_id(run_dir: Path) -> str:
    """Create the key of the first worker in a run directory, and return its peer id."""
    return Signatures.of(ensure_identity(identity_file(run_dir, 0))).peer_id


SCENES = (open_run, ended_run, listed_run)
