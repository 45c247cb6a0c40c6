"""Models that something is wrapped around: names are those of the model itself, processes are counted right."""

import copy

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from outerloop.replica.island import Island
from outerloop.replica.sharding import is_sharded, num_processes
from outerloop.types import UserError
from tests.support import sharded_islands, toy
from tests.support.sharded_islands import EVEN, Net
from tests.support.tensors import same_tensors


@pytest.fixture
def group(request, tmp_path):
    """A process group of this process alone, or with others that are only made believe."""
    if request.param == 1:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield
    dist.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPED = {
    "ddp": DistributedDataParallel,
    "compiled": compiled,
    "ddp of compiled": lambda model: DistributedDataParallel(compiled(model)),
    "compiled ddp": lambda model: compiled(DistributedDataParallel(model)),
}


@pytest.mark.parametrize("group", [1], indirect=True)
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_parameters_and_buffers_have_the_names_that_other_peers_know(group, wrap):
    def live(exchange):
        net = nn.Sequential(toy.model(), nn.BatchNorm1d(3))
        outer = toy.outer(wrap(net) if exchange.rank else net, exchange, h=1, buffers="averaged")
        [report] = outer.after_inner_step(1)
        return report.failed, list(outer.slow), list(outer.buffers.mean)

    plain, wrapped = toy.run_workers(2, live)
    assert plain == wrapped
    assert plain[0] == "" and plain[1][0] == "0.0.weight" and plain[2] == ["1.running_mean", "1.running_var"]


@pytest.mark.parametrize("group", [1], indirect=True)
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_model_has_the_slow_weights_while_they_are_evaluated(group, wrap):
    """And the fast ones afterwards, even if the evaluation fails or this peer has left the run."""
    net, (x, _) = toy.model(), toy.batch(0, 0)
    model, begun = wrap(net), (copy.deepcopy(net.state_dict()), net(x))
    outer = toy.outer(model, toy.alone(), h=100)
    toy.inner_step(model, torch.optim.SGD(net.parameters(), lr=0.1), 0, 0)
    outer.after_inner_step(1)
    fast = copy.deepcopy(net.state_dict())
    with pytest.raises(ZeroDivisionError), outer.slow_weights():
        assert same_tensors(net.state_dict(), begun[0]) and torch.equal(model(x), begun[1])
        raise ZeroDivisionError
    assert same_tensors(net.state_dict(), fast) and not torch.equal(model(x), begun[1])
    outer.close()
    with outer.slow_weights():
        assert same_tensors(net.state_dict(), begun[0])
    assert same_tensors(net.state_dict(), fast)


@pytest.mark.parametrize("group", [2], indirect=True)
def test_processes_of_a_model_that_is_gathered_just_now(group):
    """As an evaluation leaves it: the first parameter is whole, and looks as if it were of one process."""
    net = sharded_islands.shard(Net(**EVEN), init_device_mesh("cpu", (2,)))
    with torch.no_grad():
        net(torch.zeros(1, 3, dtype=torch.int64))
    assert not hasattr(next(net.parameters()), "device_mesh")
    assert num_processes(net) == 2
    assert Island(net).layouts()["tokens.weight"] == "[32, 16], Shard(dim=0) part 0 of 2"


@pytest.mark.parametrize("group", [2], indirect=True)
def test_a_model_whose_first_parameter_is_not_sharded(group):
    """It may be frozen. If it is trainable, the outer loop would exchange whole tensors and shards."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(net[1], mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(UserError, match=r"1\.weight is sharded, but 0\.weight is trainable and not sharded"):
        is_sharded(net)
    net[0].requires_grad_(False)
    assert is_sharded(net) and num_processes(net) == 2


@pytest.mark.parametrize("group", [4], indirect=True)
def test_a_model_on_two_meshes_is_refused(group):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer, ranks in zip(net, ([0, 1], [0, 2]), strict=True):
        fully_shard(layer, mesh=DeviceMesh("cpu", ranks))
    with pytest.raises(UserError, match=r"0\.weight is sharded over .*, but 1\.weight over .*: call fully_shard with"):
        is_sharded(net)
