"""Simulate eight workers on one device, with any model, data and loss. Here they train a CNN on generated images.

Run: `python examples/cnn_simulation.py` (half a minute on two cores), then `outerloop report runs/cnn` for a page with
curves. See: for each of three recipes, the validation loss and accuracy after the same number of steps, and the bytes
sent per worker. diloco has outer momentum 0.6: with its default of 0.9, which is for rounds of 100 inner steps or more,
its loss rises again in these runs, and a note states that this momentum is high.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import outerloop

WORKERS, STEPS, SYNC_EVERY = 8, 150, 15
FOLDER = Path("runs/cnn")
Batch = tuple[torch.Tensor, torch.Tensor]
shapes = nn.functional.interpolate(torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(0)), size=(12, 12))


def make_model() -> nn.Module:
    """Return a CNN with 20,000 parameters. Called once per worker, with the same seed each time."""
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 9, 48), nn.ReLU(), nn.Linear(48, 10))


def draw(seed: int, count: int) -> list[Batch]:
    """Return batches of 32 noisy 12 x 12 images of ten shapes, shifted by up to 2 pixels, with their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator).tolist()
    images = torch.stack([shapes[label].roll(shift, (1, 2)) for label, shift in zip(labels, shifts, strict=True)])
    images += 1.5 * torch.randn(images.shape, generator=generator)
    return list(zip(images.split(32), labels.split(32), strict=True))


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


validation = draw(seed=1000, count=1024)
for recipe in ("ddp", "diloco", "sparseloco"):
    results = outerloop.simulate(
        make_model,
        lambda worker: draw(seed=worker, count=1024),  # the data of each worker
        loss,
        recipe=recipe,
        workers=WORKERS,
        steps=STEPS,  # inner steps per worker, equal for all recipes
        sync_every=1 if recipe == "ddp" else SYNC_EVERY,
        options={"method.optimizer.momentum": 0.6} if recipe == "diloco" else None,  # 0.9 is for H of 100 or more
        validation=validation,
        run_dir=FOLDER / recipe,
    )
    hits = sum((results.model(images).argmax(1) == labels).float().mean().item() for images, labels in validation)
    accuracy, sent = hits / len(validation), results.bytes_sent[-1] / 1e6
    print(f"{recipe:<11} loss {results.val_loss:.3f}, accuracy {accuracy:.1%}, sent {sent:.1f} MB")
