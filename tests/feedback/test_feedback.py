"""Error feedback: what was sent and what is kept add up, in 32 bits and in 8."""

import pytest
import torch

from outerloop.feedback.dgc import DGC
from outerloop.feedback.ef import ErrorFeedback
from outerloop.feedback.local_error import LocalError
from outerloop.feedback.loco import LoCo
from outerloop.feedback.none import NoFeedback
from outerloop.feedback.residual_storage import EightBit
from outerloop.types import UserError
from tests.support import toy


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_eight_bit_storage_is_off_by_at_most_half_a_step(count):
    storage, x = EightBit(), torch.randn(count)
    storage.put("w", x)
    if count == 0:
        assert storage.get("w").shape == (0,)
        return
    back = storage.get("w")
    for start in range(0, count, 256):
        block = slice(start, start + 256)
        assert (back[block] - x[block]).abs().max() <= x[block].abs().max() / 127 / 2 * 1.001
    again = EightBit()
    again.load_state_dict(storage.state_dict())
    assert torch.equal(again.get("w"), back)


@pytest.mark.parametrize("count", [0, 1, 256, 257])
def test_eight_bit_zeros_have_the_layout_of_other_values(count):
    """One block for each 256 values or part of them."""
    storage, x = EightBit(), torch.zeros(count)
    storage.put_zeros("zeros", x)
    storage.put("values", x)
    zeros, values = storage.stored["zeros"], storage.stored["values"]
    assert [part.shape for part in zeros[:2]] == [part.shape for part in values[:2]]
    assert torch.equal(storage.get("zeros"), x)


def test_eight_bit_storage_holds_only_what_is_loaded():
    storage, other = EightBit(), EightBit()
    storage.put("old", torch.ones(3))
    other.put("new", torch.ones(3))
    storage.load_state_dict(other.state_dict())
    assert storage.get("old") is None and storage.get("new") is not None


def test_eight_bit_storage_of_zeros_and_its_memory():
    storage = EightBit()
    storage.put("w", torch.zeros(2, 3000))
    assert torch.equal(storage.get("w"), torch.zeros(2, 3000))
    code, scale, _ = storage.stored["w"]
    assert code.numel() * code.element_size() + scale.numel() * 4 < 6000 * 1.05


@pytest.mark.parametrize("feedback", [LoCo(beta=0.0, reset_every=99, bits=32), ErrorFeedback(beta=1.0)])
def test_loco_without_averaging_conserves_exactly(feedback):
    """β = 0: x + e_old = deq(Q(x + e_old)) + e_new, in values that float32 adds exactly."""
    held = torch.zeros(64)
    for _ in range(5):
        delta = torch.randint(-512, 512, (64,)) / 256
        x = feedback.add("w", delta)
        sent = x.round()
        feedback.keep("w", x, sent)
        error = feedback.state_dict()["error" if "error" in feedback.state_dict() else "residual"]["w"]
        assert torch.equal(delta + held, sent + error)
        held = error


def test_local_error_sends_what_error_feedback_would_for_equal_inner_steps():
    """The same x in every round where the inner steps add the same, and no residual to store."""
    held_aside, in_weights = ErrorFeedback(beta=0.5), LocalError(beta=0.5)
    slow, fast = torch.zeros(64), torch.zeros(64)
    for _ in range(5):
        progress = torch.randint(-512, 512, (64,)) / 256
        x = in_weights.add("w", slow - (fast + progress))
        assert torch.equal(x, held_aside.add("w", -progress))
        sent = x.round()
        for feedback in (held_aside, in_weights):
            feedback.keep("w", x, sent)
        slow = slow - sent
        fast = in_weights.begin("w", slow)
    assert in_weights.begin("w", slow) is slow and in_weights.state_dict() == {"landed": {"w": 5}}


@pytest.mark.parametrize(
    "feedback",
    [
        NoFeedback(),
        ErrorFeedback(beta=0.9),
        ErrorFeedback(beta=0.9, bits=8),
        LoCo(beta=0.8, reset_every=1024),
        LocalError(beta=0.9),
        DGC(momentum=0.9),
    ],
)
def test_nothing_is_left_of_what_was_forgotten(feedback):
    """Two rounds in which nothing of what was offered is sent; what is kept of another parameter stays."""
    zeros = torch.zeros(4)
    for name in ("w", "other", "w", "other"):
        feedback.keep(name, feedback.add(name, torch.ones(4)), zeros)
    other = feedback.add("other", zeros)
    feedback.forget("w")
    feedback.forget("w")
    assert torch.equal(feedback.add("w", zeros), zeros) and torch.equal(feedback.begin("w", zeros), zeros)
    assert torch.equal(feedback.add("other", zeros), other)


def test_beta_of_local_error_grows_and_resumes():
    """From β = 0.5 and growth 2, values are kept for 2, 4, 6, 8 rounds: β is 1/2, 3/4, 5/6, 7/8."""
    feedback, slow = LocalError(beta=0.5, growth=2), torch.tensor([0.0])
    begun = []
    for _ in range(4):
        feedback.keep("w", torch.tensor([25.0]), torch.tensor([1.0]))
        begun.append(-feedback.begin("w", slow).item())
        state, feedback = feedback.state_dict(), LocalError(beta=0.5, growth=2)
        feedback.load_state_dict(state)
    assert begun == [12, 18, 20, 21]


def test_beta_of_local_error_stays_constant_without_growth_and_at_1():
    assert [LocalError(beta=0.75).beta_at(n) for n in (0, 9)] == [0.75, 0.75]
    assert LocalError(beta=1, growth=5).beta_at(9) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ErrorFeedback(beta=0.5, bits=4), "not one of 8, 32"),
        (lambda: LocalError(beta=1.5), "beta=1.5"),
        (lambda: LocalError(beta=0.5, growth=-1), "growth=-1"),
        (lambda: LocalError(beta=0.5, growth=float("nan")), "growth=nan"),
        (lambda: LoCo(beta=1.0, reset_every=1), "below 1"),
        (lambda: LoCo(beta=0.5, reset_every=0), "reset_every=0"),
    ],
)
def test_bad_settings_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()


@pytest.mark.parametrize(("saved", "resumed"), [(8, 32), (32, 8)])
def test_a_residual_is_resumed_with_another_number_of_bits(saved, resumed):
    one, other = ErrorFeedback(beta=0.5, bits=saved), ErrorFeedback(beta=0.5, bits=resumed)
    one.residual.put("w", torch.linspace(-1, 1, 300).reshape(3, 100))
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other.residual.get("w"), one.residual.get("w"), rtol=0, atol=1 / 127)


@pytest.mark.parametrize("part", ["feedback", "method"])
def test_a_state_that_another_kind_of_part_saved_is_refused_by_name(part):
    outer = toy.outer(toy.model(), toy.alone(), feedback=ErrorFeedback(beta=0.5))
    with pytest.raises(UserError, match=f"the saved state of {part} does not fit the {part} of this run"):
        outer.load_state_dict(outer.state_dict() | {part: {"velocity": {}}})
