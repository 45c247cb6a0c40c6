"""LoCo as a hook of DDP and FSDP2: three processes with gloo, gradients that are given."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import outerloop
from tests.support import process_group, tiny_gpt

EXACT = {"beta": 0.0, "error_bits": 32}
SIZES = (700, 301, 300)
"""Values of three parameters; neither they nor their sum fit pieces or groups."""


class Given(nn.Module):
    """Parameters whose gradient is what the module is called with."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(size) for size in SIZES)

    def forward(self, gradients):
        return sum((weight * gradient).sum() for weight, gradient in zip(self.weights, gradients, strict=True))


def reached(model, gradients):
    """The gradients after one backward pass with `gradients` of this rank."""
    model.zero_grad()
    model(gradients).backward()
    grads = [weight.grad for weight in model.parameters()]
    return [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in grads]


def random_gradients(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


def hooked(state):
    """DDP over given gradients; buckets of about a parameter each."""
    ddp = DistributedDataParallel(Given(), bucket_cap_mb=0.001)
    ddp.register_comm_hook(state, outerloop.loco.ddp_hook)
    return ddp


def sharded(state):
    """FSDP2 over given gradients."""
    outerloop.loco.fsdp_hook(state, model := fully_shard(Given()))
    return model


def three_ranks(rank):
    return {
        "levels": [on_levels(rank, hooked), on_levels(rank, sharded)],
        "nothing lost": [nothing_lost(rank, hooked), nothing_lost(rank, sharded)],
        "resumed": [resumed(rank, hooked), resumed(rank, sharded)],
        "bytes": [counted(ddp_of_one_layer), counted(fsdp_of_one_layer)],
        "nan": with_nan(rank),
        "apart": layers_apart(),
        "losses": [trained(rank, None), trained(rank, outerloop.loco.State())],
    }


def on_levels(rank, make):
    """Rank r offers c + d_r, the d_r add up to 0, and everything is a multiple of a seventh of the largest."""
    place = torch.arange(max(SIZES))
    common, apart = (place % 5 - 2).float(), (place % 3 - 1) * (1, -2, 1)[rank]
    common[::7], apart[::7] = 7.0, 0.0
    model = make(outerloop.loco.State())
    expected = [common[:size] for size in SIZES]
    return [[reached(model, [(common + apart)[:size] for size in SIZES]), expected] for _ in range(3)]


def nothing_lost(rank, make):
    """β = 0, the second pass on: what was offered, what was got and what is held, added up; and the last gradients."""
    model = make(state := outerloop.loco.State(**EXACT))
    reached(model, random_gradients(0, rank))
    before, offered, got = held(state), 0.0, 0.0
    for step in range(1, 5):
        offered = offered + torch.cat(random_gradients(step, rank)).double().sum() / 3
        last = torch.cat(reached(model, random_gradients(step, rank)))
        got = got + last.double().sum()
    return {"offered": offered, "got": got, "held": held(state) - before, "last": last}


def held(state):
    """This rank's share of the errors: a third of its own gradients', and all of the mean's."""
    errors = {name: state.feedback.error.get(name) for name in state.shapes}
    return sum((e.double().sum() / (1 if "mean" in name else 3) for name, e in errors.items()), torch.zeros(()))


def resumed(rank, make):
    """The fourth gradients of a run, and of a model that takes its state over after the third."""
    model = make(state := outerloop.loco.State())
    for step in range(3):
        reached(model, random_gradients(step, rank))
    kept, straight = state.state_dict(), reached(model, random_gradients(3, rank))
    other = make(again := outerloop.loco.State())
    if make is hooked:
        reached(other, random_gradients(0, rank))  # the pass that regroups the buckets
    again.load_state_dict(kept)
    return [reached(other, random_gradients(3, rank)), straight]


def ddp_of_one_layer(state, count):
    ddp = DistributedDataParallel(nn.Linear(count, 1, bias=False))
    ddp.register_comm_hook(state, outerloop.loco.ddp_hook)
    return ddp


def fsdp_of_one_layer(state, count):
    outerloop.loco.fsdp_hook(state, model := fully_shard(nn.Linear(1, count, bias=False)))
    return model


def counted(make):
    """Bytes of one pass, and of float32."""
    model = make(state := outerloop.loco.State(), 300_000)
    model(torch.randn(1, 300_000 if make is ddp_of_one_layer else 1)).sum().backward()
    return [state.bytes_sent, state.bytes_float32]


def with_nan(rank):
    """One rank's gradient is not finite; then the next pass."""
    ddp, gradients = hooked(outerloop.loco.State()), random_gradients(0, rank)
    reached(ddp, gradients)
    if rank == 1:
        gradients[0][5] = torch.inf
    ill = [bool(x.isfinite().all()) for x in reached(ddp, gradients)]
    return [ill, [bool(x.isfinite().all()) for x in reached(ddp, random_gradients(1, rank))]]


def layers_apart():
    """Layers sharded one by one, some shards uneven, some empty: what has an error, and of which shape."""
    model = nn.Sequential(nn.Linear(64, 34), nn.Linear(34, 1), nn.Linear(1, 6))
    for layer in model[:2]:
        fully_shard(layer)
    outerloop.loco.fsdp_hook(state := outerloop.loco.State(), fully_shard(model))
    model(torch.randn(5, 64)).sum().backward()
    return state.shapes


def trained(rank, state):
    """The losses of a small GPT, each rank with a shard of its own; and its weights."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(tiny_gpt.GPT())
    if state:
        ddp.register_comm_hook(state, outerloop.loco.ddp_hook)
    optimizer, losses = torch.optim.AdamW(ddp.parameters(), lr=3e-3), []
    text = torch.tensor(list(bytes(range(32, 127)) * 3))
    for step in range(12):
        optimizer.zero_grad()
        window = text[7 * step + 50 * rank :][:33]
        losses.append(nn.functional.cross_entropy(ddp(window[None, :-1])[0], window[1:]))
        losses[-1].backward()
        optimizer.step()
    weights = torch.cat([weight.detach().flatten() for weight in ddp.parameters()])
    return [torch.stack(losses).detach(), weights]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return process_group.together(3, three_ranks, tmp_path_factory.mktemp("three"))


DDP, FSDP = 0, 1
both = pytest.mark.parametrize("which", [DDP, FSDP], ids=["ddp", "fsdp"])


@both
def test_gradients_on_the_levels_arrive_as_they_are(three, which):
    for told in three:
        for got, expected in told["levels"][which]:
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@both
def test_nothing_is_lost(three, which):
    """β = 0: what the ranks offered = what all got + what they hold, added up over steps and values."""
    told = [rank["nothing lost"][which] for rank in three]
    offered, kept = sum(one["offered"] for one in told), sum(one["held"] for one in told)
    assert abs(kept) > 0.01
    assert (told[0]["got"] + kept).item() == pytest.approx(offered.item(), abs=1e-4)


def test_all_ranks_get_the_same_bits(three):
    first, *others = ([told["nothing lost"][DDP]["last"], told["losses"][1][1]] for told in three)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@both
def test_a_state_goes_on_where_it_was(three, which):
    for told in three:
        assert all(torch.equal(a, b) for a, b in zip(*told["resumed"][which], strict=True))


@pytest.mark.parametrize("which, ways", [(DDP, 2), (FSDP, 1)], ids=["ddp", "fsdp"])
def test_bytes_beside_a_float32_ring(three, which, ways):
    """A piece of 100,000 values to two others: 1,563 groups of 32 + 2 bytes, 4 bytes a value in float32."""
    for told in three:
        sent, ring = told["bytes"][which]
        assert (sent, ring) == (ways * 2 * 1563 * 34, ways * 2 * 100_000 * 4)
        assert sent <= 0.14 * ring


def test_a_gradient_that_is_not_finite_reaches_all(three):
    for told in three:
        ill, well = told["nan"]
        assert not all(ill) and all(well)


def test_every_sharded_layer_has_an_error_of_its_own(three):
    """Three ranks: 12 rows of 64 and 12 biases; one row of 34 and one bias, on the first rank; the rest."""
    for told in three:
        assert told["apart"] == {"module '0'": [3, 12 * 64 + 12], "module '1'": [3, 34 + 1], "module ''": [3, 2 + 2]}


def test_a_model_learns_as_with_plain_ddp(three):
    for told in three:
        (plain, plain_weights), (ours, our_weights) = told["losses"]
        assert ours[-1] < ours[0] and not torch.equal(plain_weights, our_weights)
        assert ours[-1].item() == pytest.approx(plain[-1].item(), rel=0.05)


def test_one_rank_keeps_its_gradients(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        gradients = random_gradients(0, 0)
        got = reached(hooked(outerloop.loco.State()), gradients)
        assert all(torch.equal(a, b) for a, b in zip(got, gradients, strict=True))
    finally:
        dist.destroy_process_group()
