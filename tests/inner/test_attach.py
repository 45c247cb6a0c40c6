"""The outer loop in training loops of several kinds: compiled, fused, parameter groups, frozen and tied parameters."""

from collections import OrderedDict

import numpy
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.core.round import InFlight, ReceivedRound
from outerloop.replica import sharding
from outerloop.types import Contribution, UserError
from tests.support import process_group, tiny_gpt, toy

TEXT = b"the quick brown fox jumps over the lazy dog. " * 20


def groups(model):
    """Weights with decay, the rest without, at another learning rate."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 1e-3}], lr=3e-3)


def frozen(model):
    """The embeddings stay; the optimizer has them all the same."""
    model.tokens.requires_grad_(False)
    return tiny_gpt.adamw(model)


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)


def foreach(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)


def compiled(model):
    return torch.compile(model, backend="aot_eager")


KINDS = {
    "several groups": {"optimizer_of": groups},
    "frozen": {"optimizer_of": frozen},
    "fused": {"optimizer_of": fused},
    "foreach": {"optimizer_of": foreach},
    "compiled": {"run": compiled},
    "accumulated": {"accumulate": 3},
}


def add_to(outers, *options, recipe="diloco", exchange=None):
    """The lines that somebody adds; the outer loop comes after what was there."""

    def add(model, optimizer):
        outers.append(outerloop.from_recipe(recipe, model, *options, exchange=exchange or toy.alone()))
        outerloop.attach(optimizer, outers[-1])

    return add


@pytest.mark.parametrize("kind", KINDS)
def test_one_peer_that_averages_trains_as_before_bit_for_bit(kind):
    outers = []
    add = add_to(outers, *toy.AVERAGED, "schedule.sync_every=2", "state_dtype=float64")
    plain, model = tiny_gpt.train(TEXT, steps=5, **KINDS[kind])
    losses, with_outer = tiny_gpt.train(TEXT, steps=5, add=add, **KINDS[kind])
    assert losses == plain and toy.same_weights(model, with_outer) and outers[0].inner_step == 5


@pytest.mark.parametrize("kind", KINDS)
def test_two_peers_hold_one_model(kind):
    outers = []

    def live(exchange):
        add = add_to(outers, "schedule.sync_every=2", recipe="sparseloco", exchange=exchange)
        return tiny_gpt.train(TEXT[exchange.rank * 400 :], steps=4, shard=exchange.rank, add=add, **KINDS[kind])

    (a, one), (b, other) = toy.run_workers(2, live)
    assert toy.same_weights(one, other) and a != b and outers[0].slow_hash == outers[1].slow_hash


@pytest.mark.parametrize("recipe", ["diloco", "ddp"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_gradscaler_skips_is_counted_only_by_count_up_to(fused, recipe):
    """GradScaler calls the step of a fused optimizer even if a gradient overflowed, and ddp reads gradients there."""
    model = toy.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    outer = outerloop.from_recipe(recipe, model, exchange=toy.alone())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-127)
    with outerloop.attach(optimizer, outer) as attached:
        for steps, counted in ((1, 0), (2, 2), (3, 3)):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 7)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            assert attached.counted == counted - (steps == 2)
            if steps == 2:
                attached.count_up_to(2)
    assert outer.inner_step == 3


def test_sparse_gradients_are_exchanged_as_dense_ones():
    def trained(*, sparse):
        torch.manual_seed(0)
        model = torch.nn.Embedding(5, 3, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with outerloop.attach(optimizer, outerloop.from_recipe("ddp", model, exchange=toy.alone())):
            model(torch.tensor([1, 1, 4])).square().sum().backward()
            optimizer.step()
        return model

    assert toy.same_weights(trained(sparse=True), trained(sparse=False))


def test_a_compiled_model_and_a_plain_one_meet():
    def live(exchange):
        model = toy.model()
        forward = compiled(model) if exchange.rank else model
        optimizer = torch.optim.SGD(forward.parameters(), lr=0.1)
        outer = outerloop.from_recipe("diloco", forward, "schedule.sync_every=2", exchange=exchange)
        with outerloop.attach(optimizer, outer):
            for step in range(2):
                toy.inner_step(forward, optimizer, exchange.rank, step)
        return model, list(outer.slow)

    (one, names), (other, other_names) = toy.run_workers(2, live)
    assert toy.same_weights(one, other) and names == other_names == [name for name, _ in one.named_parameters()]


class Wrapped(torch.nn.Module):
    """A model inside another module, as Lightning Fabric holds it."""

    def __init__(self, model):
        super().__init__()
        self._forward_module = model

    def forward(self, x):
        return self._forward_module(x)


def partly_compiled(model):
    model[0] = torch.compile(model[0], backend="aot_eager")
    return model


@pytest.mark.parametrize(
    "wrap", [Wrapped, partly_compiled, lambda model: Wrapped(compiled(model)), torch.nn.DataParallel]
)
def test_a_wrapped_model_and_a_plain_one_meet(wrap):
    def live(exchange):
        model = torch.nn.Sequential(toy.model(), torch.nn.BatchNorm1d(3))
        forward = wrap(model) if exchange.rank else model
        optimizer = torch.optim.SGD(forward.parameters(), lr=0.1)
        options = ["schedule.sync_every=2", "buffers=averaged"]
        outer = outerloop.from_recipe("diloco", forward, *options, exchange=exchange)
        with outerloop.attach(optimizer, outer):
            for step in range(2):
                toy.inner_step(forward, optimizer, exchange.rank, step)
        return model, list(outer.slow), list(outer.buffers.mean)

    (one, *names), (other, *other_names) = toy.run_workers(2, live)
    assert toy.same_weights(one, other) and names == other_names
    assert all(torch.equal(x, y) for x, y in zip(one.buffers(), other.buffers(), strict=True))
    assert names[0] == [name for name, _ in one.named_parameters()]


def test_the_optimizer_that_fabric_has_set_up():
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    plain = toy.model()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    outer = outerloop.from_recipe("diloco", model, sync_every=2, exchange=toy.alone())
    assert list(outer.slow) == [name for name, _ in toy.model().named_parameters()]
    with outerloop.attach(optimizer, outer):
        for step in range(3):
            toy.inner_step(model, optimizer, 0, step)
    assert outer.inner_step == 3


def test_several_optimizers_count_one_step():
    """Muon takes matrices alone, so that a second optimizer has the rest."""
    model = toy.model()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizers = [torch.optim.Muon(matrices, lr=0.1), torch.optim.AdamW(others)]
    outer = outerloop.from_recipe("muloco", model, sync_every=2, exchange=toy.alone())
    with pytest.raises(UserError, match=r"0\.bias is trainable, but Muon does not train it"):
        outerloop.attach(optimizers[:1], outer)
    with outerloop.attach(optimizers, outer, sole_writer=True):
        for step in range(3):
            x, y = toy.batch(0, step)
            ((model(x) - y) ** 2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert outer.inner_step == 3


def test_swapped_arguments_are_named():
    outer = toy.outer(toy.model(), toy.alone())
    with pytest.raises(
        UserError, match=r"OuterLoop is not an optimizer .*: call outerloop\.attach\(optimizer, outer\)"
    ):
        outerloop.attach(outer, torch.optim.SGD(outer.model.parameters()))


class Lookahead(torch.optim.Optimizer):
    """A wrapper that has hooks but does not call `Optimizer.__init__`, which makes `step` call them."""

    def __init__(self, optimizer):
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_an_optimizer_that_does_not_call_its_hooks_is_refused():
    outer = toy.outer(toy.model(), toy.alone())
    optimizer = Lookahead(torch.optim.SGD(outer.model.parameters()))
    with pytest.raises(UserError, match=r"Lookahead does not call its step hooks: call outer\.after_inner_step\("):
        outerloop.attach(optimizer, outer)
    assert not outer.is_attached


def test_the_optimizer_of_a_recipe_attaches():
    model = toy.model()
    outer = outerloop.from_recipe("muloco", model, sync_every=2, exchange=toy.alone())
    optimizer = outerloop.recipe_optimizer("muloco", model)
    with outerloop.attach(optimizer, outer):
        toy.inner_step(model, optimizer, 0, 0)
    assert outer.inner_step == 1


@pytest.mark.parametrize("samples", [2.5, 0, -1, "2", True, torch.tensor(2)])
def test_samples_are_counted_in_whole_numbers(samples):
    outer = toy.outer(toy.model(), toy.alone())
    optimizer = torch.optim.SGD(outer.model.parameters())
    with pytest.raises(UserError, match=r"samples=.* must be a positive whole number: pass"):
        outerloop.attach(optimizer, outer, samples=samples)
    with outerloop.attach(optimizer, outer, samples=numpy.int64(2)):
        optimizer.step()
    assert outer.samples == 2


def test_tied_parameters_are_exchanged_once_and_frozen_ones_not_at_all():
    outers = []
    _, model = tiny_gpt.train(TEXT, steps=2, add=add_to(outers, "schedule.sync_every=2"))
    _, still = tiny_gpt.train(TEXT, steps=2, add=add_to(outers, "schedule.sync_every=2"), optimizer_of=frozen)
    names = {name for name, _ in model.named_parameters()}
    assert model.head.weight is model.tokens.weight and "head.weight" not in names
    assert outers[0].slow.keys() == names and outers[1].slow.keys() == names - {"tokens.weight"}
    torch.manual_seed(0)
    assert torch.equal(still.tokens.weight, tiny_gpt.GPT().tokens.weight)


ONE_PROCESS = ("buffers=averaged", "schedule=every_seconds", "schedule=adaptive", "compress=auto")


def refused(rank):
    """How many processes hold each of three models; what is said of options that are for one."""
    models = [toy.model(), DistributedDataParallel(toy.model()), fully_shard(toy.model())]
    said = []
    for option in ONE_PROCESS:
        for model in models[1:]:
            with pytest.raises(UserError) as error:
                outerloop.from_recipe("diloco", model, option, exchange=toy.alone())
            said.append(str(error.value))
    return [sharding.num_processes(model) for model in models], said


def test_clocks_and_buffers_are_of_one_process(tmp_path):
    for option in ONE_PROCESS:
        outerloop.from_recipe("diloco", toy.model(), option, exchange=toy.alone())
    for processes, said in process_group.together(2, refused, tmp_path):
        assert processes == [1, 2, 2]
        assert [line.split()[0] for line in said] == [option for option in ONE_PROCESS for _ in range(2)]
        assert all("requires a model held by one process, but 2 processes hold this one" in line for line in said)


def test_explicit_counting_is_the_hook():
    def live(exchange, hook):
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outer = outerloop.from_recipe("diloco", model, "schedule.sync_every=2", exchange=exchange)
        if hook:
            outerloop.attach(optimizer, outer, samples=4)
        for step in range(5):
            toy.inner_step(model, optimizer, exchange.rank, step)
            if not hook:
                outer.after_inner_step(4)
        return model, outer.samples

    explicit, hooked = (toy.run_workers(2, lambda exchange, hook=hook: live(exchange, hook)) for hook in (False, True))
    for (one, samples), (other, other_samples) in zip(explicit, hooked, strict=True):
        assert toy.same_weights(one, other) and samples == other_samples == 4


def test_the_optimizer_that_accelerate_has_prepared():
    """Its wrapper has no hooks: steps count once for all micro-batches, and not when the wrapper leaves them out."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    plain = toy.model()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    outer, rounds = toy.outer(plain, toy.alone(), h=2), []
    attached = outerloop.attach(optimizer, outer, on_round=rounds.append)
    for step in range(8):
        with accelerator.accumulate(model):
            x, y = toy.batch(0, step)
            accelerator.backward(((model(x) - y) ** 2).mean())
            optimizer.step()
            optimizer.zero_grad()
    assert outer.inner_step == 4 and [report.round.number for report in rounds] == [0, 1]
    attached.remove()


