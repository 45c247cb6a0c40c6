"""Foreign bytes: whatever a peer sends is refused as a InvalidMessage or decodes to finite tensors of the right shapes.

Two and a half thousand payloads here; thirty-two thousand others with: pytest -m slow -n 0 tests/test_wire_fuzz.py
"""

import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Size

from outerloop import wire
from outerloop.aggregate.distance_screen import DistanceScreen
from outerloop.aggregate.weighted import Weighted
from outerloop.compress.energy_topk import EnergyTopK
from outerloop.compress.identity import Identity
from outerloop.compress.index.fixed import Fixed
from outerloop.compress.topk import TopK
from outerloop.core import replica_average
from outerloop.exchange.inprocess import InProcess
from outerloop.replica.island import run_inline
from outerloop.types import CodecContext, Contribution, Round
from tests.support import forged_payloads, payload_checks

SHORT = settings(max_examples=100, derandomize=True, database=None)
LONG = settings(max_examples=1300, database=None)
"""Payloads for each codec."""


def attack(codec, draw):
    """One payload, most of the time of this codec, changed with parts of another one."""
    start, other = (draw.choice([*25 * [codec], *payload_checks.CODECS]) for _ in range(2))
    payload_checks.check(
        codec, forged_payloads.mutated(payload_checks.honest(start), payload_checks.honest(other, seed=1), draw)
    )


def attacks(codec, how_many):
    """Many of them; a failure names the seed of its choices."""

    @settings(how_many, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=True))
    def run(draw):
        attack(codec, draw)

    run()


@pytest.mark.parametrize("codec", payload_checks.CODECS)
def test_honest_payloads_decode_and_survive_being_taken_apart(codec):
    blob = payload_checks.honest(codec)
    assert payload_checks.check(codec, blob) == "decoded"
    assert forged_payloads.repaired(blob) == forged_payloads.apart(blob).assembled() == blob


