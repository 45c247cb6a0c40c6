"""Read local text files, as bytes or tokenized with a local tokenizer.

Each worker keeps its text in memory. If it does not fit, tokenize it once and use data=tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from outerloop.inner.data.documents import Document, Documents
from outerloop.inner.data.file_patterns import match_files
from outerloop.inner.data.tokenization import encoding


def text(*, files: Sequence[str], tokenizer: str | None) -> Documents:
    """Return a corpus of local text files.

    Args:
        files: paths or globs. A file's path, relative to the common parent folder, decides whether it is held out.
        tokenizer: a local Hugging Face tokenizer folder; null: bytes are tokens.
    """
    paths = match_files(files, option="data.files")
    root = os.path.commonpath([path.absolute().parent for path in paths])
    documents = [Document(path.absolute().relative_to(root).as_posix(), path, path.stat().st_size) for path in paths]
    what = f"data=text ({len(paths)} files from {paths[0]})" if len(paths) > 1 else f"data=text ({paths[0]})"
    return Documents(documents, encoding=encoding(tokenizer), what=what, whole_packages=False)
