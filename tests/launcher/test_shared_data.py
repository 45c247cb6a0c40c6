"""A machine publishes its data, and others download it from real peers on loopback, with only an address."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from outerloop.config import load
from outerloop.config.instantiate import make as instantiate
from outerloop.config.manifest.allowed_options import checked_overrides
from outerloop.config.manifest.content import parse
from outerloop.config.manifest.describe_run import describe
from outerloop.config.run_directory import identity_file
from outerloop.config.shared_settings import fingerprint, shared_settings
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.inner.data.text import text
from outerloop.launcher.corpus_download import fetch_index
from outerloop.launcher.shared_data import prepare
from outerloop.launcher.torchrun import rank as torchrun_rank
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.types import UserError
from tests.support.swarm.daemons import make, started
from tests.support.swarm.loopback import Make, eventually, together

__all__ = ["make", "started"]
RUN = ["recipe=sparseloco", "model=nano", "workers=1", "exchange.peers=1", "exchange.run=r"]


def ignore(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def organizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DictConfig]:
    """The settings of a machine that has published a text file of 10 MB, which makes two shards."""
    folder = tmp_path_factory.mktemp("organizer")
    (folder / "book.txt").write_text("".join(f"<{i:08d}>" for i in range(1_000_000)))
    own = [f"data.files=[{folder}/book.txt]", "corpus.share=book", f"corpus.folder={folder}/corpus"]
    config = load.load([*RUN, "data=text", *own])
    prepare(config, ignore)
    yield config
    shutil.rmtree(folder)


def newcomer(config: DictConfig, folder: Path, *own: str) -> DictConfig:
    """The settings of a machine that joins with the manifest of the run."""
    manifest = parse(describe(config).encode())
    joined = load.load([*checked_overrides(manifest.options), "exchange.run=r", "workers=1", *own])
    joined.corpus.folder = str(folder)
    return joined


def test_the_corpus_is_part_of_the_manifest_and_of_the_fingerprint(organizer: DictConfig, tmp_path: Path) -> None:
    manifest = parse(describe(organizer).encode())
    assert manifest.reason == "" and manifest.needs == () and "/" not in str(manifest.options)
    assert manifest.options["data"] == "shared" and manifest.options["data.sha256"] == organizer.data.sha256
    assert fingerprint(newcomer(organizer, tmp_path)) == manifest.fingerprint
    other = organizer.copy()
    other.data.sha256 = "ab" * 32
    assert fingerprint(other) != manifest.fingerprint
    assert shared_settings(organizer)["data.sha256"] == organizer.data.sha256
    assert "data.sha256" not in shared_settings(load.load(RUN))


@pytest.mark.timeout(300)
def test_a_machine_downloads_the_corpus_from_two_peers_with_one_address(
    make: Make, organizer: DictConfig, tmp_path: Path
) -> None:
    published = Path(organizer.corpus.folder) / organizer.data.sha256
    folders = [published, shutil.copytree(published, tmp_path / "second" / published.name)]
    peers = [make(peers=2, corpus=str(folder)) for folder in folders]
    joining = newcomer(organizer, tmp_path / "third")
    joining.exchange.initial_peers = peers[0].address[:1]
    fetch_index(joining)
    folder = CorpusFolder.open(tmp_path / "third" / published.name)
    assert "book: 10.0 MB of tokens, of which 10.0 MB are to be downloaded" in instantiate(joining.data).what
    missing = CorpusFolder.open(published).file(folder.index.shards[0])
    missing.rename(tmp_path / "aside")  # now only the second peer, whose address was not typed, has it
    told: list[str] = []
    try:
        prepare(joining, told.append)
    finally:
        (tmp_path / "aside").rename(missing)
    assert not folder.missing() and told[-1] == "corpus book: 10.0 of 10.0 MB received"
    own = text(files=[str(published.parents[1] / "book.txt")], tokenizer=None)
    for corpus in (instantiate(joining.data), instantiate(organizer.data)):
        ours, theirs = (x.stream(rank=1, size=3, batch=8, seq_len=256, seed=5) for x in (corpus, own))
        assert all(torch.equal(ours.next(), theirs.next()) for _ in range(20))
    damaged = folder.file(folder.index.shards[0])
    damaged.write_bytes(bytes(damaged.stat().st_size))
    prepare(joining, told.append)
    assert f"{damaged} was damaged: removed" in told and not folder.damaged(folder.index.shards)
    peers[0].abort()
    peers[1].abort()
    prepare(joining, told.append)  # all is there: no peer is needed


@pytest.mark.timeout(300)
def test_a_listed_machine_downloads_from_peers_whose_addresses_it_does_not_know(
    make: Make, organizer: DictConfig, tmp_path: Path
) -> None:
    """The peer whose address was typed lacks a shard, which only the second peer has."""
    published = Path(organizer.corpus.folder) / organizer.data.sha256
    joining = newcomer(organizer, tmp_path / "third", f"run_dir={tmp_path}/run")
    keys = [tmp_path / "identity0", tmp_path / "identity1", identity_file(tmp_path / "run", 0)]
    allow = [Signatures.of(ensure_identity(key)).peer_id for key in keys]
    partial = shutil.copytree(published, tmp_path / "first" / published.name)
    (partial / CorpusFolder.open(published).index.shards[0].hex()).unlink()
    peers = [make(peers=2, allow=allow, corpus=str(folder)) for folder in (partial, published)]
    together(peers, SwarmGather.join)  # now the first peer knows the second one
    joining.exchange.allow, joining.exchange.initial_peers = allow, peers[0].address[:1]
    assert eventually(lambda: is_downloaded(joining), limit_s=60), (
        "the first peer must learn of the second before it can name it"
    )
    assert not CorpusFolder.open(tmp_path / "third" / published.name).missing()


def is_downloaded(joining: DictConfig) -> bool:
    try:
        prepare(joining, ignore)
    except UserError:
        return False
    return True


def test_a_large_corpus_is_refused_before_it_is_downloaded(organizer: DictConfig, tmp_path: Path) -> None:
    joining = newcomer(organizer, tmp_path, "corpus.max_gb=0.009")
    published = CorpusFolder.open(Path(organizer.corpus.folder) / organizer.data.sha256)
    CorpusFolder.create(tmp_path / organizer.data.sha256, published.index)
    for attempt in (fetch_index, lambda config: prepare(config, ignore)):
        with pytest.raises(UserError, match=r"more than corpus\.max_gb=0\.009: set corpus\.max_gb=1"):
            attempt(joining)
    assert instantiate(newcomer(organizer, Path(organizer.corpus.folder), "corpus.max_gb=0.009").data)


def test_without_peers_one_line_says_what_to_do(organizer: DictConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run outerloop join with the address of a peer"):
        prepare(newcomer(organizer, tmp_path), ignore)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["data=hf", "corpus.share=x"], "set data=text, data=tokens or data=stdlib"),
        (["data=shared", f"data.sha256={'ab' * 32}", "corpus.share=x"], "set data=text"),
        (["data=stdlib", "corpus.share=a/b"], "must be 1 to 64 letters"),
        (["data=shared", "data.sha256=../../home"], "is not a sha256"),
    ],
)
def test_what_cannot_be_shared_or_downloaded_is_one_line(
    options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load.load([*RUN, *options, f"corpus.folder={tmp_path}"])
    with pytest.raises(UserError, match=reason):
        prepare(config, ignore)


def test_the_processes_of_torchrun_share_nothing() -> None:
    with pytest.raises(UserError, match="does not apply to processes of torchrun"):
        torchrun_rank.load_settings(["exchange=distributed", "corpus.share=x"], processes=2)


def test_packages_of_workers_are_not_published(tmp_path: Path) -> None:
    own = ["data.non_iid=true", "corpus.share=code", f"corpus.folder={tmp_path}"]
    with pytest.raises(UserError, match=r"data.non_iid=true does not apply to a published corpus"):
        prepare(load.load([*RUN, "data=stdlib", *own]), ignore)
