"""Windows that are assigned by round: the definition, the stream, and what every exchange makes of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outerloop.config import build, instantiate, load, part_checks
from outerloop.inner.data.assigned_stream import AssignedStream
from outerloop.inner.data.assignment import (
    BEFORE_FIRST,
    assigned_windows,
    hash_without_chain,
    late_joiner_seed,
    window_starts,
)
from outerloop.types import Round, UserError
from tests.support import toy
from tests.support.small_trainer import README, SMALL

COMMIT, PEER = bytes(range(32)), "12D3KooWalice"
TEXT = np.arange(1005)
STEPS = ["assignment=by_round", "schedule.sync_every=4", "inner.batch=2", "inner.accumulate=2"]


def test_the_derivation_is_two_hashes_and_a_remainder() -> None:
    """The same with sha256sum: printf 'outerloop/1/windows\\n', the 32 bytes, then the peer; S and 8 bytes; bc."""
    seed = hashlib.sha256(b"outerloop/1/windows\n" + COMMIT + PEER.encode())
    assert seed.hexdigest() == "654c0da892ffa853bea999013f850e461adce0f7ad8962d985f6d432db7fecab"
    first = hashlib.sha256(seed.digest() + bytes(8)).digest()
    assert sum(byte * 256 ** (31 - place) for place, byte in enumerate(first)) % 1000 == 214
    assert window_starts(COMMIT, PEER, range(4), positions=1000) == [214, 38, 283, 195]
    assert window_starts(COMMIT, PEER, [3, 1], positions=1000) == [195, 38], "any window without those before it"


def test_a_window_is_the_tokens_from_its_start_on() -> None:
    windows = assigned_windows(TEXT, commit=COMMIT, peer=PEER, numbers=range(4), seq_len=5)
    assert windows.tolist() == [list(range(start, start + 6)) for start in (214, 38, 283, 195)]
    assert windows.dtype == torch.int64
    every = assigned_windows(np.arange(7), commit=COMMIT, peer=PEER, numbers=range(99), seq_len=5)
    assert set(every[:, 0].tolist()) == {0, 1}, "the last window ends with the last token"


def test_without_a_chain_the_run_and_the_round_take_the_place_of_the_commit() -> None:
    before = hash_without_chain(7, BEFORE_FIRST)
    assert before.hex() == "db7ecf3026f47a772176a7073295db0cc424f08bcf9274e081848261ddb42d82"
    assert before == hashlib.sha256(b"outerloop/1/round without a commit\n7 -1 0").digest()
    assert hash_without_chain(7, Round(3, 2)) == hashlib.sha256(b"outerloop/1/round without a commit\n7 3 2").digest()


def test_a_late_joiner_has_an_order_of_its_own() -> None:
    digest = hashlib.sha256(b"outerloop/1/order of a late joiner\n003-a").hexdigest()
    assert late_joiner_seed("003-a") == int(digest[:14], 16) == 0xAB30ED021CA3C8
    config = load.load([*SMALL, "seed=5"])
    corpus = instantiate.make(config.data)

    def windows(**peer: object) -> list[list[int]]:
        alone = toy.Around(toy.alone())
        alone.__dict__ |= {"info": SimpleNamespace(**vars(alone.info) | {"replicated": True}), "size": 2} | peer
        trainer = build.make_trainer(config, corpus, alone, 0)
        return trainer.stream.next().tolist()

    member = windows(peer="000-m", late_joiner=False, shares_rank=False)
    assert member == corpus.stream(rank=0, size=2, batch=8, seq_len=16, seed=5).next().tolist()
    assert member == windows(peer="000-m", late_joiner=True, shares_rank=False), "a member that returns continues"
    late = [windows(peer=f"00{i}-x", late_joiner=True, shares_rank=True) for i in (1, 2)]
    assert member != late[0] != late[1] != member, "the same part of the text in three orders"


def stream_of(landed: list[bytes], first: bytes = b"genesis") -> AssignedStream:
    return AssignedStream(TEXT, batch=2, seq_len=5, peer=PEER, landed=lambda: landed[-1], first=lambda: first)


def due(commit: bytes, *numbers: int) -> list[list[int]]:
    return assigned_windows(TEXT, commit=commit, peer=PEER, numbers=numbers, seq_len=5).tolist()


def test_a_landing_starts_the_windows_of_its_commit_and_until_then_they_continue() -> None:
    landed = [b""]
    stream = stream_of(landed)
    assert [stream.next().tolist() for _ in range(2)] == [due(b"genesis", 0, 1), due(b"genesis", 2, 3)]
    landed.append(COMMIT)
    assert [stream.next().tolist() for _ in range(2)] == [due(COMMIT, 0, 1), due(COMMIT, 2, 3)]


def test_a_resumed_stream_continues_within_its_round_whatever_the_new_session_begins_with() -> None:
    landed = [COMMIT]
    stream = stream_of(landed)
    stream.next()
    saved = json.loads(json.dumps(stream.state_dict()))
    after = [b""]
    resumed = stream_of(after, first=b"genesis of the new session")
    resumed.load_state_dict(saved)
    assert resumed.next().tolist() == stream.next().tolist() == due(COMMIT, 2, 3)
    after.append(b"next")
    assert resumed.next().tolist() == due(b"next", 0, 1)


def test_an_exchange_that_names_no_commit_is_refused() -> None:
    with pytest.raises(UserError, match="but this exchange has none: set assignment=by_worker"):
        stream_of([b""], first=b"").next()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data.non_iid=true"], "set data.non_iid=false or assignment=by_worker"),
        (["data=text", f"data.files=[{README}]", "inner.seq_len=100000"], "training text: .* but a sequence needs"),
        (["assignment=by_peer"], "assignment=by_peer must be 'by_worker' or 'by_round': set assignment=by_worker"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_starts(options: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        part_checks.check_parts(load.load(["exchange=inprocess", "assignment=by_round", *options]))


def test_a_streamed_dataset_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "some.txt").write_text("some text")
    hub = [*SMALL[:3], "data=hf", "data.path=text", f"data.data_files=[{tmp_path}/some.txt]", "assignment=by_round"]
    with pytest.raises(UserError, match="read from its beginning to its end: set data=tokens or data=text, or"):
        part_checks.check_parts(load.load(hub))


def drawn_by(trainer, steps: int) -> list[list[list[int]]]:
    """The windows of each of the next inner steps."""
    drawn, draw = [], trainer.stream.next

    def record() -> torch.Tensor:
        drawn.append(draw())
        return drawn[-1]

    trainer.stream.next = record
    for _ in range(steps):
        trainer.step()
    return [torch.cat(drawn[i : i + 2]).tolist() for i in range(0, len(drawn), 2)]


def due_in(config, commits: list[bytes], peer: str) -> list[list[list[int]]]:
    """The windows of each inner step, 4 a step, if the step belongs to the given commit."""
    tokens, steps = instantiate.make(config.data).training_text(), []
    for place, commit in enumerate(commits):
        since = 4 * (place - commits.index(commit))
        windows = assigned_windows(tokens, commit=commit, peer=peer, numbers=range(since, since + 4), seq_len=16)
        steps.append(windows.tolist())
    return steps


@pytest.mark.parametrize(("delay", "last"), [(0, [-1] * 4 + [0] * 4 + [1] * 2), (2, [-1] * 6 + [0] * 4)])
def test_workers_of_one_process_train_on_the_windows_of_the_last_landed_round(delay: int, last: list[int]) -> None:
    """With overlap, round r lands `delay` steps after its launch."""
    config = load.load([*SMALL, *STEPS, "recipe=diloco", "workers=2", "seed=7", f"schedule.delay={delay}"])

    def work(exchange):
        return drawn_by(build.make_trainer(config, instantiate.make(config.data), exchange, exchange.rank), 10)

    commits = [hash_without_chain(7, Round(number)) for number in last]
    drawn = toy.run_workers(2, work)
    assert drawn == [due_in(config, commits, "0"), due_in(config, commits, "1")]


@pytest.mark.parametrize("saved_after", [6, 8])
def test_a_resumed_trainer_draws_what_the_first_one_would_have_drawn(saved_after: int) -> None:
    """Saved in the middle of a round, and just after a landing, before a window of its commit is drawn."""
    config = load.load([*SMALL, *STEPS, "recipe=diloco"])

    def trainer():
        return build.make_trainer(config, instantiate.make(config.data), toy.alone(), 0)

    first, second = trainer(), trainer()
    for _ in range(saved_after):
        first.step()
    second.load_state_dict(first.state_dict())
    assert drawn_by(second, 6) == drawn_by(first, 6)
