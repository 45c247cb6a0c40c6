"""Bytes as a tokenizer: id = byte value, so any UTF-8 text round-trips and 256 entries are the whole vocabulary.

It is a byte-level BPE without merges. Such tokenizers write each byte as one printable character: a printable Latin-1
byte stands for itself, the others take the code points from 256 on (GPT-2's table). Byte 0 ends a document (eos, pad).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """A new tokenizer whose ids are exactly the bytes; save_pretrained and AutoTokenizer work."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast  # here: the import takes a second, and only an export needs it

    characters = byte_characters()
    core = Tokenizer(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=characters[0],
        pad_token=characters[0],
        split_special_tokens=True,  # else a text that holds the letter written for byte 0 (Ā) would become byte 0
        clean_up_tokenization_spaces=False,
    )


def byte_characters() -> list[str]:
    """256 characters: how a byte-level BPE writes each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
