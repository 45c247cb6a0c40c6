"""LoCo as a hook, one rank's side of it: what is sent and what is remembered."""

import pytest
import torch
from torch import nn

import outerloop
from outerloop.loco.int4_messages import decode, encode
from outerloop.types import UserError


@pytest.mark.parametrize("size", [(1, 1), (2, 63), (3, 64), (4, 1009)])
def test_the_offered_gradient_is_the_sent_one_plus_the_remembered_error(size):
    """β = 0: x + e_old = deq(Q(x + e_old)) + e_new, bit for bit (methods.md)."""
    state, old = outerloop.loco.State(beta=0.0, error_bits=32), torch.zeros(size)
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
    assert state.feedback.error.stored["name"][0].dtype == torch.int8


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
    assert message.shape == (1, 32 + 2)
    assert message[0, :3].tolist() == [14 + 16 * 10, 0 + 16 * 7, 7 + 16 * 7]
    assert message[0, -2:].view(torch.bfloat16).item() == 2.0
    assert decode(message, 3).tolist() == [[14.0, 6.0, -14.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_sent_and_not_remembered(bad):
    state, x = outerloop.loco.State(), torch.randn(1, 600)
    state.offer("name", x)
    x[0, 300] = bad
    sent = decode(state.offer("name", x), 600)
    assert sent[0, 256:320].isnan().all() and sent[0, :256].isfinite().all() and sent[0, 320:].isfinite().all()
    assert state.feedback.error.get("name").isfinite().all()
    assert decode(state.offer("name", torch.zeros(1, 600)), 600).isfinite().all()


def test_an_error_of_other_gradients_is_refused():
    state = outerloop.loco.State()
    state.offer("bucket 0", torch.randn(2, 300))
    resumed = outerloop.loco.State()
    resumed.load_state_dict(state.state_dict())
    with pytest.raises(UserError, match=r"bucket 0: the stored compression error \(2 pieces of 300 .* new State\(\)"):
        resumed.offer("bucket 0", torch.randn(4, 150))


@pytest.mark.parametrize("bits", [8, 32])
def test_a_loaded_error_moves_to_the_device_of_its_gradient(bits):
    state, resumed = (outerloop.loco.State(error_bits=bits) for _ in range(2))
    state.offer("bucket 0", torch.randn(2, 300))
    resumed.load_state_dict(state.state_dict())
    resumed.offer("bucket 0", torch.ones(2, 300, device="meta"))
    assert resumed.feedback.error.get("bucket 0").device.type == "meta"
    assert state.feedback.error.get("bucket 0").device.type == "cpu"


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"^reset_every=0 must be at least 1"):
        outerloop.loco.State(reset_every=0)
    with pytest.raises(UserError, match=r"^beta=1\.5 must be at least 0 and below 1"):
        outerloop.loco.State(beta=1.5)
    with pytest.raises(UserError, match=r"^error_bits=16 is not one of 8, 32: set error_bits=8"):
        outerloop.loco.State(error_bits=16)
    with pytest.raises(UserError, match=r"Linear has no FSDP2 module: call fully_shard"):
        outerloop.loco.fsdp_hook(outerloop.loco.State(), nn.Linear(2, 2))
