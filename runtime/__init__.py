"""What compiled code and eager tensors need at run time."""
