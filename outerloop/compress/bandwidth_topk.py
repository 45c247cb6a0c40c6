"""Top-k that adapts k to the network: the largest k that reaches a target utilization.

    b = max(0, T (1 − u) / u − c) + h      time budget: seconds per round in which payloads may be in transit
    m(k') = s k',   s ← (s + m / k) / 2    predicted transit time with k', from the time m measured with k
    k decreases if m(k) > b: to the highest k' with m(k') <= b;      k increases to 2 k if m(2 k) <= 0.8 b

u is the target utilization, compute / (compute + exposed communication). In seconds per round, T is the time of the
inner steps, c the time of launching and landing, m the time in which payloads were in transit, and h the time of the
inner steps between launch and landing, which hides part of m. Waiting for other peers is not counted. The values of k
form a ladder from k_min to k_max, each twice the one before (multi_k.py). The bytes of small tensors and of the
message's table of contents, and the round trip, do not grow with k, so m(2 k) is an overestimate. GraVAC (arXiv
2305.12201) also adapts one compression factor for the whole model, but based on throughput and the kept share of the
squared norm.

Each peer uses its own measurements. Peers may use different values of k, because each payload states its k. If payloads
spend no time in transit, as between workers in one process, k increases to k_max. Needs error feedback.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.compress.by_size import BySize
from outerloop.compress.multi_k import MultiKTopK
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, RoundCost, UserError

MARGIN = 0.8
"""k increases only if the predicted transit time is at most this fraction of the budget.

This keeps 20 % measurement noise from making k oscillate.
"""


class AdjustableTopK(MultiKTopK):
    """Top-k with an adjustable k: the rung at index `rung` of the ladder of values of k, initially the lowest rung.

    Takes the arguments of `MultiKTopK`.
    """

    rung = 0

    @property
    def k(self) -> int:
        """Return the number of values currently kept per chunk."""
        return self.ladder[self.rung].k

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape) with the current k. The parts are those of `MultiKTopK`."""
        return self.encode_at(self.rung, x, context)

    def highest(self, seconds_per_k: float, limit_s: float) -> int:
        """Return the highest rung whose predicted transit time is within `limit_s`, or the lowest rung if none fits."""
        fits = [rung for rung, topk in enumerate(self.ladder) if seconds_per_k * topk.k <= limit_s]
        return max(fits, default=0)


class BandwidthTopK(BySize):
    """Compressor that sends small tensors through `small` and adapts the k of all others to the network.

    Args:
        utilization: u, the target share of time to spend in inner steps, above 0 and below 1.
        below: a tensor with fewer values than this is small.
        small: compressor of small tensors.
        large: compressor of all other tensors.

    Raises:
        UserError: if `utilization` is out of range.
    """

    def __init__(self, *, utilization: float, below: int, small: Compressor, large: AdjustableTopK) -> None:
        if not 0 < utilization < 1:
            raise UserError(
                f"auto utilization={utilization} must be above 0 and below 1: set compress.utilization=0.95"
            )
        super().__init__(below=below, small=small, large=large)
        self.utilization, self.topk = utilization, large
        self.seconds_per_k: float | None = None

    def observe(self, cost: RoundCost) -> str:
        """Adapt k to the cost of a round. Return a log line that explains the change, or "" if k is unchanged."""
        now = cost.transfer_s / self.topk.k
        self.seconds_per_k = now if self.seconds_per_k is None else (self.seconds_per_k + now) / 2
        before, limit_s = self.topk.k, self.limit_s(cost)
        self.topk.rung = self.next_rung(limit_s)
        return "" if self.topk.k == before else self.why(before, cost, limit_s)

    def limit_s(self, cost: RoundCost) -> float:
        """Return the seconds per round for which payloads may be in transit at the target utilization."""
        exposed_s = cost.compute_s * (1 - self.utilization) / self.utilization
        return max(0.0, exposed_s - cost.codec_s) + cost.hidden_s

    def next_rung(self, limit_s: float) -> int:
        """Return the next rung: as many rungs lower as needed to stay within `limit_s`, or at most one rung higher."""
        assert self.seconds_per_k is not None
        fits = self.topk.highest(self.seconds_per_k, limit_s)
        if fits < self.topk.rung:
            return fits
        return min(self.topk.rung + 1, max(self.topk.rung, self.topk.highest(self.seconds_per_k, MARGIN * limit_s)))

    def why(self, before: int, cost: RoundCost, limit_s: float) -> str:
        """Return the log line that explains a change of k."""
        mbit = f" ({8e-6 * cost.bytes_sent / cost.transfer_s:.3g} Mbit/s)" if cost.transfer_s else ""
        return (
            f"compress: k {before} -> {self.topk.k} per chunk: sending {cost.bytes_sent / 1e6:.3g} MB took"
            f" {cost.transfer_s:.3g} s{mbit}; with {cost.compute_s:.3g} s of inner steps, the limit at utilization"
            f" {self.utilization:g} is {limit_s:.3g} s"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the index of the current rung, and s, the measured transit time per unit of k, in seconds."""
        return {"step": self.topk.rung, "seconds_per_k": self.seconds_per_k}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`, or an empty one, which leaves the setting as it is."""
        if state:
            self.topk.rung, self.seconds_per_k = state["step"], state["seconds_per_k"]
