"""Tests of outerloop, in folders that mirror the package; what they share is in support/."""
