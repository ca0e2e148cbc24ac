"""From a pure Func to loop nests, source text and a compiled callable."""
