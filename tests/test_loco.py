"""LoCo as a hook of DDP and FSDP2: processes with gloo, gradients that are given."""

import own_gpt
import pytest
import torch
import torch.multiprocessing as processes
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.loco.pieces import decode, encode
from outerloop.types import UserError

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


def live(rank, size, work, folder):
    """One process of a group that meets in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(work(rank, size), folder / f"{rank}.pt")
    dist.destroy_process_group()


def together(size, work, folder):
    """What `work(rank, size)` returns in each of `size` processes."""
    processes.spawn(live, (size, work, folder), nprocs=size)
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def hooked(state):
    """DDP over given gradients; buckets of about a parameter each."""
    ddp = DistributedDataParallel(Given(), bucket_cap_mb=0.001)
    ddp.register_comm_hook(state, outerloop.loco.ddp_hook)
    return ddp


def sharded(state):
    """FSDP2 over given gradients."""
    outerloop.loco.fsdp_hook(state, model := fully_shard(Given()))
    return model


# ---------------------------------------------------------------------------------------------------------------------
# One rank's side of it: what is sent and what is remembered


@pytest.mark.parametrize("size", [(1, 1), (2, 255), (3, 256), (4, 1009)])
def test_what_is_offered_is_what_is_sent_and_what_is_remembered(size):
    """β = 0: x + e_old = deq(Q(x + e_old)) + e_new, bit for bit (methods.md)."""
    state, old = outerloop.loco.State(**EXACT), torch.zeros(size)
    for scale in (1.0, 1e-6, 300.0):
        x = torch.randn(size) * scale
        sent = decode(state.offer("name", x), size[1])
        new = state.feedback.error.get("name")
        assert torch.equal(x + old, sent + new)
        assert not torch.equal(sent, x + old) or size[1] == 1
        old = new.clone()


def test_the_error_is_a_moving_average_in_eight_bits():
    """e ← β e + (1 − β)(h − ĥ), β .8: a group of 7, .25 and zeros has scale 1, so .25 is lost whole."""
    state, x = outerloop.loco.State(), torch.zeros(1, 256)
    x[0, :2] = torch.tensor([7.0, 0.25])
    expected = 0.0
    for _ in range(3):
        offered = 0.25 + expected
        state.offer("name", x)
        expected = 0.8 * expected + 0.2 * offered
        error = state.feedback.error.get("name")
        assert error[0, 1].item() == pytest.approx(expected, rel=1e-6) and error[0, 0] == 0
    assert state.feedback.error.held["name"][0].dtype == torch.int8


def test_the_error_is_forgotten_every_t_steps():
    state, x = outerloop.loco.State(reset_every=3), torch.randn(1, 300)
    held = []
    for _ in range(6):
        state.offer("name", x)
        held.append(bool(state.feedback.error.get("name").any()))
    assert held == [True, True, False] * 2


def test_four_bits_by_hand():
    """Codes 14, 10, 7 + 7 - 7 = 0 and zeros, the first value in the low half of its byte; one scale, 2.0."""
    message = encode(torch.tensor([[14.0, 6.9, -14.0]]))
    assert message.shape == (1, 128 + 2)
    assert message[0, :3].tolist() == [14 + 16 * 10, 0 + 16 * 7, 7 + 16 * 7]
    assert message[0, -2:].view(torch.bfloat16).item() == 2.0
    assert decode(message, 3).tolist() == [[14.0, 6.0, -14.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows_and_is_not_remembered(bad):
    state, x = outerloop.loco.State(), torch.randn(1, 600)
    state.offer("name", x)
    x[0, 300] = bad
    sent = decode(state.offer("name", x), 600)
    assert sent[0, 256:512].isnan().all() and sent[0, :256].isfinite().all() and sent[0, 512:].isfinite().all()
    assert state.feedback.error.get("name").isfinite().all()
    assert decode(state.offer("name", torch.zeros(1, 600)), 600).isfinite().all()


def test_an_error_of_other_gradients_is_refused():
    state = outerloop.loco.State()
    state.offer("bucket 0", torch.randn(2, 300))
    resumed = outerloop.loco.State()
    resumed.load_state_dict(state.state_dict())
    with pytest.raises(UserError, match=r"bucket 0: the error of 2 pieces of 300 .* new State\(\)"):
        resumed.offer("bucket 0", torch.randn(4, 150))


def test_mistakes_are_told():
    with pytest.raises(UserError, match="reset_every=0"):
        outerloop.loco.State(reset_every=0)
    with pytest.raises(UserError, match=r"Linear has no FSDP2 module: call fully_shard"):
        outerloop.loco.fsdp_hook(outerloop.loco.State(), nn.Linear(2, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Three ranks


def three_ranks(rank, size):
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
    common[::20], apart[::20] = 7.0, 0.0
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
    model = nn.Sequential(nn.Linear(64, 34), nn.Linear(34, 1))
    for layer in model:
        fully_shard(layer)
    outerloop.loco.fsdp_hook(state := outerloop.loco.State(), fully_shard(model))
    model(torch.randn(5, 64)).sum().backward()
    return state.shapes


def trained(rank, state):
    """The losses of a small GPT, each rank with a shard of its own; and its weights."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(own_gpt.GPT())
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
    return together(3, three_ranks, tmp_path_factory.mktemp("three"))


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
    """A piece of 100,000 values to two others: 391 groups of 128 + 2 bytes, 4 bytes a value in float32."""
    for told in three:
        sent, ring = told["bytes"][which]
        assert (sent, ring) == (ways * 2 * 391 * 130, ways * 2 * 100_000 * 4)
        assert sent <= 0.14 * ring


def test_a_gradient_that_is_not_finite_reaches_all(three):
    for told in three:
        ill, well = told["nan"]
        assert not all(ill) and all(well)


def test_every_sharded_layer_has_an_error_of_its_own(three):
    """Three ranks: 12 rows of 34 and 12 biases; one row of 34 and one bias, on the first rank."""
    for told in three:
        assert told["apart"] == {"0": [3, 12 * 64 + 12], "1": [3, 34 + 1]}


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
