"""Define the lies that members of a run tell in their payloads, for scripts/bench_attacks.py.

A liar knows the payloads of all peers of this and earlier rounds, decoded to vectors of N values. It chooses a vector
and encodes it with the run's own compressor. x is its own honest payload, x_p those of the honest peers, μ and σ their
mean and standard deviation for each coordinate, and r the median of their norms.

    flip1, flip10, flip1000    −λ r x / ‖x‖: its payload with flipped sign, λ times as long as an honest one
    times10                    10 r x / ‖x‖
    largest                    x, scaled so that its largest value is 1e30
    noise                      Gaussian noise of norm r, new for each liar and round
    constant                   one random direction for all liars and rounds, of norm r
    delayed                    its own honest payload from 5 rounds ago
    alie                       μ − 1.5 σ: inside the spread of the others (arXiv 1902.06156)
    ipm                        −0.5 μ: the inner product with the mean is negative (arXiv 1903.03936)
    minmax                     μ − γ σ with the largest γ for which no honest payload is farther away than two honest
                               ones are from each other (Shejwalkar and Houmansadr, NDSS 2021)
    support                    −x at the positions that no honest peer sends, 0 elsewhere, scaled to norm r; only for
                               compressors with which peers select different positions
    disguised                  t μ / ‖μ‖ + √(1 − t²) u, scaled to norm r: u is the unit vector of −x without its part
                               along μ, and t (0 ≤ t ≤ 1) is such that the median cosine with an honest payload is
                               that of two honest ones; against rules that compare directions
    evasive                    the same with t = 0.65 of the cosine of x and μ; against scores: to first order, such a
                               payload lowers the loss by 0.65 of what an honest one does, and scores accuse a peer
                               whose payloads lower it by less than about 0.3 of that
    copycat                    −x_p of the first honest peer
    free_rider                 x_p of the first honest peer, one round old; its own training has no effect
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outerloop import wire
from outerloop.core.codec import UpdateCodec
from outerloop.exchange.inprocess import name_of
from outerloop.types import Contribution, Round, Tensors

DELAY = 5
ALIE, IPM = 1.5, 0.5
"""Factors of ALIE and IPM. ALIE's is fixed, because for 2 liars of 8 the formula of its paper gives 0."""
LARGEST = 1e30
EVASIVE = 0.65
STEPS = 40
"""Number of bisections with which min-max finds γ."""


class Payloads:
    """The messages of one round by rank, decoded on request.

    like: the tensors of the fragment by name; only their shapes and devices matter.
    base: None if payloads are pseudo-gradients. If they are weights, the slow weights of a liar, which are subtracted
        from every payload.
    """

    def __init__(
        self, codec: UpdateCodec, like: Tensors, round: Round, blobs: dict[int, bytes], *, base: Tensors | None = None
    ) -> None:
        self.codec, self.like, self.number = codec, like, round.number
        self.base: Tensor | float = 0.0 if base is None else self.flat(base.values()).clone()
        self.messages = {
            rank: codec.unpack(Contribution(name_of(rank), round, blob), like) for rank, blob in blobs.items()
        }

    def values(self, rank: int) -> Tensor:
        """Return the decoded payload of a worker as a vector, (N,)."""
        return self.flat(self.codec.decode(self.messages[rank], name, x) for name, x in self.like.items()) - self.base

    def coefficients(self, rank: int) -> Tensor:
        """Return the payload of a worker before the compressor's inverse transform, (N,); 0 where it sent nothing."""
        return self.flat(self.codec.coefficients(self.messages[rank], name, x) for name, x in self.like.items())

    def of_coefficients(self, coefficients_N: Tensor) -> Tensor:
        """Apply the compressor's inverse transform to a vector of coefficients, (N,)."""
        return self.flat(self.codec.values(self.number, name, x) for name, x in self.named(coefficients_N).items())

    def flat(self, tensors: Iterable[Tensor]) -> Tensor:
        """Join the tensors into one vector, (N,)."""
        return torch.cat([x.reshape(-1) for x in tensors])

    def named(self, values_N: Tensor) -> Tensors:
        """Divide a vector into the tensors of the fragment."""
        parts = values_N.split([x.numel() for x in self.like.values()])
        return {name: part.view(x.shape) for (name, x), part in zip(self.like.items(), parts, strict=True)}

    def packed(self, rank: int, values_N: Tensor, *, samples: int | None = None) -> bytes:
        """Return a message of worker `rank` with these values. `samples`: number that it claims; None: its own."""
        message = self.messages[rank]
        header = message.header if samples is None else replace(message.header, samples=samples)
        named = self.named(values_N + self.base)
        parts = {n: self.codec.encode(self.number, n, x, leads=False) for n, x in named.items()}
        return wire.pack(header, message.parts | parts)


