"""`outerloop inspect`, and the payloads that a run keeps for it."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop import wire
from outerloop.aggregate.exclusion_votes import ExclusionVotes
from outerloop.commands import main
from outerloop.inner.export import export_hf, exported_shapes
from outerloop.inner.models import llama
from outerloop.inner.worker_checkpoint import keep_payload
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.schedule.streaming import Streaming
from tests.support import forged_payloads, payload_checks, toy
from tests.support.inspect_command import inspect, payload
from tests.support.toy_workers import report, worker_of

LLAMA = {
    "vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "layers": 3, "heads": 2, "kv_heads": 1,
    "max_seq_len": 16, "rope_theta": 1e4, "norm_eps": 1e-5, "attention": "sdpa",
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """A plain module of a few layers, exported."""
    net = torch.nn.Sequential(*(torch.nn.Linear(7, 7) for _ in range(11)))
    export_hf(net, {}, None, tmp_path / "hf")
    return tmp_path / "hf", {name: p.shape for name, p in net.named_parameters()}


def test_header_parts_and_totals_without_a_model(tmp_path, monkeypatch, capsys):
    schema = {"a": torch.Size([5, 8]), "b": torch.Size([])}
    file = payload(tmp_path, schema)
    code, out, _ = inspect(monkeypatch, capsys, file)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and "round 4 (the first is 0)  fragment 0  samples 1,234" in out and "peer peer-π" in out
    assert f"schema {wire.schema_hash(schema):016x}  slow weights ffffffffffffffff" in out
    assert ["0", "code", "uint8", "20", "20"] in rows and ["scale", "bfloat16", "3", "x", "2", "12"] in rows
    assert ["1", "code", "uint8", "1", "1"] in rows
    frame = file.stat().st_size - 21 - 24
    assert ["header,", "table,", "checksum", str(frame), str(8 * frame)] in [row[:5] for row in rows]
    assert "bits per parameter" not in out and f"{file.stat().st_size:,} bytes, 2 tensors, checksum ok" in out


def test_the_list_of_accused_peers_is_no_tensor_of_the_model(model, tmp_path, monkeypatch, capsys):
    where, schema = model
    voted = schema | ExclusionVotes(on=True, agrees=True).schema()
    code, out, _ = inspect(monkeypatch, capsys, payload(tmp_path, voted), "--model", where)
    assert code == 0 and "accused peers" in out


@pytest.mark.parametrize("way", ["folder", "file"])
def test_a_model_names_the_tensors(way, model, tmp_path, monkeypatch, capsys):
    """Eleven layers: the file sorts 10 before 2, messages do not."""
    folder, schema = model
    where = folder if way == "folder" else folder / "model.safetensors"
    assert list(exported_shapes(where).items()) == list(schema.items())
    code, out, _ = inspect(monkeypatch, capsys, payload(tmp_path, schema), "--model", where)
    names = [line.split()[0] for line in out.splitlines() if "code" in line]
    assert code == 0 and names[: len(schema)] == list(schema)
    bits = 8 * (25 + 12) / 49
    assert re.search(rf"0\.weight +7 x 7 +code +uint8 +25 +25 +{bits:.3f}", out)
    assert out.splitlines()[-2].split()[-1] == f"{8 * (tmp_path / '00000004-0.outl').stat().st_size / (56 * 11):.3f}"


def test_a_hugging_face_folder_names_the_tensors_too(tmp_path):
    net = llama(**LLAMA, tie_embeddings=True)
    export_hf(net, {}, None, tmp_path / "hf")
    expected = [(name, p.shape) for name, p in net.named_parameters()]
    assert list(exported_shapes(tmp_path / "hf").items()) == expected
    assert list(exported_shapes(tmp_path / "hf/model.safetensors").items()) == expected


@pytest.mark.parametrize("fragment", range(3))
def test_a_fragment_is_recognized(fragment, model, tmp_path, monkeypatch, capsys):
    folder, schema = model
    names = Streaming(sync_every=9, fragments=3, delay=0).fragment(fragment, list(schema))
    file = payload(tmp_path, {name: schema[name] for name in names}, fragment=fragment)
    code, out, _ = inspect(monkeypatch, capsys, file, "--model", folder)
    assert code == 0 and [line.split()[0] for line in out.splitlines() if "code" in line][: len(names)] == names


def test_slow_and_fast_weights_in_one_tensor_are_recognized(model, tmp_path, monkeypatch, capsys):
    folder, schema = model
    file = payload(tmp_path, {name: torch.Size([2, *shape]) for name, shape in schema.items()})
    code, out, _ = inspect(monkeypatch, capsys, file, "--model", folder)
    assert code == 0 and re.search(r"10\.bias +2 x 7 +code", out)


def test_a_foreign_file_gives_its_own_order(tmp_path):
    from safetensors.torch import save_file

    save_file({"b": torch.zeros(2), "a": torch.zeros(3, 1)}, tmp_path / "x.safetensors")
    assert exported_shapes(tmp_path / "x.safetensors") == {"a": (3, 1), "b": (2,)}


def damaged(blob: bytes, how: str) -> bytes:
    """The same file, not whole."""
    return {
        "empty": b"",
        "cut": blob[:-3],
        "start": blob[:4],
        "flipped": blob[:50] + bytes([blob[50] ^ 1]) + blob[51:],
        "longer": blob + b"x",
        "text": b"no payload at all",
    }[how]


@pytest.mark.parametrize("how", ["empty", "cut", "start", "flipped", "longer", "text"])
def test_a_bad_file_is_one_line_and_exit_code_2(how, tmp_path, monkeypatch, capsys):
    file = payload(tmp_path, {"a": torch.Size([5, 8])})
    file.write_bytes(damaged(file.read_bytes(), how))
    code, out, err = inspect(monkeypatch, capsys, file)
    assert code == 2 and not out and err.count("\n") == 1 and "is not a complete payload" in err


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(draw=st.randoms(use_true_random=True), codec=st.sampled_from(payload_checks.CODECS))
def test_a_hostile_file_is_shown_or_refused(draw, codec):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        file = Path(folder) / "00000003-1.outl"
        file.write_bytes(forged_payloads.mutated(payload_checks.honest(codec), payload_checks.honest("int8"), draw))
        patch.setattr("sys.argv", ["outerloop", "inspect", str(file)])
        assert main.main() in (0, 2)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["{}/none"], "No such file or directory"),
        (["{}"], "Is a directory"),
        ([], "run outerloop inspect FILE"),
        (["{}/00000004-0.outl", "--model", "{}/none"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}/00000004-0.outl"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}/broken"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}/list"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}/unknown"], "pass --model RUN_DIR/hf"),
        (["{}/00000004-0.outl", "--model", "{}/hf"], "is not the payload's model"),
    ],
)
def test_mistakes_are_one_line_with_what_to_type(arguments, answer, model, tmp_path, monkeypatch, capsys):
    for name, text in {"broken": "{", "list": "[]", "unknown": '{"model_type": "none of ours"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    payload(tmp_path, {"a": torch.Size([5, 8])})
    code, _, err = inspect(monkeypatch, capsys, *(argument.format(tmp_path) for argument in arguments))
    assert code == 2 and answer in err and err.count("\n") == 1


def kept(folder):
    """File names, hidden ones included."""
    return sorted(path.name for path in folder.iterdir())


def test_the_last_rounds_are_kept(tmp_path):
    for number in range(4):
        keep_payload(tmp_path, report(number, "gone" if number == 2 else ""), rounds=2)
    assert kept(tmp_path) == ["00000002-0.outl", "00000003-0.outl"]


def test_a_worker_keeps_what_it_sent_if_asked_to(tmp_path):
    def work(exchange):
        worker = worker_of(exchange, [])
        changes = {"run_dir": tmp_path, "keep_payload_rounds": exchange.rank, "index": exchange.rank}
        worker.settings = WorkerSettings(**{**vars(worker.settings), **changes})
        net = worker.trainer.outer.model
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            toy.inner_step(net, optimizer, exchange.rank, step)
            for landed in worker.trainer.outer.after_inner_step(4):
                worker.after_round(landed)

    toy.run_workers(2, work)
    assert kept(tmp_path / "workers") == ["1"] and kept(tmp_path / "workers/1/payloads") == ["00000001-0.outl"]
    header, tensors = wire.read((tmp_path / "workers/1/payloads/00000001-0.outl").read_bytes())
    assert (header.round, header.samples, header.peer, len(tensors)) == (1, 12, "001", 6)
