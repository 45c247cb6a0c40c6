"""Train two peers with Hugging Face's Trainer and one callback. Saving, logging and resuming work as usual.

Run: `python examples/hf_trainer.py`. Then, in a second terminal, `python examples/hf_trainer.py ADDRESS` with the
address printed by the first program. For several processes per peer: `torchrun --standalone --nproc-per-node 2 ...`.
See: values named `outer/...` in the log after every 20 steps. At the end, both programs print the same hash of the
agreed weights.
"""

import random
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import outerloop

ADDRESS = sys.argv[1:]  # empty: this is the first peer
SHARE = len(ADDRESS)  # 0 for the first peer, 1 for the second
PEER_DIR = f"runs/hf-trainer-{SHARE}/peer"  # folder with this peer's key

torch.set_num_threads(1)  # two peers share the cores of this machine
torch.manual_seed(0)  # equal initial weights save a download; otherwise all peers load the first peer's weights
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
    use_cpu=not torch.cuda.is_available(),  # without this option, a peer's CPU processes train independently
    ddp_find_unused_parameters=False,  # the Trainer's default, True, causes a torch warning under torchrun
    report_to=[],  # loggers such as "wandb" or "tensorboard" would also receive the values of every round
)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
callback = outerloop.HFCallback(
    "sparseloco", trainer=trainer, peers=2, sync_every=20, initial_peers=ADDRESS, run_dir=PEER_DIR
)
trainer.add_callback(callback)
trainer.train()  # with resume_from_checkpoint=True, the outer loop resumes as well
print(f"hash of the agreed weights {callback.outer.slow_hash:016x}")
