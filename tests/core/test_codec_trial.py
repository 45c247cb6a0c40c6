"""A compressor of one's own that does not follow the protocol is refused in one line, before anything starts."""

import re

import pytest
import torch
from torch import nn

from outerloop.compress.by_size import BySize
from outerloop.compress.identity import Identity
from outerloop.core.compatibility.codec_trial import MAX_VALUES, check_codec, smallest_tensors
from outerloop.types import UserError
from tests.support import toy


class Whole:
    """Sends all values, flat."""

    linear = True

    def encode(self, x, context):
        return {"x": x.reshape(-1)}

    def decode(self, parts, shape, context):
        return parts["x"].reshape(shape)


class NoLinear(Whole):
    linear = property(lambda self: getattr(self, "absent"))  # noqa: B009


class Integers(Whole):
    def encode(self, x, context):
        return {"index": x.reshape(-1).int()}


class Bare(Whole):
    def encode(self, x, context):
        return x


class Flat(Whole):
    def decode(self, parts, shape, context):
        return parts["x"]


class Narrow(Whole):
    def decode(self, parts, shape, context):
        return parts["x"].reshape(shape).half()


class Nothing(Whole):
    def decode(self, parts, shape, context):
        return None


class Wide(Whole):
    def encode(self, x, context):
        return {"x": x.double().repeat(3, 1)}


class Broken(Whole):
    def encode(self, x, context):
        return {"x": {}["scale"]}


class Unreadable(Whole):
    def decode(self, parts, shape, context):
        return parts["y"]


class MatricesOnly(Whole):
    def encode(self, x, context):
        rows, _ = x.shape
        return {"x": x[:rows]}


REFUSED = {
    NoLinear: "has no attribute linear: set linear = True if",
    Integers: "encode returned part 'index' as int32; allowed: uint8, float32, bfloat16, float16, float64: use .view(",
    Bare: "encode returned a Tensor; allowed: a dict of tensors by name",
    Flat: "decode returned shape [8192] for a float32 tensor of shape [64, 128]; allowed: the same shape",
    Narrow: "decode returned float16 for a float32 tensor of shape [64, 128]; allowed: float32: use .float()",
    Nothing: "decode returned a NoneType; allowed: a float32 tensor",
    Wide: "a message cannot contain: the message has",
    Broken: "encode failed for a float32 tensor of shape [64, 128] (KeyError: 'scale'; test_codec_trial.py, line",
    Unreadable: "decode failed on the parts that encode returned for a float32 tensor of shape [64, 128] (KeyError:",
    MatricesOnly: "encode failed for a float32 tensor of shape [3] (ValueError: not enough values to unpack",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_compressor_that_breaks_its_protocol_is_refused_in_one_line(kind):
    with pytest.raises(UserError, match=re.escape(REFUSED[kind])) as error:
        toy.outer(toy.model(), toy.alone(), compress=kind())
    assert f"test_codec_trial.{kind.__name__}" in str(error.value) and "\n" not in str(error.value)


def test_a_trial_changes_neither_the_compressor_nor_the_random_numbers():
    class Counting(Whole):
        calls = 0

        def encode(self, x, context):
            self.calls += 1
            return {"x": (x + 0 * torch.rand(x.shape)).reshape(-1)}

    codec, before = Counting(), torch.get_rng_state()
    check_codec(codec)
    check_codec(codec, {"bias": torch.Size([3]), "weight": torch.Size([3, 7])})
    assert codec.calls == 0 and torch.equal(torch.get_rng_state(), before)


def test_the_smallest_tensor_of_each_compressor_and_number_of_dimensions_is_tried():
    shapes = {name: p.shape for name, p in nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 2)).named_parameters()}
    shapes |= {"empty": torch.Size([0]), "huge": torch.Size([MAX_VALUES + 1, 1, 1])}
    assert set(smallest_tensors(Whole(), shapes)) == {"1.bias", "1.weight"}
    both = BySize(below=20, small=Identity(), large=Whole())
    assert set(smallest_tensors(both, shapes)) == {"1.bias", "1.weight", "0.weight"}


def test_more_part_names_than_fit_into_a_message_are_refused():
    """A message with votes has one part more than the compressor sends."""

    class Named(Whole):
        def encode(self, x, context):
            return {f"{context.name}{n}": x.reshape(-1) if n == 0 else torch.zeros(0) for n in range(self.count)}

        def decode(self, parts, shape, context):
            return parts[f"{context.name}0"].reshape(shape)

    codec, shapes = Named(), {"bias": torch.Size([3]), "weight": torch.Size([3, 7])}
    codec.count = 7
    check_codec(codec, shapes)
    codec.count = 8
    with pytest.raises(UserError, match="Named sends 16 parts with different names, more than the limit of 15: use"):
        check_codec(codec, shapes)


def test_names_of_parameters_reach_the_compressor():
    seen = set()

    class Named(Whole):
        def encode(self, x, context):
            seen.add(context.name)
            return super().encode(x, context)

    check_codec(Named(), {"head.bias": torch.Size([3])})
    assert seen == {"head.bias"}
