"""The language: types, functions, op records, builder, text, verifier, interpreter."""
