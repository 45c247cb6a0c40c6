"""Train two peers with Lightning's Trainer and one callback, which logs rounds and saves the outer loop's state.

Run: `python examples/lightning_trainer.py`. Then, in a second terminal, `python examples/lightning_trainer.py ADDRESS`
with the address printed by the first program. See: both progress bars start once the second program has joined. At the
end, both programs print the same hash of the agreed weights.
"""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import outerloop

ADDRESS = sys.argv[1:]  # empty: this is the first peer
SHARE = len(ADDRESS)


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = ((self.net(x) - y) ** 2).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.set_num_threads(1)  # two peers share the cores of this machine
torch.manual_seed(0)  # equal initial weights save a download; otherwise all peers load the first peer's weights
module, x = Regression(), torch.randn(4096, 8)
data = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=16, sampler=range(SHARE, 4096, 2))
callback = outerloop.LightningCallback(
    "diloco",
    "method.optimizer.momentum=0.6",  # the default, 0.9, is for rounds of 100 steps or more
    peers=2,
    sync_every=30,
    initial_peers=ADDRESS,
    run_dir=f"runs/lightning-{SHARE}/peer",
    samples=16,
)
trainer = lightning.Trainer(max_steps=90, callbacks=[callback], default_root_dir=f"runs/lightning-{SHARE}")
trainer.fit(module, data)  # with ckpt_path=..., the outer loop resumes as well
print(f"hash of the agreed weights {callback.outer.slow_hash:016x}")
