"""A tokenizer whose ids are byte values, so any UTF-8 text round-trips and the vocabulary has 256 entries.

It is a byte-level BPE without merges. Such tokenizers write each byte as one printable character: a printable Latin-1
byte as itself, the others as code points from 256 up (GPT-2's table). Byte 0 ends a document (eos, pad).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """Return a new tokenizer whose ids are the byte values. It supports save_pretrained and AutoTokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast  # imported late: it takes a second, and only an export needs it

    characters = byte_characters()
    core = Tokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=characters[0],
        pad_token=characters[0],
        split_special_tokens=True,  # else the letter that stands for byte 0 (Ā) would become byte 0 in a text
        clean_up_tokenization_spaces=False,
    )


def byte_characters() -> list[str]:
    """Return the 256 characters with which a byte-level BPE writes each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