@dataclass(frozen=True)
class Scene:
    """The information that a liar has when it chooses its payload.

    liar: rank of the liar.
    honest: ranks of the honest workers.
    rounds: the payloads of the last rounds, before any were replaced; the current round is the last entry.
    seed: seed of the run.
    """

    liar: int
    honest: Sequence[int]
    rounds: Sequence[Payloads]
    seed: int

    @property
    def own(self) -> Tensor:
        """Return this liar's honest payload, (N,)."""
        return self.rounds[-1].values(self.liar)

    @property
    def others(self) -> Tensor:
        """Return the payloads of the P honest workers, (P, N)."""
        return torch.stack([self.rounds[-1].values(rank) for rank in self.honest])

    def ago(self, rank: int, rounds: int) -> Tensor:
        """Return the payload that a worker sent `rounds` rounds ago, or the oldest known one if that is newer, (N,)."""
        return self.rounds[max(0, len(self.rounds) - 1 - rounds)].values(rank)

    def drawn(self, *numbers: int) -> Tensor:
        """Return Gaussian noise with as many values as a payload, drawn from the run's seed and these numbers."""
        draw = torch.Generator().manual_seed(wire.name_hash(f"{self.seed} {numbers}"))
        return torch.randn(sum(x.numel() for x in self.rounds[-1].like.values()), generator=draw)

    def at_honest_norm(self, x: Tensor) -> Tensor:
        """Return x, scaled to the median norm of the honest payloads; 0 stays 0."""
        norm = float(x.norm())
        return x * (float(self.others.norm(dim=1).median()) / norm) if norm else x


def scaled_own(factor: float) -> Callable[[Scene], Tensor]:
    """Return the attack that sends the liar's own payload, scaled to `factor` times the median norm of honest ones."""
    return lambda scene: factor * scene.at_honest_norm(scene.own)


def spread(scene: Scene) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the honest payloads, (N,) each."""
    others = scene.others
    return others.mean(0), others.std(0, correction=0)


def alie(scene: Scene) -> Tensor:
    """Return μ − 1.5 σ."""
    mean, deviation = spread(scene)
    return mean - ALIE * deviation


def minmax(scene: Scene) -> Tensor:
    """Return μ − γ σ, as far from the farthest honest payload as the two most distant ones are from each other."""
    (mean, deviation), others = spread(scene), scene.others
    limit, low, high = float(torch.cdist(others, others).max()), 0.0, 100.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        far = float((mean - middle * deviation - others).norm(dim=1).max())
        low, high = (middle, high) if far <= limit else (low, middle)
    return mean - low * deviation


def support(scene: Scene) -> Tensor:
    """Return the liar's own payload with flipped sign, but only at the positions that no honest peer sends."""
    now = scene.rounds[-1]
    sent = torch.stack([now.coefficients(rank) != 0 for rank in scene.honest]).any(0)
    return now.of_coefficients(scene.at_honest_norm(-now.coefficients(scene.liar) * ~sent))


def disguised(scene: Scene) -> Tensor:
    """Return t μ / ‖μ‖ + √(1 − t²) u, scaled to the median norm of honest payloads (see the docstring of this file)."""
    honest = torch.nn.functional.normalize(scene.others, dim=1)
    mean = torch.nn.functional.normalize(scene.others.mean(0), dim=0)
    among = (honest @ honest.T).triu(1)[torch.ones(len(honest), len(honest)).triu(1) > 0]
    share = float((among.median() / (honest @ mean).median()).clamp(0, 1)) if len(honest) > 1 else 1.0
    return turned_away(scene, mean, share)


def evasive(scene: Scene) -> Tensor:
    """Return a payload whose part along μ is EVASIVE times that of an honest one (see the docstring of this file)."""
    mean = torch.nn.functional.normalize(scene.others.mean(0), dim=0)
    share = EVASIVE * float(torch.nn.functional.cosine_similarity(scene.own, mean, dim=0).clamp(0, 1))
    return turned_away(scene, mean, share)


def turned_away(scene: Scene, mean: Tensor, share: float) -> Tensor:
    """Return t μ / ‖μ‖ + √(1 − t²) u, scaled to the median norm of honest payloads.

    `mean`: μ / ‖μ‖, (N,). `share`: t, 0 to 1. u is the unit vector of −x without its part along μ.
    """
    opposite = torch.nn.functional.normalize((scene.own @ mean) * mean - scene.own, dim=0)
    return scene.at_honest_norm(share * mean + (1 - share**2) ** 0.5 * opposite)


ATTACKS: dict[str, Callable[[Scene], Tensor]] = {
    "flip1": scaled_own(-1.0),
    "flip10": scaled_own(-10.0),
    "flip1000": scaled_own(-1000.0),
    "times10": scaled_own(10.0),
    "largest": lambda scene: scene.own / scene.own.abs().max() * LARGEST,
    "noise": lambda scene: scene.at_honest_norm(scene.drawn(scene.liar, scene.rounds[-1].number)),
    "constant": lambda scene: scene.at_honest_norm(scene.drawn()),
    "delayed": lambda scene: scene.ago(scene.liar, DELAY),
    "alie": alie,
    "ipm": lambda scene: -IPM * spread(scene)[0],
    "minmax": minmax,
    "support": support,
    "disguised": disguised,
    "evasive": evasive,
    "copycat": lambda scene: -scene.ago(scene.honest[0], 0),
    "free_rider": lambda scene: scene.ago(scene.honest[0], 1),
}