def test_the_repr_of_a_round_is_one_short_line():
    """The repr of a report, and of what a round is made of on its way, leaves out payloads and tensors."""
    told = []
    tiny_gpt.train(TEXT, steps=3, add=lambda model, optimizer: outerloop.attach(
        optimizer,
        outerloop.from_recipe("diloco", model, "schedule.sync_every=2", "schedule.delay=1", exchange=toy.alone()),
        on_round=told.append,
    ))  # fmt: skip
    [report] = told
    assert len(report.blob) > 10_000 and len(repr(report)) < 1000 and "payload_bytes=" in repr(report)
    contribution = Contribution("a", report.round, report.blob)
    weights = {"w": torch.zeros(999)}
    flight = InFlight(report.round, weights, report.blob, None, 1, 0.0, 0.0, fast_at_launch=weights)
    arrival = ReceivedRound([contribution], 0.0, 1.0, 0.5)
    assert all(len(repr(one)) < 300 and "tensor(" not in repr(one) for one in (contribution, flight, arrival))


def test_removing_again_does_not_detach_another_attachment():
    model = toy.model()
    outer, optimizer = toy.outer(model, toy.alone()), torch.optim.SGD(model.parameters(), lr=0.1)
    first = outerloop.attach(optimizer, outer)
    first.remove()
    outerloop.attach(optimizer, outer)
    first.remove()
    with pytest.raises(UserError, match="attached already"):
        outerloop.attach(optimizer, outer)


