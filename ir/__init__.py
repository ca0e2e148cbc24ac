"""The language: types, functions, op records, builder, text, verifier, interpreter."""

from . import ops

__all__ = ["ops"]
