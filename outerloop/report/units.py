"""Parse bandwidths, times and sizes, and format counts and seconds with standard deviations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.types import UserError

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"ms": 1e-3, "s": 1.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
LARGE = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation of a quantity over `n` runs, in its own unit. `std` is None for one run,
    or if a value is not finite.
    """

    mean: float
    std: float | None
    n: int


def parse_bandwidth(text: str, option: str = "--bandwidth") -> float:
    """Parse a bandwidth: "100mbit" -> 1e8 bits per second. Raises a UserError that names `option` for invalid text."""
    if not (amount := parse_amount(text.strip().lower().removesuffix("/s"), BITS)):
        raise UserError(
            f"{option} {text!r} is not a bandwidth: expected a positive number with kbit, mbit or gbit (per second),"
            f" for example {option} 100mbit"
        )
    return amount


def parse_seconds(text: str, option: str) -> float:
    """Parse a time: "50ms" -> 0.05 seconds. Raises a UserError that names `option` for invalid text."""
    if (amount := parse_amount(text.strip().lower(), SECONDS)) is None:
        raise UserError(f"{option} {text!r} is not a time: expected a number with ms or s, for example {option} 50ms")
    return amount


def parse_amount(text: str, units: Mapping[str, float]) -> float | None:
    """Parse a number that is followed by one of `units`, such as "50ms", and return their product, or None."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def parse_size(text: str, option: str) -> float:
    """Parse a size: "50GB" -> 5e10 bytes. Raises a UserError that names `option` for invalid text."""
    if not (amount := parse_amount(text.strip().lower(), BYTES)):
        raise UserError(
            f"{option} {text!r} is not a size: expected a positive number with kB, MB, GB or TB, for example"
            f" {option} 50GB"
        )
    return amount


def format_bandwidth(bits_per_s: float) -> str:
    """Format a bandwidth in bits per second: 1e8 -> "100 Mbit/s"."""
    factor, prefix = si_scale(bits_per_s)
    return f"{bits_per_s / factor:g} {prefix}bit/s"


def si_scale(value: float) -> tuple[float, str]:
    """Return the factor and prefix letter of the SI prefix that suits a value: 1234567 -> (1e6, "M")."""
    return next(((factor, letter) for factor, letter in LARGE if abs(value) >= factor), (1.0, ""))


def format_stat(stat: Stat, *, decimals: int) -> str:
    """Format mean ± standard deviation. For a single run, or equal values, format the mean alone."""
    return f"{stat.mean:.{decimals}f}" + (f" ± {stat.std:.{decimals}f}" if stat.std else "")


def format_small(stat: Stat) -> str:
    """Format a number with three decimals; below 0.1, with three significant digits: 0.0003 -> "0.000300"."""
    is_small = 0 < abs(stat.mean) < 0.1
    return format_stat(stat, decimals=2 - math.floor(math.log10(abs(stat.mean))) if is_small else 3)


def format_count(stat: Stat, unit: str = "") -> str:
    """Format a count with the SI prefix that suits its mean: 1234567 -> "1.23 M"."""
    factor, prefix = si_scale(stat.mean)
    scaled = Stat(stat.mean / factor, None if stat.std is None else stat.std / factor, stat.n)
    return f"{format_stat(scaled, decimals=decimals_for(scaled.mean) if factor > 1 else 0)} {prefix}{unit}".strip()


def format_seconds(stat: Stat) -> str:
    """Format seconds with three significant digits, but at most two decimals."""
    return f"{format_stat(stat, decimals=min(2, decimals_for(stat.mean)))} s"


def decimals_for(value: float) -> int:
    """Return the number of decimals that gives three significant digits; 2 for values below 1."""
    return max(0, 2 - math.floor(math.log10(abs(value)))) if math.isfinite(value) and abs(value) >= 1 else 2