def test_gradients_that_overflowed_are_not_exchanged():
    model = toy.model()
    outer = outerloop.from_recipe("ddp", model, exchange=toy.alone())
    with outerloop.attach(torch.optim.SGD(model.parameters(), lr=0.1), outer) as attached:
        model(torch.full((2, 7), torch.inf)).sum().backward()
        attached.count_up_to(1)
    assert outer.inner_step == 1 and all(bool(p.isfinite().all()) for p in model.parameters())


def test_an_outer_loop_that_is_attached_is_not_attached_again():
    """Every step would be counted twice."""
    model = toy.model()
    outer, optimizer = toy.outer(model, toy.alone()), torch.optim.SGD(model.parameters(), lr=0.1)
    attached = outerloop.attach(optimizer, outer)
    with pytest.raises(UserError, match=r"attached already.*: call remove"):
        outerloop.attach(optimizer, outer)
    attached.remove()
    with outerloop.attach(optimizer, outer):
        assert outer.is_attached
    assert not outer.is_attached


def test_a_second_outer_loop_of_the_same_parameters_is_refused():
    """Each would overwrite the weights that the other has written."""
    model = toy.model()
    first, second = toy.outer(model, toy.alone()), toy.outer(model, toy.alone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = outerloop.attach(optimizer, first)
    with pytest.raises(UserError, match=r"0\.weight is exchanged by another outer loop.*: call remove") as error:
        outerloop.attach(optimizer, second)
    assert "\n" not in str(error.value) and not second.is_attached
    attached.remove()
    outerloop.attach(optimizer, second)


def test_a_second_outer_loop_is_refused_whichever_of_several_optimizers_comes_last():
    model = toy.model()
    first, second = toy.outer(model, toy.alone()), toy.outer(model, toy.alone())
    halves = list(model.parameters())[:1], list(model.parameters())[1:]
    a, b = (torch.optim.SGD(half, lr=0.1) for half in halves)
    outerloop.attach([a, b], first)
    with pytest.raises(UserError, match="is exchanged by another outer loop"):
        outerloop.attach([b, a], second)


def test_two_outer_loops_of_different_parameters_share_an_optimizer():
    models = toy.model(), toy.model()
    outers = [toy.outer(model, toy.alone()) for model in models]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    for outer in outers:
        outerloop.attach(optimizer, outer)
    optimizer.step()
    assert [outer.inner_step for outer in outers] == [1, 1]


def test_a_compiled_optimizer_step_does_not_compile_the_rounds():
    hashes, compiled = [], []
    torch.compiler.reset()
    for compiles in (False, True):
        model = toy.model()
        outer = outerloop.from_recipe("outerloop", model, "schedule.sync_every=2", exchange=toy.alone())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counter = CompileCounter()
        step = torch.compile(lambda own=optimizer: own.step(), backend=counter) if compiles else optimizer.step
        with outerloop.attach(optimizer, outer):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 7)).sum().backward()
                step()
        hashes.append((outer.slow_hash, outer.inner_step))
        compiled.append(counter.frame_count)
    assert hashes[0] == hashes[1] and compiled[1] <= 2, "the update of SGD, before and after its first step"
