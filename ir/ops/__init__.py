"""The op records. Importing this package defines every op."""
