"""Messages of peers that are not there, for the scores of one."""

from outerloop import wire


def message_of(outer, peer, values, *, number=0, samples=8):
    """Return the message with which `peer` sends these values, encoded with the compressor of `outer`."""
    parts = {name: outer.codec.encode(number, name, x, leads=False) for name, x in values.items()}
    return wire.Message(wire.Header(round=number, fragment=0, samples=samples, schema=0, slow=0, peer=peer), parts)
