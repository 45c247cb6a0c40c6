"""Docstrings, comments and messages are standard English: phrases that a native reader stumbles over are refused.

Quoted code is not prose: the replacement fields of a string and what stands in backticks are skipped. A phrase that is
right English although a pattern matches it goes into ALLOWED, with the words around it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (
    *("outerloop/**/*.py", "scripts/**/*.py", "configs/**/*.yaml"),
    *("*.md", "docs/**/*.md", "scripts/results/*/COMMAND.md"),
    *("examples/**/*.py", "examples/**/*.md", "examples/**/*.yaml"),
)
ALLOWED: tuple[str, ...] = ()

HEADLESS = {  # at the beginning of a docstring
    r"(What|Who|Whom|Whose|Which|How|Where|When|Why|Whether)\b(?!.*\?)": "verb and object: 'Return the ...'",
    r"(The same|As|Of|If|Unless|None|Nothing|Nobody|Only|Without|Like)\b": "verb and object: 'Return the ...'",
}
PHRASES = {
    r"the own\b": "its own, the peer's own",
    r"(go|goes|going|gone|went) on\b(?! (to|disk)\b)": "continue, resume",
    r"goes? (down|up) by\b": "decreases by, increases by",
    r"anew\b": "again, from scratch",
    r"alike\b": "identical, equal, the same",
    r"in vain\b": "without success; name what failed",
    r"for ever\b": "forever, indefinitely",
    r"by then\b": "before that; name the moment",
    r"of then\b": "of that round, of that step",
    r"(shall|hitherto|thereof|therein|wherein|whilst|lest|but for)\b": "modern English: will, must, so far, unless",
    r"(came|comes?) to (be|know|nothing|have)\b": "name the event",
    r"what (came|comes|became|becomes) of\b": "the result of",
    r"so (many|much|long|few|often)\b(?![^.;:]{0,60}\b(as|that)\b)": "name the number: N seconds, f + 1 peers",
    r"(told|tells|telling|tell (a|an|the|it|them|others|peers|of))\b(?! (apart|from))": "report, notify, send",
    r"(?<!there )(is|are|was|were) (?-i:none)\b": "is not a ...",
    r"(?<!there )(is|are|was|were) no (?!longer|more|less|fewer|larger|smaller|better|worse)": "is not a, has no",
    r"(lies|lie|lying) (in|on|at|under|beside|there|here)\b": "is stored in, is in",
    r"(?<!/)beside\b(?! the point|:)": "next to, in addition to",
    r"(somebody|someone|whoever|whomever|who ever)\b": "a peer that, a process that",
    r"(?<!trust=)nobody\b": "no peer, no process",
    r"(?<=[.:;,] )who (?!is|are|was|were|has|have|had|can|did|does|do|will)\w+s\b": "the peer that ...",
    r"type (\S+=|--)": "set x=..., pass --x",
    r"(?<![\w.\]/)#])\.\d": "write the leading zero: 0.5",
}
PATTERNS = [(re.compile(rf"^{pattern}"), hint, True) for pattern, hint in HEADLESS.items()]
PATTERNS += [(re.compile(rf"(?<!\w){pattern}", re.IGNORECASE), hint, False) for pattern, hint in PHRASES.items()]


def documented(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the string node of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str()) as text), *_]:
                    yield text


def python_prose(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the line, whether it is a docstring, and the text of each docstring, comment and string of some words."""
    tree = ast.parse(source)
    docstrings = {id(node) for node in documented(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, id(node) in docstrings, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], False, token.string


def yaml_prose(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the line and text of each comment."""
    for number, line in enumerate(source.splitlines(), start=1):
        if comment := re.search(r"(?:^|\s)#.*", line):
            yield number, False, comment[0]


def markdown_prose(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the text without its blocks of code, as one piece."""
    code = re.compile(r"^```.*?^```|^    .*?$", re.DOTALL | re.MULTILINE)
    yield 1, False, code.sub(lambda block: "\n" * block[0].count("\n"), source)


PROSE = {".py": python_prose, ".yaml": yaml_prose, ".md": markdown_prose}


def find_hits(source: str, suffix: str = ".py") -> list[str]:
    """Return 'line: phrase -> suggestion' for each refused phrase of a file."""
    found = []
    for first, is_docstring, text in PROSE[suffix](source):
        bare = re.sub("`[^`\n]*`", lambda code: "_" * len(code[0]), text)
        for pattern, hint, headless in PATTERNS:
            for hit in pattern.finditer(bare) if is_docstring or not headless else ():
                near = bare[max(0, hit.start() - 30) : hit.end() + 30]
                if not any(phrase in near for phrase in ALLOWED):
                    found.append(f"{first + bare[: hit.start()].count(chr(10))}: {' '.join(near.split())!r} -> {hint}")
    return found


@pytest.mark.parametrize("place", PLACES)
def test_prose_is_standard_english(place):
    files = sorted(ROOT.glob(place))
    hits = [f"{path.relative_to(ROOT)}:{hit}" for path in files for hit in find_hits(path.read_text(), path.suffix)]
    assert files and not hits, "\n" + "\n".join(hits)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""What a peer says."""', 1),
        ("x = 1\n\n# goes on with the next round", 3),
        ('def f():\n    """Return it.\n\n    The rounds lie in a file.\n    """', 4),
        ('raise ValueError(f"{x} is no number, type x=1")', 1),
        ("# at least .5 of them", 1),
    ],
)
def test_an_odd_phrase_is_found_at_its_line(source, line):
    assert find_hits(source) and all(hit.startswith(f"{line}: ") for hit in find_hits(source))


@pytest.mark.parametrize(
    ("suffix", "source"),
    [(".yaml", "a: 1\nb: 2  # goes on\nc: goes on"), (".md", "```\ngoes on\n```\nIt goes on.\n\n    goes on")],
)
def test_comments_of_yaml_and_text_of_markdown_are_read(suffix, source):
    assert [hit.split(":")[0] for hit in find_hits(source, suffix)] == ["2" if suffix == ".yaml" else "4"]


@pytest.mark.parametrize("text", ["Return `what goes on`.", "Return the sum; {x:.3f} of it.", "Move on to 0.5 s."])
def test_plain_english_and_code_pass(text):
    assert find_hits(f'f"""{text}"""') == []
