"""Trainers of several processes: torchrun starts two for each of two peers, and all four hold one model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run_output import address_in

ROOT = Path(__file__).parents[2]
HF = """\
import sys
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
import outerloop

torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes))
tokens = torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(int(sys.argv[1])))
args = TrainingArguments(
    "out", per_device_train_batch_size=2, use_cpu=True, ddp_backend="gloo", report_to=[], max_steps=4, save_steps=3
)
callback = outerloop.HFCallback("sparseloco", *sys.argv[2:], peers=2, sync_every=2)
trainer = Trainer(model, args, train_dataset=[{"input_ids": t, "labels": t} for t in tokens], callbacks=[callback])
trainer.train()
assert any("outer/delta_norm" in row for row in trainer.state.log_history)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
print("ended", callback.outer.slow_hash, callback.outer.samples, callback.outer.exchange.bytes_sent > 0, flush=True)
assert torch.equal(weights, torch.cat([x.flatten() for x in callback.outer.slow.values()]))
"""
LIGHTNING = """\
import sys
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
import outerloop

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

torch.manual_seed(int(sys.argv[1]))
x = torch.randn(64, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
callback = outerloop.LightningCallback("sparseloco", *sys.argv[2:], peers=2, sync_every=2, samples=8)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=4, callbacks=[callback], **quiet
)
trainer.fit(Line(), data)
print("ended", callback.outer.slow_hash, callback.outer.samples, callback.outer.exchange.bytes_sent > 0, flush=True)
"""


def start(folder, program, *arguments):
    """One peer of two processes, in its own folder."""
    folder.mkdir()
    (folder / "program.py").write_text(program)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "program.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*launcher, *arguments], cwd=folder, env=environment, **pipes)


@pytest.mark.slow  # four processes that import a Trainer; in the default suite: `replicas=` in test_option_mapping.py
@pytest.mark.parametrize("program", [HF, LIGHTNING], ids=["transformers", "lightning"])
def test_the_processes_of_a_trainer_are_one_peer(program, tmp_path):
    first = start(tmp_path / "a", program, "0")
    try:
        address = next(filter(None, map(address_in, first.stderr)), "")
        second = start(tmp_path / "b", program, "1", address)
        outputs = [process.communicate() for process in (first, second)]
    finally:
        first.kill()
    assert [first.returncode, second.returncode] == [0, 0], outputs
    ended = [line.split()[1:] for out, _ in outputs for line in out.splitlines() if line.startswith("ended")]
    assert len(ended) == 4 and len({slow for slow, _, _ in ended}) == 1, outputs
    assert sorted(sends for *_, sends in ended) == ["False", "False", "True", "True"], "the first process of each sends"
    if program == HF:
        assert (tmp_path / "a/out/checkpoint-3/outerloop.pt").exists()
