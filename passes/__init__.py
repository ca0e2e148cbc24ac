"""Pure functions from Func to Func."""
