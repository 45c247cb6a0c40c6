"""Top-k whose k goes by the network: the most that it carries while a chosen utilization is held.

    b = max(0, T (1 − u) / u − c) + h      seconds that payloads of a round may be on their way
    m(k') = s k',   s ← (s + m / k) / 2    seconds that they would be with k', by those that they were with k
    down   when m(k) > b, to the highest k' with m(k') <= b;      up   one step, when m(2 k) <= 0.8 b

u is the utilization compute / (compute + exposed communication), T a round's seconds of inner steps, c those of
launching and landing, m those in which payloads were on their way, h what a delay hides of them. Waiting for others is
none of it. Small tensors, the table and the round trip do not grow with k, so m(2 k) is rather over-estimated. GraVAC
(arXiv 2305.12201) moves one factor for the whole model as well, by its gain and throughput.

Each peer goes by its own measurement; a payload tells its k. A round in which nothing was on its way (workers in one
process) asks for no thrift, and k goes up to k_max. Needs error feedback.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.compress.by_size import BySize
from outerloop.compress.multi_k import Ladder
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, RoundCost, UserError

MARGIN = 0.8
"""Of b, which the next higher k has to stay below: measurements that waver by a fifth do not move k to and fro."""


class Chosen(Ladder):
    """The step that it is told to take, the least one at first. Arguments as for Ladder."""

    step = 0

    @property
    def k(self) -> int:
        """Kept of each chunk at present."""
        return self.ladder[self.step].k

    def encode(self, x: Tensor, moment: CodecContext) -> Parts:
        """(N values, any shape) -> the parts of Ladder."""
        return self.encode_at(self.step, x, moment)

    def highest(self, seconds_per_k: float, limit_s: float) -> int:
        """The highest step whose payload is on its way for no longer than this, or the least."""
        fits = [step for step, topk in enumerate(self.ladder) if seconds_per_k * topk.k <= limit_s]
        return max(fits, default=0)


class Auto(BySize):
    """Small tensors through `small`, all others with the k that the network carries.

    Args:
        utilization: u, the share of the time that inner steps shall have, above 0 and below 1.
        below: tensors of fewer values than this are small.
        small: compressor of the small ones.
        large: of the others.

    Raises:
        UserError: if `utilization` is out of range.
    """

    def __init__(self, *, utilization: float, below: int, small: Compressor, large: Chosen) -> None:
        if not 0 < utilization < 1:
            raise UserError(
                f"auto utilization={utilization} must be above 0 and below 1: type compress.utilization=0.95"
            )
        super().__init__(below=below, small=small, large=large)
        self.utilization, self.chosen = utilization, large
        self.seconds_per_k: float | None = None

    def learn(self, cost: RoundCost) -> str:
        """See the equation above."""
        now = cost.moved_s / self.chosen.k
        self.seconds_per_k = now if self.seconds_per_k is None else (self.seconds_per_k + now) / 2
        before, limit_s = self.chosen.k, self.limit_s(cost)
        self.chosen.step = self.next_step(limit_s)
        return "" if self.chosen.k == before else self.why(before, cost, limit_s)

    def limit_s(self, cost: RoundCost) -> float:
        """b, seconds."""
        exposed_s = cost.compute_s * (1 - self.utilization) / self.utilization
        return max(0.0, exposed_s - cost.codec_s) + cost.hidden_s

    def next_step(self, limit_s: float) -> int:
        """Down as far as need be, up by one."""
        assert self.seconds_per_k is not None
        fits = self.chosen.highest(self.seconds_per_k, limit_s)
        if fits < self.chosen.step:
            return fits
        return min(
            self.chosen.step + 1, max(self.chosen.step, self.chosen.highest(self.seconds_per_k, MARGIN * limit_s))
        )

    def why(self, before: int, cost: RoundCost, limit_s: float) -> str:
        """One line for who watches the run."""
        mbit = f" ({8e-6 * cost.bytes_sent / cost.moved_s:.3g} Mbit/s)" if cost.moved_s else ""
        return (
            f"compress: k {before} -> {self.chosen.k} of a chunk: {cost.bytes_sent / 1e6:.3g} MB out took"
            f" {cost.moved_s:.3g} s{mbit}, and beside {cost.compute_s:.3g} s of inner steps {limit_s:.3g} s may pass"
            f" at utilization {self.utilization:g}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The step and s."""
        return {"step": self.chosen.step, "seconds_per_k": self.seconds_per_k}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.chosen.step, self.seconds_per_k = state["step"], state["seconds_per_k"]
