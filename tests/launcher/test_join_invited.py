"""A machine joins a listed run with `outerloop join --invite`, takes part, and is expelled; nobody else gets in, not
with a withdrawn token either.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from tests.support.swarm.loopback import eventually
from tests.support.train_processes import invitation, outerloop, rounds_with_two, start

RUN = ["recipe=sparseloco", "workers=1", "exchange.peers=1", "exchange.run=summer", "rounds=100000", "eval.every=0"]
RUN += ["schedule.sync_every=30"]  # rounds long enough for a newcomer on a busy machine to catch up
RUN += [
    "data=text",
    f"data.files=[{Path(__file__).parents[2] / 'LICENSE'}]",
    "inner.seq_len=16",
    "corpus.share=licence",
]


def said(*arguments: object) -> tuple[int, str]:
    process = outerloop(*arguments)
    text = process.communicate(timeout=120)[0]
    return process.returncode, text


def joining(line: list[str], run_dir: Path) -> list[object]:
    own = [f"run_dir={run_dir}", f"corpus.folder={run_dir}-corpus", "eval.sequences=16", "eval.every=0", "threads=1"]
    return [*line, "--yes", "--host", "127.0.0.1", *own]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_joins_by_invite_and_is_expelled(tmp_path: Path) -> None:
    own = Signatures.of(ensure_identity(identity_file(tmp_path / "a", 0))).peer_id
    processes = [
        start(
            tmp_path / "a",
            *RUN,
            "threads=1",
            f"exchange.allow=[{own}]",
            "exchange.invites=true",
            f"corpus.folder={tmp_path}",
        )
    ]
    try:
        address = invitation(processes[0]).partition("[")[2].rstrip("]")
        code, text = said("join", address, "--yes")
        assert code == 2 and "ask one of its operators for an invite" in text, text
        code, text = said("invite", tmp_path / "a", "--name", "lab")
        assert code == 0, text
        line = text.splitlines()[-1].split()[1:]
        assert line[:5] == ["join", address, "--host", "127.0.0.1", "--invite"]
        code, text = said("invite", tmp_path / "a", "--name", "wrong")
        assert code == 0, text
        wrong = text.splitlines()[-1].split()[1:]
        code, text = said("invite", tmp_path / "a", "--withdraw", "wrong")
        assert code == 0 and " wrong is withdrawn on all machines" in text, text
        processes.append(outerloop(*joining(line, tmp_path / "b")))
        assert eventually(
            lambda: processes[1].poll() is not None or len(rounds_with_two(tmp_path / "b")) > 1, limit_s=200
        )
        assert processes[1].poll() is None, processes[1].communicate()[0]
        code, text = said(*joining(line, tmp_path / "c"))
        assert code == 2 and "was already used by another machine" in text, text
        code, text = said(*joining(wrong, tmp_path / "c"))
        assert code == 2 and "the invite was withdrawn" in text and text.count("\n") == 1, text
        code, text = said("invite", tmp_path / "a", "--withdraw", "lab")
        assert code == 2 and "was used already" in text, text
        assert said("expel", tmp_path / "a", "lab")[0] == 0
        text = processes[1].communicate(timeout=120)[0]
        assert processes[1].returncode == 2 and "was removed from the run with outerloop expel" in text, text
        code, text = said("expelled", tmp_path / "a")
        assert code == 0 and "removed by" in text
    finally:
        for process in processes:
            process.kill()
            process.communicate()
