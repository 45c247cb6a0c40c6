"""Train with two peers and one callback in Hugging Face's Trainer, which still saves, logs and resumes as usual.

Run: `python examples/hf_trainer.py`. Then, in a second terminal, `python examples/hf_trainer.py ADDRESS` with the
address that the first program prints. For several processes per peer: `torchrun --standalone --nproc-per-node 2 ...`.
See: values named `outer/...` in the log after every 20 steps.
"""

import random
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import outerloop

ADDRESS = sys.argv[1:]  # empty: this is the first peer
SHARE = len(ADDRESS)
PEER_DIR = f"runs/hf-trainer-{SHARE}/peer"  # folder for this peer's key

torch.set_num_threads(1)  # two peers share the cores of this machine
torch.manual_seed(0)  # equal initial weights save a download; if they differ, all peers start from the first peer's
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes))
text = torch.tensor(list(Path(random.__file__).read_bytes()))  # bytes of the source code of Python's `random`
rows = text[: len(text) // 64 * 64].view(-1, 64)[SHARE::2]  # each peer trains on one half
arguments = TrainingArguments(
    output_dir=f"runs/hf-trainer-{SHARE}",
    max_steps=60,
    learning_rate=3e-3,
    logging_steps=10,
    save_steps=30,
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),  # without this option, the CPU processes of a peer ignore each other
    ddp_find_unused_parameters=False,  # under torchrun, torch warns about the Trainer's default, True
    report_to=[],  # "wandb", "tensorboard", ... would also receive the values of every round
)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.add_callback(
    outerloop.HFCallback("sparseloco", trainer=trainer, peers=2, sync_every=20, initial_peers=ADDRESS, run_dir=PEER_DIR)
)
trainer.train()  # with resume_from_checkpoint=True, the outer loop resumes as well
