"""The parameters of a model that the outer loop exchanges."""

import pytest
import torch

from outerloop.replica.island import Island
from outerloop.types import UserError
from tests.support import toy


def test_a_complex_parameter_is_refused_by_name():
    net = toy.model()
    net.phase = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"phase is torch\.complex64, and complex numbers cannot be exchanged"):
        Island(net)
    net.phase.requires_grad_(False)
    assert "phase" not in Island(net).params