@pytest.mark.parametrize("codec", payload_checks.CODECS)
def test_hostile_payloads_are_refused_or_harmless(codec):
    attacks(codec, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("codec", payload_checks.CODECS)
def test_many_hostile_payloads_are_refused_or_harmless(codec):
    attacks(codec, LONG)


def with_big(codec, change):
    """An honest payload whose largest tensor's parts were changed in place."""
    draft = forged_payloads.apart(payload_checks.honest(codec))
    change(draft, draft.tensors[0])
    return draft.assembled()


@pytest.mark.parametrize("dims", [[0, *([4000] * 7)], [*([4000] * 7), 0]], ids=str)
def test_empty_parts_whose_other_dimensions_overflow_are_refused(dims):
    """torch multiplies the lengths that are not zero, too, and raises RuntimeError beyond 63 bits."""

    def empty(draft, tensor):
        tensor[0].dims, tensor[0].data = dims, b""

    with pytest.raises(wire.InvalidMessage, match="a part of shape"):
        payload_checks.decoded("identity", with_big("identity", empty))


@pytest.mark.parametrize("names", [1, wire.MAX_PARTS + 1])
def test_more_parts_than_the_limit_are_refused_before_a_tensor_is_built(names, monkeypatch):
    """Empty parts need no bytes in the sections, so a small message could describe 255 of them for each tensor."""

    def many(draft, tensor):
        draft.names = [b"x%d" % number for number in range(names)]
        tensor[:] = [replace(tensor[0], name=min(n, names - 1), dims=[0], data=b"") for n in range(wire.MAX_PARTS + 1)]

    message = with_big("identity", many)
    monkeypatch.delattr(wire.Reader, "read_tensor")
    with pytest.raises(wire.InvalidMessage, match="17 parts or part names, more than the limit of 16"):
        payload_checks.decoded("identity", message)


def test_codecs_cannot_send_more_part_names_than_the_limit():
    parts = {f"x{number}": torch.zeros(1) for number in range(wire.MAX_PARTS + 1)}
    with pytest.raises(ValueError, match="the codecs send 17 different parts, more than the limit of 16"):
        wire.pack(wire.Header(0, 0, 1, 0, 0, "a"), {"w": parts})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_values_in_another_precision_than_the_peers_own_are_refused(dtype):
    """The mean of all peers would be in a precision that one of them chose."""
    value = torch.ones(payload_checks.SCHEMA["big"].numel(), dtype=dtype)

    def other_precision(draft, tensor):
        tensor[0].dtype, tensor[0].data = wire.DTYPES.index(dtype), bytes(wire.bytes_view(value))

    with pytest.raises(wire.InvalidMessage, match="tensor big: decodes to"):
        payload_checks.decoded("identity", with_big("identity", other_precision))


def test_kept_values_beyond_float32_are_refused():
    """1e300 is finite, but not once it meets float32 weights."""
    codec, now = TopK(chunk=8, k=2, values=Identity(), index=Fixed()), CodecContext(0, 0)
    parts = codec.encode(torch.randn(8), now)
    parts["values.value"] = parts["values.value"].double() + 1e300
    with pytest.raises(ValueError, match="not finite"):
        codec.decode(parts, Size([8]), now)


def test_a_step_of_many_bytes_is_not_spelled_out():
    codec = EnergyTopK(chunk=8, k_min=1, k_max=2, target=0.5, values=Identity(), index=Fixed())
    with pytest.raises(ValueError, match="step") as refused:
        codec.decode({"step": torch.zeros(10**6, dtype=torch.uint8)}, Size([8]), CodecContext(0, 0))
    assert len(str(refused.value)) < 100


def test_a_reason_is_short_whatever_the_parts_are_called():
    def many_names(draft, tensor):
        draft.names = [b"%03d" % i + b"x" * 250 for i in range(wire.MAX_PARTS)]
        tensor += [forged_payloads.Section(i, 0, [0], b"") for i in range(1, wire.MAX_PARTS)]

    with pytest.raises(wire.InvalidMessage, match="tensor big") as refused:
        payload_checks.decoded("identity", with_big("identity", many_names))
    assert len(str(refused.value)) <= payload_checks.LONGEST_REASON


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202e", "\x01" * 255], ids=["clear", "line", "turned", "long"])
def test_names_that_a_terminal_would_obey_are_refused(name):
    draft = forged_payloads.apart(payload_checks.honest("identity"))
    draft.peer = name.encode()
    with pytest.raises(wire.InvalidMessage, match="is not printable") as refused:
        wire.read(draft.assembled())
    assert len(str(refused.value)) < 200


def test_memory_stays_within_a_few_times_the_message():
    """As many parts as the table can hold, all of them empty: what Python makes of them, and no tensor at all."""
    draft = forged_payloads.apart(payload_checks.honest("identity"))
    empty = [forged_payloads.Section(number, 0, [0], b"") for number in range(wire.MAX_PARTS)]
    draft.names, draft.tensors = [b"%d" % section.name for section in empty], [empty for _ in draft.tensors]
    blob = draft.assembled()
    tracemalloc.start()
    wire.unpack(blob, payload_checks.SCHEMA)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(blob)


def test_samples_of_64_bits_are_a_weight_like_any_other():
    most = 2**64 - 1
    assert Weighted()([torch.full((2,), 2e38), torch.full((2,), -2e38)], [most, most], []).tolist() == [0.0, 0.0]
    assert Weighted()([torch.ones(2), torch.zeros(2)], [most, 0], []).tolist() == [1.0, 1.0]


class Meeting:
    """As much of an outer loop as a meeting of replicas needs; the other peer is not honest."""

    island = SimpleNamespace(compute=run_inline)

    def __init__(self, parts):
        self.slow, self.inner_step, self.slow_hash = {"w": torch.ones(3)}, 5, 0
        self.exchange, self.screen = self, DistanceScreen(on=False)
        self.peer, self.parts, self.info = "a", parts, replace(InProcess.info, waits_for_all=False)

    def all_gather(self, blob):
        header = wire.Header(5, 0, 0, wire.schema_hash({"w": Size([3])}), 0, "b")
        return [Contribution("a", Round(1), blob), Contribution("b", Round(1), wire.pack(header, {"w": self.parts}))]


@pytest.mark.parametrize(
    "parts",
    [{}, {"value": torch.ones(2)}, {"value": torch.tensor([0.0, torch.nan, 1.0])}, {"value": torch.ones(3).half()}],
    ids=["none", "short", "nan", "half"],
)
def test_weights_that_do_not_fit_are_left_out(parts):
    found = replica_average.average(Meeting(parts))
    assert found.refused["b"].startswith("b: its weights do not fit: payload of b, tensor w")
    assert found.mean["w"].tolist() == [1.0] * 3 and found.peers == ("a",) and found.spread == 0.0
    found = replica_average.average(Meeting({"value": torch.full((3,), 3.0)}))
    assert found.mean["w"].tolist() == [2.0] * 3 and found.spread == 1.0 and not found.refused
