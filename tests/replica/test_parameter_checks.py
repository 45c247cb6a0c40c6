"""Parameters that cannot be exchanged are refused by name, and no others."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import outerloop
from outerloop.core.initial_state import StartPosition
from outerloop.replica.island import Island
from outerloop.types import UserError
from tests.support import toy


def parameters(**tensors):
    """A module with a trainable parameter for each tensor."""
    net = nn.Module()
    for name, x in tensors.items():
        net.register_parameter(name, nn.Parameter(x))
    return net


def matrix():
    return torch.arange(24.0).view(4, 6)


def with_shared_memory():
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    net["head"].weight.data = net["embed"].weight.data
    return net


def test_parameters_that_share_memory_are_refused_before_the_run_is_joined(monkeypatch):
    said = (
        r"^head\.weight and embed\.weight share memory but are different parameters: assign the parameter itself"
        r" \(head\.weight = embed\.weight\)$"
    )
    monkeypatch.setattr("outerloop.config.from_recipe.create_and_join", None)
    with pytest.raises(UserError, match=said):
        outerloop.from_recipe("diloco", with_shared_memory())
    with pytest.raises(UserError, match=said):
        toy.outer(with_shared_memory(), toy.alone())


@pytest.mark.parametrize(
    "views",
    [
        lambda x: {"a": x[:3], "b": x[2:]},
        lambda x: {"a": x.flatten()[1:], "b": x},
        lambda x: {"a": x[:, :3], "b": x[:, 2:]},
        lambda x: {"a": x[:, :2], "c": x[:, 4:], "b": x[:, 1:4]},
        lambda x: {"a": x.T, "b": x[1:3, 1:3]},
        lambda x: {"a": x[0], "b": x.view(torch.bfloat16)[0, 5:7]},
    ],
)
def test_views_of_one_buffer_with_common_values_are_refused(views):
    with pytest.raises(UserError, match=r"b and a share memory .*: give each its own memory \(b\.data = b\.data\.cl"):
        Island(parameters(**views(matrix())))


@pytest.mark.parametrize(
    "views",
    [
        lambda x: {"a": x[:2], "b": x[2:]},
        lambda x: {"a": x.flatten()[:5], "b": x.flatten()[5:]},
        lambda x: {"a": x[:, :2], "b": x[:, 2:4], "c": x[:, 4:]},
        lambda x: {"a": x[::2].T, "b": x[1::2]},
        lambda x: {"a": x[0], "b": x.view(torch.bfloat16)[1]},
        lambda x: {"a": x, "b": x[:0], "c": torch.empty(0, 7)},
        lambda x: {"a": x.T, "b": torch.zeros(())},
        lambda x: {"a": torch.randn(2, 3, 1, 5).permute(3, 0, 2, 1), "b": x.expand(1, 4, 6)},
    ],
)
def test_disjoint_views_of_one_buffer_are_allowed(views):
    net = parameters(**views(matrix()))
    assert Island(net).params.keys() == dict(net.named_parameters()).keys()


def test_frozen_and_tied_parameters_may_share_memory():
    net = with_shared_memory()
    net["head"].weight.requires_grad_(False)
    assert "head.weight" not in Island(net).params
    net["head"].weight = net["embed"].weight
    assert list(Island(net).params) == ["embed.weight", "head.bias"]


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (
            torch.zeros(1, 3).expand(4, 3),
            r"^x is expanded, so several of its values share memory: replace it",
        ),
        (torch.zeros(5).unfold(0, 3, 1), "^x is expanded"),
        (torch.zeros(2, dtype=torch.complex64), r"^x is torch\.complex64, and complex numbers cannot be exchanged"),
        (torch.eye(3).to_sparse(), r"^x is torch\.sparse_coo, and only dense parameters can be exchanged: convert it"),
    ],
)
def test_a_parameter_that_cannot_be_exchanged_is_refused_by_name(x, said):
    net = parameters(x=x, y=matrix())
    with pytest.raises(UserError, match=said + r".*, or set requires_grad_\(False\) on it$"):
        Island(net)
    net.x.requires_grad_(False)
    assert list(Island(net).params) == ["y"]


def test_a_parameter_without_a_shape_is_refused_until_the_model_is_called():
    net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(UserError, match=r"^0\.weight is not initialized: call the model on a batch before"):
        outerloop.from_recipe("diloco", net, exchange=toy.alone())
    net(torch.zeros(1, 5))
    assert list(outerloop.from_recipe("diloco", net, exchange=toy.alone()).slow) == [
        x for x, _ in net.named_parameters()
    ]


def test_a_parameter_without_values_is_refused(monkeypatch):
    net = toy.model().to("meta")
    with pytest.raises(UserError, match=r"^0\.weight is on the meta device, which stores no values: call to_empty"):
        toy.outer(net, toy.alone())
    monkeypatch.setattr("outerloop.config.from_recipe.create_and_join", None)
    with pytest.raises(UserError, match=r"^0\.weight is on the meta device"):
        outerloop.from_recipe("diloco", net)


def test_shards_are_allowed_also_empty_ones():
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    try:
        net = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))
        shards = Island(fully_shard(net, mesh=init_device_mesh("cpu", (4,))))
        assert [shards.local_shard(name).numel() for name in shards.params] == [0, 0, 0, 0]
        net = nn.Sequential(nn.Linear(7, 8), nn.Linear(8, 4))
        assert len(Island(fully_shard(net, mesh=init_device_mesh("cpu", (4,)))).params) == 4
    finally:
        dist.destroy_process_group()


def test_frozen_parameters_that_are_offloaded_to_the_meta_device_are_not_compared():
    net = toy.model()
    net.base = torch.nn.Linear(4, 4, device="meta").requires_grad_(False)
    outer = outerloop.from_recipe("sparseloco", net, exchange=toy.alone())
    assert outer.island.frozen_hash == "" and "frozen" not in StartPosition.of(outer).to_map()
